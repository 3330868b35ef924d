package workqueue

import (
	"context"
	_ "embed" // the script
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/internal/cursor"
	"spendhook/internal/partition"
	"spendhook/internal/script"
)

var (
	//go:embed lua/retry.lua
	retrySource string

	retryScript = Script(retrySource, true)
)

// ErrNotQuarantined says that the quarantine has no such entry.
var ErrNotQuarantined = errors.New("not in the quarantine")

// Quarantined is an event, a delivery or a subscriber that could not be read.
type Quarantined struct {
	Company    uuid.UUID
	EventID    string     // "": the subscriber itself
	Subscriber *uuid.UUID // nil: the event itself
	At         time.Time  // when it was quarantined
}

// Member is the entry's member of the sorted set at QuarantineKey.
func (e Quarantined) Member() string {
	member := e.Company.String() + "/" + e.EventID
	if e.Subscriber != nil {
		member += "/" + e.Subscriber.String()
	}
	return member
}

// QuarantineSubscriber lists a subscriber that cannot be read, and reports whether it was
// not listed before.
func (q *Queue) QuarantineSubscriber(ctx context.Context, company, subscriber uuid.UUID, now time.Time) (added bool, err error) {
	e := Quarantined{Company: company, Subscriber: &subscriber}
	n, err := q.opts.Client.ZAddNX(ctx, QuarantineKey(partition.Of(company)), redis.Z{Score: float64(now.UnixMilli()), Member: e.Member()}).Result()
	if err != nil {
		return false, fmt.Errorf("quarantine subscriber: %w", err)
	}
	return n == 1, nil
}

// IsQuarantined reports whether there is such an entry.
func (q *Queue) IsQuarantined(ctx context.Context, e Quarantined) (bool, error) {
	err := q.opts.Client.ZScore(ctx, QuarantineKey(partition.Of(e.Company)), e.Member()).Err()
	if err != nil && !errors.Is(err, redis.Nil) {
		return false, fmt.Errorf("find quarantined: %w", err)
	}
	return err == nil, nil
}

// ForgetQuarantined drops an entry whose subject is gone.
func (q *Queue) ForgetQuarantined(ctx context.Context, e Quarantined) error {
	n, err := q.opts.Client.ZRem(ctx, QuarantineKey(partition.Of(e.Company)), e.Member()).Result()
	if err != nil {
		return fmt.Errorf("forget quarantined: %w", err)
	}
	if n == 0 {
		return ErrNotQuarantined
	}
	return nil
}

// QuarantineFilter selects entries. Size is 1..100, 0 meaning 20.
type QuarantineFilter struct {
	Company *uuid.UUID // nil: of all
	Size    int
	Cursor  string // QuarantinePage.Next of the page before
}

// QuarantinePage is a part of the quarantine. A page may be short while there are
// more; Next is "" on the last.
type QuarantinePage struct {
	Items []Quarantined
	Next  string
}

// Bounds of one page.
const (
	quarantineSize    = 20
	quarantineMaxSize = 100
	quarantineRead    = 1000 // entries of one read: more than are added in a millisecond
	quarantineReads   = 20
)

// Quarantined lists what is in the quarantine, for each company the oldest first.
// cursor.ErrBad when the cursor is not of this list.
func (q *Queue) Quarantined(ctx context.Context, f QuarantineFilter) (QuarantinePage, error) {
	first, last := 0, partition.Count-1
	if f.Company != nil {
		first = partition.Of(*f.Company)
		last = first
	}
	at, filter := spot{Partition: first}, fmt.Sprint(f.Company)
	if err := cursor.Decode(f.Cursor, "quarantine", filter, &at); err != nil {
		return QuarantinePage{}, err
	}
	if at.Partition < first || at.Partition > last || at.MS < 0 {
		return QuarantinePage{}, cursor.ErrBad
	}
	l := &quarantineList{q: q, filter: f, at: at, size: quarantineSize, reads: quarantineReads}
	if f.Size > 0 {
		l.size = min(f.Size, quarantineMaxSize)
	}
	partitions, err := q.quarantinedIn(ctx, at.Partition, last)
	if err != nil {
		return QuarantinePage{}, err
	}
	for _, p := range partitions {
		if p != l.at.Partition {
			l.at = spot{Partition: p}
		}
		if more, err := l.read(ctx); err != nil || more {
			return QuarantinePage{Items: l.items, Next: cursor.Encode("quarantine", filter, l.at)}, err
		}
	}
	return QuarantinePage{Items: l.items}, nil
}

