// Package store stores deliveries. Its scripts write a record and move its work in one atomic
// step.
package store

import (
	"context"
	_ "embed" // the scripts
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/dispatcher/delivery"
	"spendhook/dispatcher/delivery/lifecycle"
	"spendhook/dispatcher/delivery/query"
	"spendhook/dispatcher/workqueue/queues"
	"spendhook/events"
	"spendhook/events/layout"
	"spendhook/events/operational"
	"spendhook/internal/partition"
	"spendhook/internal/pipeline"
	"spendhook/internal/script"
)

var (
	//go:embed lua/lib.lua
	lib string
	//go:embed lua/record.lua
	recordSource string
	//go:embed lua/delivered.lua
	deliveredSource string

	recordScript    = queues.Script(operational.Lua()+lib+recordSource, true)
	deliveredScript = queues.Script(layout.Lua()+lib+deliveredSource, true)
)

// Options configures New; all are required.
type Options struct {
	Client          redis.UniversalClient
	Policy          lifecycle.Policy
	BreakerPause    time.Duration // how long an endpoint queue is not served once its breaker opens
	BreakerFailures int           // unreachable attempts in a row that open it
	Now             func() time.Time
}

// Store keeps deliveries in Redis. It is safe for concurrent use.
type Store struct {
	*query.Reader

	client redis.UniversalClient
	opts   Options
}

// New returns a store on the client, which it does not close.
func New(o Options) *Store {
	return &Store{Reader: query.New(o.Client, o.Now), client: o.Client, opts: o}
}

// How much longer than retention deliveries and their event are kept, so that no delivery
// expires before its event, and no event (with its id) within retention.
const (
	deliverySlack = 15 * time.Minute
	eventSlack    = 10 * time.Minute
)

// Reach says whether an attempt reached its endpoint.
type Reach int

// The values of Reach.
const (
	ReachUnknown Reach = iota
	Reached
	Unreachable
)

// Change changes one delivery: Next replaces Base if Base is still the stored version. A
// Base.Version of 0 means that the delivery does not exist yet.
type Change struct {
	Ref        delivery.Ref
	Base, Next *delivery.Record
	Claimed    bool          // the delivery was claimed from its endpoint queue; writing ends the claim
	Reach      Reach         // only if Claimed
	Backlog    bool          // the delivery goes to its endpoint queue, because the endpoint has no place
	Open       bool          // the endpoint's breaker is open
	Guarded    bool          // do not write while an attempt is under way
	Pause      time.Duration // how long the endpoint queue must not be served
	Notice     string        // of its death, see operational.Store.Encode; "" for none

	text string // Next as it was written
}

// Write is an atomic write of deliveries of one event. Matched ends its matching: with these
// changes and earlier ones, every matching subscriber has a delivery, except disabled ones
// when Held is set.
type Write struct {
	Event   events.Ref
	Changes []Change
	Matched bool
	Fanout  int // deliveries of the event, when Matched
	Held    bool
}

// matched encodes Matched, Held and Fanout for the scripts.
func (w *Write) matched() string {
	switch {
	case !w.Matched:
		return ""
	case w.Held:
		return strconv.Itoa(w.Fanout) + "h"
	}
	return strconv.Itoa(w.Fanout)
}

// smooth reports whether all deliveries of the write were delivered at their first attempt,
// without an endpoint queue.
func (w *Write) smooth() bool {
	for i := range w.Changes {
		if c := &w.Changes[i]; c.Claimed || c.Base.Version != 0 || c.Next.Status != delivery.StatusDelivered {
			return false
		}
	}
	return true
}

// Found is why a change was not written.
type Found struct {
	Record   *delivery.Record // the stored record; Version 0 when there is none
	InFlight bool             // an attempt is under way, and the change was guarded
	// Compacted says that the event was compacted: no delivery of it can be new.
	Compacted bool
	Damaged   bool // the stored record cannot be read; Record is nil
}

// Recorded is the answer of Record for one Write. Found holds nil for each of
// its changes that was written.
type Recorded struct {
	Found []*Found
	Err   error
}

// recordChunk bounds the writes of one script call, and so how long the call blocks Redis.
const recordChunk = 64

