// Package quarantine keeps work and subscribers that could not be read apart from the rest, until an
// operator retries or drops them.
package quarantine

import (
	"cmp"
	"context"
	_ "embed" // the scripts
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/internal/cursor"
	"spendhook/internal/partition"
	"spendhook/internal/pipeline"
	"spendhook/internal/queues"
	"spendhook/internal/script"
)

var (
	//go:embed lua/quarantine.lua
	moveSource string
	//go:embed lua/retry.lua
	retrySource string

	moveScript  = queues.Script(moveSource, true)
	retryScript = queues.Script(retrySource, true)
)

// ErrNotFound means that the quarantine has no such entry.
var ErrNotFound = errors.New("not in the quarantine")

// Key is the quarantine of a partition: a sorted set of Entry.Member by the unix ms of its quarantine.
func Key(p int) string { return partition.Prefix(p) + "quarantine" }

// Entry is an event, a delivery or a subscriber that could not be read.
type Entry struct {
	Company    uuid.UUID
	EventID    string     // "": the subscriber itself
	Subscriber *uuid.UUID // nil: the event itself
	At         time.Time  // when it was quarantined
}

// Member is the entry's member of the sorted set at Key.
func (e Entry) Member() string {
	member := e.Company.String() + "/" + e.EventID
	if e.Subscriber != nil {
		member += "/" + e.Subscriber.String()
	}
	return member
}

// names returns the arguments of the scripts: company, event id and subscriber, "" for none.
func (e Entry) names() []any {
	sub := ""
	if e.Subscriber != nil {
		sub = e.Subscriber.String()
	}
	return []any{e.Company.String(), e.EventID, sub}
}

// ID identifies the entry in its company: the id of the event or of the delivery, or "." and the UUID
// of the subscriber.
func (e Entry) ID() string {
	if e.Subscriber != nil {
		return e.EventID + "." + e.Subscriber.String()
	}
	return e.EventID
}

// Store is the quarantine of all partitions, safe for concurrent use.
type Store struct {
	client redis.UniversalClient
	wake   func(ctx context.Context, partitions []int)
}

// New returns a Store. wake wakes partitions: a replica with free places serves them.
func New(client redis.UniversalClient, wake func(ctx context.Context, partitions []int)) *Store {
	return &Store{client, wake}
}

// Move moves an event or a delivery that cannot be read to the quarantine.
func (s *Store) Move(ctx context.Context, e Entry) error {
	p := partition.Of(e.Company)
	call := &script.Call{Script: moveScript, Keys: queues.Keys(p), Args: append([]any{partition.Prefix(p)}, e.names()...)}
	if err := script.Run(ctx, s.client, call); err != nil {
		return fmt.Errorf("quarantine work: %w", err)
	}
	return nil
}

// AddSubscribers adds subscribers of a company that cannot be read, in one round trip. It returns those
// that the quarantine did not have yet.
func (s *Store) AddSubscribers(ctx context.Context, company uuid.UUID, ids []uuid.UUID, now time.Time) (added []uuid.UUID, err error) {
	calls, err := pipeline.Each(ctx, s.client, ids, func(pipe redis.Pipeliner, id uuid.UUID) *redis.IntCmd {
		e := Entry{Company: company, Subscriber: &id}
		return pipe.ZAddNX(ctx, Key(partition.Of(company)), redis.Z{Score: float64(now.UnixMilli()), Member: e.Member()})
	})
	if err != nil {
		return nil, fmt.Errorf("quarantine subscribers: %w", err)
	}
	for i, call := range calls {
		if call.Val() == 1 {
			added = append(added, ids[i])
		}
	}
	return added, nil
}

// Has reports whether the quarantine has the entry.
func (s *Store) Has(ctx context.Context, e Entry) (bool, error) {
	err := s.client.ZScore(ctx, Key(partition.Of(e.Company)), e.Member()).Err()
	if err != nil && !errors.Is(err, redis.Nil) {
		return false, fmt.Errorf("find quarantine entry: %w", err)
	}
	return err == nil, nil
}

// Events returns which of a company's events the quarantine has.
func (s *Store) Events(ctx context.Context, company uuid.UUID, ids []string) (found []string, err error) {
	if len(ids) == 0 {
		return nil, nil
	}
	members := make([]string, len(ids))
	for i, id := range ids {
		members[i] = Entry{Company: company, EventID: id}.Member()
	}
	scores, err := s.client.ZMScore(ctx, Key(partition.Of(company)), members...).Result()
	if err != nil {
		return nil, fmt.Errorf("find quarantined events: %w", err)
	}
	for i, at := range scores {
		if at != 0 { // go-redis returns 0 for an event that is not there
			found = append(found, ids[i])
		}
	}
	return found, nil
}

