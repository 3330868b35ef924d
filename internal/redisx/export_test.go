package redisx

// Above is above, for tests.
func (u MemoryUse) Above() bool { return u.above() }

// Durable reports whether what is written survives a restart.
func (r *Redis) Durable() bool { return !r.memory }
