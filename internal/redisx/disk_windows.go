package redisx

// freeBytes is not needed on Windows: no redis-server runs there.
func freeBytes(string) (free uint64, known bool) { return 0, false }
