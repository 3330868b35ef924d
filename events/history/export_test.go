package history

// Heads is heads, for tests.
var Heads = (*Reader).heads
