package dispatcher

import (
	"context"
	_ "embed" // the scripts
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/events"
	"spendhook/internal/script"
)

var (
	//go:embed lua/record.lua
	recordSource string
	//go:embed lua/delivered.lua
	deliveredSource string

	recordScript    = redis.NewScript(recordSource)
	deliveredScript = redis.NewScript(deliveredSource)
)

// change is one delivery to be written: next replaces base, if base is still
// what Redis holds.
type change struct {
	ref        ref
	base, next *record
	text       string // next as it was written
}

// write is what record writes of one event in one step.
type write struct {
	event   events.Ref
	changes []change
	settled bool // the event's dispatch is complete
}

// smooth reports whether all that the write has is deliveries that were
// delivered at their first attempt.
func (w *write) smooth() bool {
	for i := range w.changes {
		if c := &w.changes[i]; c.base.Version != 0 || c.next.Status != StatusDelivered {
			return false
		}
	}
	return true
}

// recordChunk bounds the events of one script call, and with them how long
// Redis does nothing else.
const recordChunk = 64

// record writes in one pipeline. In the same round trip it forgets done, the
// in-flight tokens of tasks whose records an earlier call wrote. The answer
// holds, for each write and change in order, nil when it was written or the
// record found instead (one with Version 0 when there was none). After an error
// the same writes may be tried again: what was written is recognised.
func (s *Store) record(ctx context.Context, now time.Time, writes []write, replica string, done []string) ([][]*record, error) {
	for _, w := range writes {
		for j := range w.changes {
			c := &w.changes[j]
			var err error
			if c.text, err = c.next.encode(); err != nil {
				return nil, err
			}
		}
	}
	groups := s.groupWrites(writes)
	calls := make([]*script.Call, len(groups))
	for i, g := range groups {
		calls[i] = s.recordCall(g, now)
	}
	forget := func(p redis.Pipeliner) {
		if len(done) > 0 {
			p.HDel(ctx, inFlightKey(replica), done...)
		}
	}
	if err := script.Run(ctx, s.client, forget, calls...); err != nil {
		return nil, fmt.Errorf("record deliveries: %w", err)
	}
	found := make(map[*write][]*record, len(writes))
	for i, g := range groups {
		if err := readRecorded(g, calls[i].Reply(), found); err != nil {
			return nil, err
		}
	}
	out := make([][]*record, len(writes))
	for i := range writes {
		out[i] = found[&writes[i]]
	}
	return out, nil
}

// groupWrites puts smooth writes into groups; every other write is a group of
// its own.
func (s *Store) groupWrites(writes []write) [][]*write {
	var groups [][]*write
	var smooth []*write
	for i := range writes {
		if w := &writes[i]; w.smooth() {
			smooth = append(smooth, w)
		} else {
			groups = append(groups, []*write{w})
		}
	}
	byPartition := func(w *write) int { return events.Partition(w.event.Company) }
	return append(groups, script.Groups(s.client, smooth, recordChunk, byPartition)...)
}

func (s *Store) recordCall(group []*write, now time.Time) *script.Call {
	if group[0].smooth() {
		return s.deliveredCall(group, now)
	}
	return s.changedCall(group[0], now)
}

func (s *Store) changedCall(w *write, now time.Time) *script.Call {
	p, company := events.Partition(w.event.Company), w.event.Company
	c := &script.Call{
		Script: recordScript,
		Keys: []string{
			deliveriesKey(w.event), events.OpenKey(p), delayedKey(p), deadKey(p),
			events.EventKey(w.event), liveOfCompany(company), deadOfCompany(company),
		},
		Args: []any{
			w.event.String(), w.event.ID, flag(w.settled), now.UnixMilli(),
			(s.policy.Retention + settleSlack).Milliseconds(), s.policy.DeadRetention.Milliseconds(),
		},
	}
	for i := range w.changes {
		ch := &w.changes[i]
		due := ""
		if ch.next.Due > 0 {
			due = strconv.FormatInt(ch.next.Due, 10)
		}
		sub := ch.ref.Subscriber
		c.Keys = append(c.Keys, allOfSubscriber(company, sub), liveOfSubscriber(company, sub), deadOfSubscriber(company, sub))
		c.Args = append(c.Args, sub.String(), ch.base.expects(), ch.text, ch.next.Created, due)
	}
	return c
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

type companySubscriber struct{ company, subscriber uuid.UUID }

func (s *Store) deliveredCall(group []*write, now time.Time) *script.Call {
	var companies numbered[uuid.UUID]
	var subs numbered[companySubscriber]
	var ofEvents, ofSubs []string
	var aboutEvents, aboutDeliveries []any
	for i, w := range group {
		company := w.event.Company
		ofEvents = append(ofEvents, deliveriesKey(w.event))
		aboutEvents = append(aboutEvents, companies.of(company), w.event.ID, flag(w.settled))
		for j := range w.changes {
			ch := &w.changes[j]
			number := subs.of(companySubscriber{company, ch.ref.Subscriber})
			if number > len(ofSubs) {
				ofSubs = append(ofSubs, allOfSubscriber(company, ch.ref.Subscriber))
			}
			aboutDeliveries = append(aboutDeliveries, i+1, number, ch.next.Created, ch.text)
		}
	}
	keys := make([]string, 0, 2*len(companies.all)+len(ofEvents)+len(ofSubs))
	args := append(make([]any, 0, 5+len(companies.all)+len(aboutEvents)+len(subs.all)+len(aboutDeliveries)),
		now.UnixMilli(), (s.policy.Retention + settleSlack).Milliseconds(), len(companies.all), len(group), len(subs.all))
	for _, c := range companies.all {
		p := events.Partition(c)
		keys = append(keys, events.OpenKey(p), delayedKey(p))
		args = append(args, c.String())
	}
	args = append(args, aboutEvents...)
	for _, sub := range subs.all {
		args = append(args, sub.subscriber.String())
	}
	return &script.Call{
		Script: deliveredScript,
		Keys:   append(append(keys, ofEvents...), ofSubs...),
		Args:   append(args, aboutDeliveries...),
	}
}

func flag(on bool) string {
	if on {
		return "1"
	}
	return "0"
}

// readRecorded adds to found what a call answered for the writes of a group.
func readRecorded(group []*write, reply any, found map[*write][]*record) error {
	list, ok := reply.([]any)
	for _, w := range group {
		n := len(w.changes)
		if !ok || len(list) < n {
			return errors.New("record deliveries: unexpected reply")
		}
		records := make([]*record, n)
		for i, v := range list[:n] {
			rec, err := readConflict(&w.changes[i], v)
			if err != nil {
				return err
			}
			records[i] = rec
		}
		found[w], list = records, list[n:]
	}
	return nil
}

// readConflict is nil when the change was written, also by a try whose answer
// was lost.
func readConflict(c *change, reply any) (*record, error) {
	text, conflict := reply.(string)
	switch {
	case !conflict, text == c.text:
		return nil, nil
	case text == "":
		return &record{}, nil
	}
	return decodeRecord(text)
}
