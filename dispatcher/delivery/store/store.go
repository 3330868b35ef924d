// Package store writes deliveries, and reads them: one, those of an event, lists. Its scripts write a
// record, and where the delivery waits, in one atomic step. It reads the deliveries of events that Redis has compacted or
// forgotten from a history.Archive, if there is one.
package store

import (
	"context"
	_ "embed" // the scripts
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"spendhook/dispatcher/delivery"
	"spendhook/events"
	"spendhook/events/history"
	"spendhook/events/layout"
	"spendhook/events/operational"
	"spendhook/internal/clock"
	"spendhook/internal/partition"
	"spendhook/internal/queues"
	"spendhook/internal/script"
)

var (
	//go:embed lua/lib.lua
	lib string
	//go:embed lua/record.lua
	recordSource string

	recordScript = queues.Script(operational.Lua()+lib+recordSource, true)

	//go:embed lua/read.lua
	readSource string
	readScript = queues.ReadScript(layout.Lua() + lib + readSource)
)

// Options configures New. Client and Policy are required.
type Options struct {
	Client redis.UniversalClient
	Policy delivery.Policy
	// Archive is the history; nil: there is none. With one, a settled event waits until Archived was called for it.
	Archive history.Archive
	// Now is the clock; nil: Redis's for what the scripts keep and remove. A replica's clock must not decide that.
	Now func() time.Time
}

// Store keeps deliveries in Redis. It is safe for concurrent use.
//
// Delivery, Get, Stored, OfEvent, SumUp and List read the deliveries of an event from the Archive when Redis has compacted
// or forgotten the event; errors of the Archive wrap events.ErrUnavailable. Stats, CompanyStats, Ahead, and lists of live
// deliveries are of Redis alone, as are all writes: a change of a delivery that only the Archive has is refused, since
// Redis has no version of it. InRedis is for callers that write what they read.
type Store struct {
	client redis.UniversalClient
	opts   Options
	clock  func() time.Time // of the scripts; nil: Redis's
}

// New returns a store on the client, which it does not close.
func New(o Options) *Store {
	given := o.Now
	o.Now = clock.Or(given)
	return &Store{client: o.Client, opts: o, clock: given}
}

// InRedis returns a Store without the Archive.
func (s *Store) InRedis() *Store {
	kept := *s
	kept.opts.Archive = nil
	return &kept
}

// deliverySlack is how much longer than the retention a delivery is kept: longer than its event.
const deliverySlack = layout.Grace + 5*time.Minute

// Change changes one delivery: Next replaces Base if Base is still the stored version. A
// Base.Version of 0 means that the delivery does not exist yet.
type Change struct {
	Ref        delivery.Ref
	Base, Next *delivery.Record
	InFlight   bool     // the delivery was marked as in flight under Write.Token; the mark ends
	Guarded    bool     // do not write while an attempt is under way
	Damaged    bool     // the stored record of a live delivery cannot be read: replace it
	Learned    *Learned // of its endpoint; nil: nothing new
	Notice     string   // the notice of its death, see operational.Store.Encode; "" for none

	text string // Next as it was written
}

// Learned is what the owner of a partition has learned of an endpoint.
type Learned struct {
	Failures int           // unreachable attempts in a row
	Wait     time.Duration // for which the endpoint is not to be attempted
}

// Write is an atomic write of deliveries of one event. Matched ends its matching: with these
// changes and earlier ones, every matching subscriber has a delivery, except disabled ones
// when Held is set.
type Write struct {
	Event   events.Ref
	Token   string // of the writer as the owner of the partition; "": it is not
	Changes []Change
	Matched bool
	Fanout  int // deliveries of the event, when Matched
	Held    bool
}

// matched encodes Matched, Held and Fanout for the script.
func (w *Write) matched() string {
	switch {
	case !w.Matched:
		return ""
	case w.Held:
		return strconv.Itoa(w.Fanout) + "h"
	}
	return strconv.Itoa(w.Fanout)
}

// Found is why a change was not written.
type Found struct {
	Record   *delivery.Record // the stored record; Version 0 when there is none
	InFlight bool             // an attempt is under way, and the change was guarded
	// Compacted says that the event was compacted: it gets no new deliveries.
	Compacted bool
	Damaged   bool // the stored record cannot be read: Record is nil
}

// Recorded is the answer of Record for one Write. Found holds nil for each of
// its changes that was written.
type Recorded struct {
	Found []*Found
	Err   error
}

// recordChunk bounds the writes of one script call, and so how long the call blocks Redis.
const recordChunk = 64

