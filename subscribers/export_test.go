package subscribers

// NormalizeURL is normalizeURL, for tests.
var NormalizeURL = normalizeURL