// quarantinedIn lists the partitions from first to last that have entries.
func (q *Queue) quarantinedIn(ctx context.Context, first, last int) ([]int, error) {
	pipe := q.opts.Client.Pipeline()
	counts := make([]*redis.IntCmd, 0, last-first+1)
	for p := first; p <= last; p++ {
		counts = append(counts, pipe.ZCard(ctx, QuarantineKey(p)))
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return nil, fmt.Errorf("count quarantine: %w", err)
	}
	var found []int
	for i, n := range counts {
		if n.Val() > 0 {
			found = append(found, first+i)
		}
	}
	return found, nil
}

// quarantineList is one page under way.
type quarantineList struct {
	q      *Queue
	filter QuarantineFilter
	at     spot
	items  []Quarantined
	size   int
	reads  int // that may still be made
}

// read goes on after l.at in its partition. more says that the page is full, or
// that it took enough, before all was read.
func (l *quarantineList) read(ctx context.Context) (more bool, err error) {
	for {
		if l.reads--; l.reads < 0 {
			return true, nil
		}
		entries, err := l.q.opts.Client.ZRangeByScoreWithScores(ctx, QuarantineKey(l.at.Partition), &redis.ZRangeBy{
			Min: strconv.FormatInt(l.at.MS, 10), Max: "+inf", Count: quarantineRead,
		}).Result()
		if err != nil {
			return false, fmt.Errorf("read quarantine: %w", err)
		}
		for _, z := range entries {
			member, _ := z.Member.(string)
			next := spot{Partition: l.at.Partition, MS: int64(z.Score), Member: member}
			if next.MS == l.at.MS && member <= l.at.Member {
				continue
			}
			if len(l.items) == l.size {
				return true, nil
			}
			l.at = next
			e, ok := parseQuarantined(member, next.MS)
			if ok && (l.filter.Company == nil || e.Company == *l.filter.Company) {
				l.items = append(l.items, e)
			}
		}
		if len(entries) < quarantineRead {
			return false, nil
		}
	}
}

func parseQuarantined(member string, ms int64) (Quarantined, bool) {
	parts := strings.Split(member, "/")
	if len(parts) < 2 || len(parts) > 3 {
		return Quarantined{}, false
	}
	company, err := uuid.Parse(parts[0])
	if err != nil {
		return Quarantined{}, false
	}
	e := Quarantined{Company: company, EventID: parts[1], At: time.UnixMilli(ms).UTC()}
	if len(parts) == 3 {
		subscriber, err := uuid.Parse(parts[2])
		if err != nil {
			return Quarantined{}, false
		}
		e.Subscriber = &subscriber
	}
	return e, true
}

// spot is a place in the quarantine: just after a member, which may be gone, or
// at the start of a partition.
type spot struct {
	Partition int    `json:"p"`
	MS        int64  `json:"t,omitzero"`
	Member    string `json:"m,omitzero"`
}

// RetryQuarantined has an entry tried again. ErrNotQuarantined when there is none.
func (q *Queue) RetryQuarantined(ctx context.Context, e Quarantined) error {
	p, sub := partition.Of(e.Company), ""
	if e.Subscriber != nil {
		sub = e.Subscriber.String()
	}
	call := &script.Call{Script: retryScript, Keys: Keys(p), Args: []any{partition.Prefix(p), e.Company.String(), e.EventID, sub}}
	if err := script.Run(ctx, q.opts.Client, nil, call); err != nil {
		return fmt.Errorf("retry quarantined: %w", err)
	}
	reply, _ := call.Reply().([]any)
	if len(reply) != 2 || reply[0] != int64(1) {
		return ErrNotQuarantined
	}
	if reply[1] == int64(1) {
		q.Wake(ctx, []int{p})
	}
	return nil
}
