package storage

// Waiting is how many writes wait for the next commit.
func Waiting(db *DB) int {
	db.commits.mu.Lock()
	defer db.commits.mu.Unlock()
	return len(db.commits.waiting)
}
