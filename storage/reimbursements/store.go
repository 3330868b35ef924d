// Package reimbursements reads requests for reimbursement. Lists have filters, and every
// page of a list costs about the same.
package reimbursements

import (
	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/sync/singleflight"

	"spendhook/storage"
)

// Store is the reimbursements of a database. It is safe for concurrent use. Every
// method returns storage.ErrUnavailable, wrapped, when the database is
// unreachable or too slow.
type Store struct {
	db        *storage.DB
	histories *lru.Cache[string, history]
	counting  singleflight.Group
}

// New returns the reimbursements of a database.
func New(db *storage.DB) *Store {
	histories, _ := lru.New[string, history](maxHistories) // it errs for a size below 1 only
	return &Store{db: db, histories: histories}
}
