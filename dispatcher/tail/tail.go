// Package tail is the live tail: it shows delivery attempts of all replicas as they are
// recorded. A key that expires lists the companies with viewers; without viewers nothing is
// written. It is not a log: when viewers or Redis are slow, entries are dropped and counted.
package tail

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/internal/partition"
	"spendhook/internal/pause"
)

// Entry is an attempt.
type Entry struct {
	At         int64     `json:"t"` // when it began, unix ms
	Company    uuid.UUID `json:"c"`
	EventID    string    `json:"i"`
	EventType  string    `json:"e"`
	Subscriber uuid.UUID `json:"s"`
	Name       string    `json:"n"` // of the subscriber
	Number     int       `json:"k"` // of the attempt, from 1
	StatusCode int       `json:"o,omitzero"`
	Error      string    `json:"x,omitempty"` // the class of the failure
	DurationMs int64     `json:"d"`
	Status     string    `json:"z"`          // of the delivery, after it
	Dropped    int       `json:"m,omitzero"` // attempts after it that were not written; set by Tail
}

// ErrTooMany means that the company, or the replica, has as many viewers as allowed.
var ErrTooMany = errors.New("too many viewers of the live tail")

const (
	// writeEvery is the interval at which a replica writes watched attempts, and readEvery the
	// interval at which a viewer reads them and publishes that its company is watched.
	writeEvery = 250 * time.Millisecond
	readEvery  = 500 * time.Millisecond
	// maxWritten bounds the entries of a company that a replica writes at a time.
	maxWritten = 50
	// maxViewers and maxOfCompany bound the viewers of one replica.
	maxViewers   = 64
	maxOfCompany = 8
	// refreshEvery is the interval at which a replica reads which companies are watched. A company
	// is watched until watchLife after its viewers last read.
	refreshEvery = time.Second
	watchLife    = 12 * time.Second
	// streamLength bounds the entries of a stream, of which each viewer reads readMost at a time.
	streamLength = 2000
	readMost     = 500
	// redisTimeout bounds the calls of Redis, so that viewers do not wait for long.
	redisTimeout = 2 * time.Second
)

// docs/redis.md lists type, writer and time to live of each key.
const watchedKey = "sh:{tail}:watched"

// streamKey: stream of the attempts shown of a company, or of all. The second part of an id is the
// number of its entry.
func streamKey(of uuid.UUID) string {
	if of == uuid.Nil {
		return "sh:{tail}:all"
	}
	return partition.Key(of, "tail:"+of.String())
}

// Tail is safe for concurrent use. Call Run; Close ends all views.
type Tail struct {
	client redis.UniversalClient
	within time.Duration // redisTimeout; tests on a busy machine need longer

	watched atomic.Pointer[map[uuid.UUID]bool] // companies with viewers at any replica; uuid.Nil: all companies

	mu       sync.Mutex
	gathered map[uuid.UUID][]Entry

	viewing sync.Mutex
	viewers map[*Viewer]bool
	closed  context.Context //nolint:containedctx // ends with Close
	close   context.CancelFunc
}

// New returns a Tail on the client, which it does not close.
func New(client redis.UniversalClient) *Tail {
	t := &Tail{client: client, within: redisTimeout, gathered: map[uuid.UUID][]Entry{}, viewers: map[*Viewer]bool{}}
	t.closed, t.close = context.WithCancel(context.Background())
	return t
}

// Close ends all views.
func (t *Tail) Close() { t.close() }

// Watched reports whether a company has a viewer.
func (t *Tail) Watched(company uuid.UUID) bool {
	watched := t.watched.Load()
	return watched != nil && ((*watched)[company] || (*watched)[uuid.Nil])
}

// Add shows an attempt to the viewers of its company. It returns at once.
func (t *Tail) Add(e Entry) {
	watched := t.watched.Load()
	if watched == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, of := range []uuid.UUID{e.Company, uuid.Nil} {
		switch list := t.gathered[of]; {
		case !(*watched)[of]:
		case len(list) < maxWritten:
			t.gathered[of] = append(list, e)
		default:
			list[maxWritten-1].Dropped++
		}
	}
}

// Run reads which companies have viewers and writes their attempts, until ctx ends.
func (t *Tail) Run(ctx context.Context) {
	for n := 0; pause.For(ctx, writeEvery); n++ {
		if n%int(refreshEvery/writeEvery) == 0 {
			t.watched.Store(t.readWatched(ctx)) // after a failure viewers miss entries
		}
		_ = t.write(ctx) // after a failure viewers miss entries
	}
}

// readWatched reads which companies have viewers; nil: none, or Redis does not answer.
func (t *Tail) readWatched(ctx context.Context) *map[uuid.UUID]bool {
	ctx, cancel := context.WithTimeout(ctx, t.within)
	defer cancel()
	names, err := t.client.ZRangeWithScores(ctx, watchedKey, 0, -1).Result()
	if err != nil || len(names) == 0 {
		return nil
	}
	now, err := t.client.Time(ctx).Result() // the clocks of replicas may differ
	if err != nil {
		return nil
	}
	watched := make(map[uuid.UUID]bool, len(names))
	for _, z := range names {
		if id, err := uuid.Parse(z.Member.(string)); err == nil && int64(z.Score) > now.UnixMilli() {
			watched[id] = true
		}
	}
	return &watched
}