// Record makes writes in one pipeline. replica is the replica id of the claims. A failed
// write may be retried: changes that were written already are recognised. wakes are the
// partitions that have work and need a wake-up.
func (s *Store) Record(ctx context.Context, now time.Time, replica string, writes []Write) (recorded []Recorded, wakes []int, err error) {
	for _, w := range writes {
		for j := range w.Changes {
			c := &w.Changes[j]
			if c.text, err = c.Next.Encode(); err != nil {
				return nil, nil, err
			}
		}
	}
	groups := s.groups(writes)
	calls := make([]*script.Call, len(groups))
	for i, g := range groups {
		if g[0].smooth() {
			calls[i] = s.deliveredCall(g, now, replica)
		} else {
			calls[i] = s.recordCall(g, now, replica)
		}
	}
	_ = script.Run(ctx, s.client, calls...) // each call has its own error
	answers := make(map[*Write]Recorded, len(writes))
	seen := make(map[int]bool)
	for i, g := range groups {
		for _, p := range readRecorded(g, calls[i], answers) {
			if !seen[p] {
				seen[p] = true
				wakes = append(wakes, p)
			}
		}
	}
	recorded = make([]Recorded, len(writes))
	for i := range writes {
		recorded[i] = answers[&writes[i]]
	}
	return recorded, wakes, nil
}

// groups groups writes into script calls, smooth ones and others separately.
func (s *Store) groups(writes []Write) [][]*Write {
	var smooth, others []*Write
	for i := range writes {
		if w := &writes[i]; w.smooth() {
			smooth = append(smooth, w)
		} else {
			others = append(others, w)
		}
	}
	byPartition := func(w *Write) int { return partition.Of(w.Event.Company) }
	return append(script.Groups(s.client, others, recordChunk, byPartition), script.Groups(s.client, smooth, recordChunk, byPartition)...)
}

// keeps are the first arguments of the scripts that write deliveries: the present, how long a
// delivery, a dead one and an event are kept, and the replica.
func (s *Store) keeps(now time.Time, replica string) []any {
	p := s.opts.Policy
	return []any{
		now.UnixMilli(), (p.Retention + deliverySlack).Milliseconds(), p.DeadRetention.Milliseconds(),
		(p.Retention + eventSlack).Milliseconds(), replica,
	}
}

func (s *Store) recordCall(group []*Write, now time.Time, replica string) *script.Call {
	args := append(s.keeps(now, replica), s.opts.BreakerPause.Milliseconds(), s.opts.BreakerFailures, len(group))
	for _, w := range group {
		args = append(args, partition.Prefix(partition.Of(w.Event.Company)), w.Event.Company.String(), w.Event.ID,
			w.matched(), len(w.Changes))
		for i := range w.Changes {
			c := &w.Changes[i]
			args = append(args, c.Ref.Subscriber.String(), expects(c.Base), c.text, c.Next.Created,
				c.due(now), c.flags(), millis(c.Pause), c.Notice)
		}
	}
	return &script.Call{Script: recordScript, Keys: queues.Keys(partition.Of(group[0].Event.Company)), Args: args}
}

// due is how many ms after now the delivery is due, "" for never. It is relative,
// so that Redis's clock alone says when.
func (c *Change) due(now time.Time) string {
	if c.Next.Due == 0 || !c.Next.Status.Live() {
		return ""
	}
	return strconv.FormatInt(max(0, c.Next.Due-now.UnixMilli()), 10)
}

func (c *Change) flags() string {
	out := make([]byte, 0, 4)
	for _, f := range []struct {
		on   bool
		flag byte
	}{
		{c.Claimed, 'c'},
		{c.Reach == Reached, 's'},
		{c.Reach == Unreachable, 'u'},
		{c.Open, 'o'},
		{c.Backlog, 'b'},
		{c.Guarded, 'g'},
	} {
		if f.on {
			out = append(out, f.flag)
		}
	}
	return string(out)
}

func millis(d time.Duration) string {
	if d <= 0 {
		return ""
	}
	return strconv.FormatInt(d.Milliseconds(), 10)
}

// numbered gives things numbers from 1, in the order in which they are first met.
type numbered[T comparable] struct {
	number map[T]int
	all    []T
}

func (n *numbered[T]) of(thing T) int {
	if i, ok := n.number[thing]; ok {
		return i
	}
	if n.number == nil {
		n.number = make(map[T]int, 1)
	}
	n.all = append(n.all, thing)
	n.number[thing] = len(n.all)
	return len(n.all)
}

type companySubscriber struct {
	company    int // its number
	subscriber uuid.UUID
}

