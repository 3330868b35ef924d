package redismemory

// Above is above, for tests.
func (u Use) Above() bool { return u.above() }
