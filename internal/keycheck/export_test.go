package keycheck

// ErrMissing is the error of a missing key, for tests.
var ErrMissing = errMissing
