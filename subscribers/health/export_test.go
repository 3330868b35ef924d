package health

// The states of health.
const (
	StateHealthy = stateHealthy
	StateFailing = stateFailing
)
