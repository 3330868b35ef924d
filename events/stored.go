package events

import (
	"errors"
	"strings"
	"time"

	"github.com/google/uuid"
)

var (
	// ErrNotFound means that the event was never accepted, or is past retention and not in the history.
	ErrNotFound = errors.New("event not found")
	// ErrCompacted means that an event's payload was removed, and is not in the history.
	ErrCompacted = errors.New("the event's payload is not kept any more")
	// ErrUnavailable means that Redis, or the database of the history, did not answer, or not in time. The request may
	// have been executed; repeating it is safe.
	ErrUnavailable = errors.New("event store unavailable")
	// ErrNoHistory means that a search was asked for, and there is no history.
	ErrNoHistory = errors.New("there is no history to search in")
	// ErrSearching means that a search of the company is under way at this replica, or the most at a time are.
	ErrSearching = errors.New("a search is under way")
)

// State is the state of an event.
type State byte

// The states of an event.
const (
	Ready     State = 'R' // waits for matching, or matching is under way
	Matched   State = 'M' // every matching subscriber has a delivery, some are open
	Settled   State = 'S' // all its deliveries have ended
	Compacted State = 'C' // settled, and only its digest is kept
)

// Stored is an accepted event with the exact bytes that are signed and sent. A
// compacted event has only id and company, and no Body.
type Stored struct {
	Event
	State      State
	AcceptedAt time.Time
	Sequence   int64 // its number in the company, from 1
	Body       []byte
}

// Ref names the event.
func (s *Stored) Ref() Ref { return Ref{Company: s.CompanyUUID, ID: s.ID} }

// Ref names one event. Ids are unique within a company only, so that no company can block or
// probe ids of another.
type Ref struct {
	Company uuid.UUID
	ID      string
}

// String is "<company>/<id>".
func (r Ref) String() string { return r.Company.String() + "/" + r.ID }

// Valid reports whether an event may have the id.
func (r Ref) Valid() bool { return validID(r.ID) }

func validID(id string) bool {
	return len(id) >= 1 && len(id) <= 128 && !strings.ContainsFunc(id, notIDRune)
}

func notIDRune(r rune) bool {
	return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '_' && r != '-'
}
