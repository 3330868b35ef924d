// Package reimbursements reads requests for reimbursement: lists, whose every page costs
// about the same, and their filters.
package reimbursements

import (
	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/sync/singleflight"

	"spendhook/storage"
)

// Store is the reimbursements of a database. It is safe for concurrent use. Every
// method returns storage.ErrUnavailable, wrapped, when the database is away or
// too slow.
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
