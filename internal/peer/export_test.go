package peer

// ErrInClear is errInClear, for tests.
var ErrInClear = errInClear
