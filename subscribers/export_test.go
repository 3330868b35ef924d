package subscribers

// NormalizeURL is normalizeURL, for tests.
var NormalizeURL = normalizeURL

// The states of health.
const (
	StateHealthy  = stateHealthy
	StateFailing  = stateFailing
	StateDisabled = stateDisabled
)
