package redisx

// Durable reports whether what is written survives a restart.
func (r *Redis) Durable() bool { return !r.memory }