func (t *Tail) write(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, t.within)
	defer cancel()
	t.mu.Lock()
	gathered := t.gathered
	t.gathered = map[uuid.UUID][]Entry{}
	t.mu.Unlock()
	pipe := t.client.Pipeline()
	for of, entries := range gathered {
		for _, e := range entries {
			text, err := json.Marshal(e)
			if err != nil {
				return err
			}
			pipe.XAdd(ctx, &redis.XAddArgs{Stream: streamKey(of), ID: "0-*", MaxLen: streamLength, Values: []any{"e", text}})
		}
		pipe.Expire(ctx, streamKey(of), time.Minute)
	}
	_, err := pipe.Exec(ctx)
	return err
}

// Viewer is one open live tail. One goroutine uses it.
type Viewer struct {
	tail    *Tail
	of      uuid.UUID
	keep    func(Entry) bool
	started bool
	last    int64 // number of the last entry that was read
}

// Watch starts a view of a company, or of all companies for nil. The view has the entries for
// which keep returns true. Call Leave at the end. The error may be ErrTooMany.
func (t *Tail) Watch(ctx context.Context, company *uuid.UUID, keep func(Entry) bool) (*Viewer, error) {
	v := &Viewer{tail: t, keep: keep}
	if company != nil {
		v.of = *company
	}
	t.viewing.Lock()
	same := 0
	for other := range t.viewers {
		if other.of == v.of {
			same++
		}
	}
	if len(t.viewers) >= maxViewers || same >= maxOfCompany {
		t.viewing.Unlock()
		return nil, ErrTooMany
	}
	t.viewers[v] = true
	t.viewing.Unlock()
	_, _, _ = v.read(ctx) // Next tries again
	return v, nil
}

// Leave ends a view.
func (v *Viewer) Leave() {
	v.tail.viewing.Lock()
	defer v.tail.viewing.Unlock()
	delete(v.tail.viewers, v)
}

// Next waits for entries. It returns them, and the number of entries that were dropped since
// the last call. The error is that of ctx, or context.Canceled once the Tail is closed.
func (v *Viewer) Next(ctx context.Context) (entries []Entry, dropped int, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(v.tail.closed, cancel)() //nolint:contextcheck // ends with either
	for ctx.Err() == nil {
		entries, dropped, err = v.read(ctx)
		if err == nil && (len(entries) > 0 || dropped > 0) {
			return entries, dropped, nil
		}
		pause.For(ctx, readEvery)
	}
	return nil, 0, ctx.Err()
}

// read publishes that the company is watched, and reads the entries that were written since the last
// call. The first call reads none.
func (v *Viewer) read(ctx context.Context) (entries []Entry, dropped int, err error) {
	ctx, cancel := context.WithTimeout(ctx, v.tail.within)
	defer cancel()
	client, key := v.tail.client, streamKey(v.of)
	now, err := client.Time(ctx).Result()
	if err != nil {
		return nil, 0, fmt.Errorf("read live tail: %w", err)
	}
	pipe := client.Pipeline()
	pipe.ZAdd(ctx, watchedKey, redis.Z{Score: float64(now.Add(watchLife).UnixMilli()), Member: v.of.String()})
	pipe.ZRemRangeByScore(ctx, watchedKey, "-inf", strconv.FormatInt(now.UnixMilli(), 10))
	pipe.Expire(ctx, watchedKey, time.Minute)
	pipe.Expire(ctx, key, time.Minute)
	newest := pipe.XRevRangeN(ctx, key, "+", "-", 1)
	after := pipe.XRangeN(ctx, key, "(0-"+strconv.FormatInt(v.last, 10), "+", readMost)
	if _, err := pipe.Exec(ctx); err != nil {
		return nil, 0, fmt.Errorf("read live tail: %w", err)
	}
	latest := int64(0)
	for _, m := range newest.Val() {
		latest = numberOf(m)
	}
	if !v.started {
		v.started, v.last = true, latest
		return nil, 0, nil
	}
	if latest < v.last { // Redis lost the stream: the next call reads from number 1
		v.last = 0
		return nil, 0, nil
	}
	for _, m := range after.Val() {
		var e Entry
		text, _ := m.Values["e"].(string)
		_ = json.Unmarshal([]byte(text), &e)
		n := numberOf(m)
		dropped += int(n-v.last) - 1 + e.Dropped // skipped numbers are trimmed entries
		v.last = n
		if v.keep(e) {
			entries = append(entries, e)
		}
	}
	return entries, dropped, nil
}

func numberOf(m redis.XMessage) int64 {
	_, number, _ := strings.Cut(m.ID, "-")
	n, _ := strconv.ParseInt(number, 10, 64)
	return n
}