// Record sends writes to Redis in one pipeline, and some of them, which are not new, in a second one. A failed
// write may be repeated: Record recognises changes that an earlier call wrote. wakes are the
// partitions whose owners are to be woken.
func (s *Store) Record(ctx context.Context, now time.Time, writes []Write) (recorded []Recorded, wakes []int, err error) {
	for _, w := range writes {
		for j := range w.Changes {
			c := &w.Changes[j]
			if c.text, err = c.Next.Encode(); err != nil {
				return nil, nil, err
			}
		}
	}
	recorded = make([]Recorded, len(writes))
	delivered, others := divide(writes)
	first := s.calls(writes, delivered, now, s.deliveredCall)
	second := s.calls(writes, others, now, s.recordCall)
	run(ctx, s.client, append(first, second...))
	again := s.calls(writes, readDelivered(first, writes, recorded), now, s.recordCall)
	run(ctx, s.client, again)
	return recorded, readRecorded(append(second, again...), writes, recorded), nil
}

// writeCall is a call of a script for some of the writes of Record.
type writeCall struct {
	*script.Call

	writes []int
}

// calls makes the calls for some of the writes.
func (s *Store) calls(writes []Write, some []int, now time.Time, call func([]Write, []int, time.Time) *script.Call) (out []writeCall) {
	for _, group := range script.Groups(s.client, some, recordChunk, func(i int) int { return partition.Of(writes[i].Event.Company) }) {
		out = append(out, writeCall{call(writes, group, now), group})
	}
	return out
}

func run(ctx context.Context, client redis.UniversalClient, calls []writeCall) {
	all := make([]*script.Call, len(calls))
	for i, c := range calls {
		all[i] = c.Call
	}
	_ = script.Run(ctx, client, all...) // each call has its own error
}

// readRecorded reads the answers of record.lua, and returns the partitions whose owners are to be woken.
func readRecorded(calls []writeCall, writes []Write, recorded []Recorded) (wakes []int) {
	for _, c := range calls {
		reply, err := c.Result()
		found, _ := reply.([]any)
		at := 1
		for _, j := range c.writes {
			if err != nil {
				recorded[j].Err = fmt.Errorf("record deliveries: %w", err)
				continue
			}
			p := partition.Of(writes[j].Event.Company)
			prefixes, _ := found[0].([]any)
			if slices.Contains(prefixes, any(partition.Prefix(p))) {
				wakes = append(wakes, p)
			}
			for k := range writes[j].Changes {
				recorded[j].Found = append(recorded[j].Found, readFound(&writes[j].Changes[k], found[at]))
				at++
			}
		}
	}
	slices.Sort(wakes)
	return slices.Compact(wakes)
}

// keepEvent is how many ms an event is kept after it was accepted.
func (s *Store) keepEvent() int64 { return (s.opts.Policy.Retention + layout.Grace).Milliseconds() }

func (s *Store) recordCall(writes []Write, group []int, now time.Time) *script.Call {
	p := s.opts.Policy
	args := []any{
		s.at(now), (p.Retention + deliverySlack).Milliseconds(), p.DeadRetention.Milliseconds(), s.keepEvent(), s.forHistory(), len(group),
	}
	for _, j := range group {
		w := &writes[j]
		args = append(args, partition.Prefix(partition.Of(w.Event.Company)), w.Event.Company.String(), w.Event.ID,
			w.Token, w.matched(), len(w.Changes))
		for i := range w.Changes {
			c := &w.Changes[i]
			version := ""
			var failures, wait any = "", ""
			if c.Base.Version > 0 {
				version = strconv.FormatInt(c.Base.Version, 10)
			}
			if c.Learned != nil {
				failures, wait = c.Learned.Failures, c.Learned.Wait.Milliseconds()
			}
			args = append(args, c.Ref.Subscriber.String(), version, c.text, c.Next.Created, c.due(now), c.flags(), failures, wait, c.Notice)
		}
	}
	return &script.Call{Script: recordScript, Keys: queues.Keys(partition.Of(writes[group[0]].Event.Company)), Args: args}
}

// at is the time for the scripts.
func (s *Store) at(now time.Time) any {
	if s.clock == nil {
		return ""
	}
	return now.UnixMilli()
}

// due returns in how many ms the delivery is due, "" for never. The script adds them to the time
// of Redis, because the clocks of replicas may differ.
func (c *Change) due(now time.Time) string {
	if c.Next.Due == 0 || !c.Next.Status.Live() {
		return ""
	}
	return strconv.FormatInt(max(0, c.Next.Due-now.UnixMilli()), 10)
}

func (c *Change) flags() string {
	out := make([]byte, 0, 4)
	flag := func(on bool, name byte) {
		if on {
			out = append(out, name)
		}
	}
	flag(c.InFlight, 'c')
	flag(c.Guarded, 'g')
	flag(c.Damaged, 'd')
	return string(out)
}

// Refused reports whether an error of a Recorded occurred while the script ran: a key of one of the
// companies of its call is damaged, and the same call would fail again.
func Refused(err error) bool {
	reply, ok := errors.AsType[redis.Error](err)
	return ok && strings.Contains(reply.Error(), "user_script") // Redis names the script in such errors
}

// readFound reads the reply for one change. It returns nil when the change was written, by this call or by
// an earlier one whose answer was lost.
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
