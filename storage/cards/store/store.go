// Package store reads, lists and changes cards in the database.
package store

import (
	"spendhook/storage"
	"spendhook/storage/creations"
)

// Store is the cards of a database. It is safe for concurrent use. Every method
// returns storage.ErrUnavailable, wrapped, when the database is unreachable or too slow.
type Store struct {
	db        *storage.DB
	creations *creations.Store
}

// New returns the cards of a database, and records what it creates among the creations of
// the same database.
func New(db *storage.DB, made *creations.Store) *Store { return &Store{db: db, creations: made} }
