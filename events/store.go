package events

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

var (
	// ErrNotFound means that no such event is kept: never accepted, or past retention.
	ErrNotFound = errors.New("event not found")
	// ErrUnavailable means that Redis did not answer, or not in time. What was
	// asked may or may not have happened; asking again is safe.
	ErrUnavailable = errors.New("event store unavailable")
	// ErrBadCursor means that a cursor is not one that this list handed out
	// for the same filter.
	ErrBadCursor = errors.New("cursor does not belong to this list")
)

// grace is how much longer than retention a key lives. An id may be sent
// again until its timestamp, at most maxFuture ahead of the accept, is older
// than retention; the rest is for clocks that disagree.
const (
	grace     = 10 * time.Minute
	maxFuture = 5 * time.Minute
)

// Stored is an accepted event with the exact bytes that are signed and sent.
type Stored struct {
	Event
	AcceptedAt time.Time
	Body       []byte
}

// Ref names the event.
func (s *Stored) Ref() Ref { return Ref{Company: s.CompanyUUID, ID: s.ID} }

// StoreOptions are what a Store needs. Now is the clock, nil the real one.
type StoreOptions struct {
	Client    redis.UniversalClient
	Retention time.Duration // how long ids are remembered; positive
	Now       func() time.Time
}

// Store keeps events in Redis. It is safe for concurrent use; every error of
// Redis is returned wrapping ErrUnavailable.
type Store struct {
	client    redis.UniversalClient
	retention time.Duration
	now       func() time.Time
}

// NewStore returns a Store on the client, which it does not close.
func NewStore(o StoreOptions) *Store {
	if o.Now == nil {
		o.Now = time.Now //nolint:forbidigo // the nil default
	}
	return &Store{client: o.Client, retention: o.Retention, now: o.Now}
}

// Get reads one event, or ErrNotFound.
func (s *Store) Get(ctx context.Context, ref Ref) (Stored, error) {
	found, err := s.GetMany(ctx, []Ref{ref})
	switch {
	case err != nil:
		return Stored{}, err
	case found[0] == nil:
		return Stored{}, ErrNotFound
	}
	return *found[0], nil
}

// getBatch bounds one pipeline of reads.
const getBatch = 500

// GetMany reads events in the order of refs; those not found are nil.
func (s *Store) GetMany(ctx context.Context, refs []Ref) ([]*Stored, error) {
	all := make([]*Stored, 0, len(refs))
	for batch := range slices.Chunk(refs, getBatch) {
		found, err := s.getBatch(ctx, batch)
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	return all, nil
}

func (s *Store) getBatch(ctx context.Context, refs []Ref) ([]*Stored, error) {
	pipe := s.client.Pipeline()
	gets := make([]*redis.StringCmd, len(refs))
	for i, ref := range refs {
		gets[i] = pipe.Get(ctx, EventKey(ref))
	}
	_, _ = pipe.Exec(ctx) // each command tells its own error
	found := make([]*Stored, len(refs))
	for i, get := range gets {
		raw, err := get.Result()
		if errors.Is(err, redis.Nil) {
			continue
		}
		if err != nil {
			return nil, unavailable("read events", err)
		}
		if found[i], err = ParseStored(refs[i], raw); err != nil {
			return nil, err
		}
	}
	return found, nil
}

// headerLen is 13 digits of accepted ms and 8 hex digits of nonce.
const headerLen = 13 + 8

var errStored = errors.New("stored event has no header")

// ParseStored reads the value of the EventKey of ref.
func ParseStored(ref Ref, raw string) (*Stored, error) {
	stored, err := parseStored(ref, raw)
	if err != nil {
		return nil, fmt.Errorf("event %s: %w", ref, err)
	}
	return stored, nil
}

func parseStored(ref Ref, raw string) (*Stored, error) {
	if len(raw) < headerLen {
		return nil, errStored
	}
	ms, err := strconv.ParseUint(raw[:13], 10, 63)
	if err != nil {
		return nil, errStored
	}
	body := wholeBody(ref, raw[headerLen:])
	event, err := ParseBody(body)
	if err != nil {
		return nil, err
	}
	return &Stored{Event: event, AcceptedAt: time.UnixMilli(int64(ms)).UTC(), Body: body}, nil
}

// Every body begins with what its key says already: the id and the company are
// not kept twice.
func bodyHead(ref Ref) string {
	return `{"id":"` + ref.ID + `","companyUuid":"` + ref.Company.String() + `",`
}

// keptBody is what is kept of a body.
func keptBody(ref Ref, body []byte) []byte {
	return bytes.TrimPrefix(body, []byte(bodyHead(ref)))
}

// wholeBody undoes keptBody. One that begins like an object was kept whole, by a
// version of this daemon that did so.
func wholeBody(ref Ref, kept string) []byte {
	if strings.HasPrefix(kept, "{") {
		return []byte(kept)
	}
	return []byte(bodyHead(ref) + kept)
}

func unavailable(what string, err error) error {
	return fmt.Errorf("%w: %s: %w", ErrUnavailable, what, err)
}