// Forget drops an entry, if there is one, whose event, delivery or subscriber is gone.
func (s *Store) Forget(ctx context.Context, e Entry) error {
	if err := s.client.ZRem(ctx, Key(partition.Of(e.Company)), e.Member()).Err(); err != nil {
		return fmt.Errorf("drop quarantine entry: %w", err)
	}
	return nil
}

// Filter selects entries. Size is 1..100, 0 meaning 20.
type Filter struct {
	Company *uuid.UUID // nil: all companies
	Size    int
	Cursor  string // Page.Next of the page before
}

// Page is a part of the quarantine. A page that is not the last may be short. Next is "" on the last.
type Page struct {
	Items []Entry
	Next  string
}

const (
	defaultSize = 20
	maxSize     = 100
	readSize    = 1000 // entries that a page reads of its first partition; must exceed the entries of one millisecond
)

// position is a position in the quarantine: just after a member, which may be gone, or
// at the start of a partition.
type position struct {
	Partition int    `json:"p"`
	MS        int64  `json:"t,omitzero"`
	Member    string `json:"m,omitzero"`
}

// List lists the entries of the quarantine, for each company the oldest first.
// cursor.ErrBad when the cursor is not of this list.
func (s *Store) List(ctx context.Context, f Filter) (page Page, err error) {
	first, last := 0, partition.Count-1
	if f.Company != nil {
		first = partition.Of(*f.Company)
		last = first
	}
	at, filter := position{Partition: first}, fmt.Sprint(f.Company)
	if err := cursor.Decode(f.Cursor, "quarantine", filter, &at); err != nil {
		return Page{}, err
	}
	if at.Partition < first || at.Partition > last || at.MS < 0 {
		return Page{}, cursor.ErrBad
	}
	size := min(cmp.Or(max(f.Size, 0), defaultSize), maxSize)
	partitions := partition.All()[at.Partition : last+1]
	lists, err := pipeline.Each(ctx, s.client, partitions, func(pipe redis.Pipeliner, p int) *redis.ZSliceCmd {
		span := redis.ZRangeBy{Min: "-inf", Max: "+inf", Count: int64(size + 1)}
		if p == at.Partition {
			span.Min, span.Count = strconv.FormatInt(at.MS, 10), readSize
		}
		return pipe.ZRangeByScoreWithScores(ctx, Key(p), &span)
	})
	if err != nil {
		return Page{}, fmt.Errorf("read quarantine: %w", err)
	}
	for i, list := range lists {
		for _, z := range list.Val() {
			member, _ := z.Member.(string)
			next := position{Partition: partitions[i], MS: int64(z.Score), Member: member}
			if next.Partition == at.Partition && next.MS == at.MS && member <= at.Member {
				continue
			}
			if len(page.Items) == size {
				page.Next = cursor.Encode("quarantine", filter, at)
				return page, nil
			}
			at = next
			if e, ok := parse(member, next.MS); ok && (f.Company == nil || e.Company == *f.Company) {
				page.Items = append(page.Items, e)
			}
		}
		if n := len(list.Val()); n == readSize || i > 0 && n > size { // the partition may have more
			page.Next = cursor.Encode("quarantine", filter, at)
			return page, nil
		}
	}
	return page, nil
}

// ParseID reads the ID of a company's entry. ErrNotFound when id is not an ID.
func ParseID(company uuid.UUID, id string) (Entry, error) {
	e, ok := parse(company.String()+"/"+strings.Replace(id, ".", "/", 1), 0)
	if !ok || id == "" || e.ID() != id {
		return Entry{}, ErrNotFound
	}
	return e, nil
}

func parse(member string, ms int64) (Entry, bool) {
	parts := strings.Split(member, "/")
	if len(parts) < 2 || len(parts) > 3 || len(parts) == 2 && parts[1] == "" {
		return Entry{}, false
	}
	company, err := uuid.Parse(parts[0])
	if err != nil {
		return Entry{}, false
	}
	e := Entry{Company: company, EventID: parts[1], At: time.UnixMilli(ms).UTC()}
	if len(parts) == 3 {
		subscriber, err := uuid.Parse(parts[2])
		if err != nil {
			return Entry{}, false
		}
		e.Subscriber = &subscriber
	}
	return e, true
}

// Retry requeues the work of an entry. ErrNotFound when there is no such entry.
func (s *Store) Retry(ctx context.Context, e Entry) error {
	switch listed, err := s.Has(ctx, e); {
	case err != nil:
		return err
	case !listed:
		return ErrNotFound
	}
	p := partition.Of(e.Company)
	call := &script.Call{Script: retryScript, Keys: queues.Keys(p), Args: append([]any{partition.Prefix(p)}, e.names()...)}
	if err := script.Run(ctx, s.client, call); err != nil {
		return fmt.Errorf("retry quarantine entry: %w", err)
	}
	if reply, _ := call.Reply().(int64); reply == 1 {
		s.wake(ctx, []int{p})
	}
	return nil
}