func (s *Store) deliveredCall(group []*Write, now time.Time, replica string) *script.Call {
	var companies numbered[uuid.UUID]
	var subs numbered[companySubscriber]
	aboutEvents := make([]any, 0, 3*len(group))
	aboutDeliveries := make([]any, 0, 4*len(group))
	for i, w := range group {
		company := companies.of(w.Event.Company)
		aboutEvents = append(aboutEvents, company, w.Event.ID, w.matched())
		for j := range w.Changes {
			c := &w.Changes[j]
			aboutDeliveries = append(aboutDeliveries, i+1, subs.of(companySubscriber{company, c.Ref.Subscriber}), c.Next.Created, c.text)
		}
	}
	args := append(s.keeps(now, replica), len(companies.all), len(group), len(subs.all))
	for _, c := range companies.all {
		args = append(args, partition.Prefix(partition.Of(c)), c.String())
	}
	args = append(args, aboutEvents...)
	for _, sub := range subs.all {
		args = append(args, sub.company, sub.subscriber.String())
	}
	return &script.Call{
		Script: deliveredScript, Keys: queues.Keys(partition.Of(group[0].Event.Company)),
		Args: append(args, aboutDeliveries...),
	}
}

var errReply = errors.New("unexpected reply of the record script")

// readRecorded adds to answers what a call says of the writes of a group, and
// returns the partitions that have work and no wake-up under way.
func readRecorded(group []*Write, call *script.Call, answers map[*Write]Recorded) (wakes []int) {
	reply, err := call.Result()
	list, _ := reply.([]any)
	if err == nil && len(list) == 0 {
		err = errReply
	}
	if err == nil {
		prefixes, _ := list[0].([]any)
		for _, w := range group {
			if p := partition.Of(w.Event.Company); slices.Contains(prefixes, any(partition.Prefix(p))) {
				wakes = append(wakes, p)
			}
		}
		list = list[1:]
	}
	for _, w := range group {
		r := Recorded{}
		if err == nil && len(list) < len(w.Changes) {
			err = errReply
		}
		if err != nil {
			r.Err = fmt.Errorf("record deliveries: %w", err)
		} else {
			r.Found = make([]*Found, len(w.Changes))
			for i := range w.Changes {
				r.Found[i] = readFound(&w.Changes[i], list[i])
			}
			list = list[len(w.Changes):]
		}
		answers[w] = r
	}
	return wakes
}

// readFound is nil when the change was written, also by a try whose answer was lost.
func readFound(c *Change, reply any) *Found {
	text, conflict := reply.(string)
	switch {
	case !conflict && reply == int64(0):
		return &Found{Record: c.Base, InFlight: true}
	case !conflict && reply == int64(-1):
		return &Found{Record: &delivery.Record{}, Compacted: true}
	case !conflict, text == c.text:
		return nil
	case text == "":
		return &Found{Record: &delivery.Record{}}
	}
	rec, err := delivery.Decode(text)
	return &Found{Record: rec, Damaged: err != nil}
}

// purgeMost is how many old dead letters of a partition one call drops.
const purgeMost = 200

// PurgeDead removes dead letters past their retention from the index, a bounded number per
// partition, and returns how many are left in it. Their records expire by themselves.
func (s *Store) PurgeDead(ctx context.Context, now time.Time, partitions []int) (left int64, err error) {
	before := strconv.FormatInt(now.Add(-s.opts.Policy.DeadRetention).UnixMilli(), 10)
	old, err := pipeline.Each(ctx, s.client, partitions, func(pipe redis.Pipeliner, p int) *redis.StringSliceCmd {
		return pipe.ZRangeByScore(ctx, deadKey(p), &redis.ZRangeBy{Min: "-inf", Max: before, Count: purgeMost})
	})
	if err != nil {
		return 0, fmt.Errorf("find old dead letters: %w", err)
	}
	counts := make([]*redis.IntCmd, len(partitions))
	_, err = s.client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for i, p := range partitions {
			if refs := old[i].Val(); len(refs) > 0 {
				pipe.ZRem(ctx, deadKey(p), refs)
			}
			counts[i] = pipe.ZCard(ctx, deadKey(p))
		}
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("purge dead letters: %w", err)
	}
	for _, count := range counts {
		left += count.Val()
	}
	return left, nil
}

func isNil(err error) bool { return errors.Is(err, redis.Nil) }

// expects is the version the next write must find; "" when the record is new.
func expects(r *delivery.Record) string {
	if r.Version == 0 {
		return ""
	}
	return strconv.FormatInt(r.Version, 10)
}
