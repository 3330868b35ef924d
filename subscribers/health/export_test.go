package health

// StateHealthy is a state of health.
const StateHealthy = stateHealthy
