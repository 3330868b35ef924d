package seal

// Stale is isStale, for tests.
func (r *Keyring) Stale(value string) bool { return r.isStale(value) }
