package keycheck

// The errors, for tests.
var (
	ErrMissing = errMissing
	ErrUnknown = errUnknown
)
