// Package cards keeps the cards, and the jobs that create them in bulk. It is
// the one place that decides whether a card may change.
package cards

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"spendhook/storage"
	"spendhook/storage/column"
)

var (
	// ErrUserNotFound means that a cardholder is not an active user of the company.
	ErrUserNotFound = errors.New("the user is not an active user of the company")
	// ErrNotActive means that the card's status forbids the change.
	ErrNotActive = errors.New("the card is not active")
	// ErrThresholdExceedsLimit means that a threshold is above the company's
	// credit limit.
	ErrThresholdExceedsLimit = errors.New("the threshold exceeds the company's credit limit")
)

// Options configures New.
type Options struct {
	DB    *storage.DB // required
	Now   func() time.Time
	NewID func() uuid.UUID
}

// Store is the cards of a database. It is safe for concurrent use. Every method
// returns storage.ErrUnavailable, wrapped, when the database is away or too slow.
type Store struct {
	db     *storage.DB
	now    func() time.Time
	newID  func() uuid.UUID
	served atomic.Pointer[column.Key] // the company whose item was worked on last
}

// New returns the cards of a database; nil functions mean the real ones.
func New(o Options) *Store {
	if o.Now == nil {
		o.Now = time.Now //nolint:forbidigo // the default clock
	}
	if o.NewID == nil {
		o.NewID = uuid.New
	}
	return &Store{db: o.DB, now: o.Now, newID: o.NewID}
}
