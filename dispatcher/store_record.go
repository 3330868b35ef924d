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

// recordChunk bounds the deliveries of one script call, and with them how long
// Redis does nothing else; an event's are never split.
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
	groups := groupWrites(writes)
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

// groupWrites puts smooth writes of a company into groups; every other write is
// a group of its own.
func groupWrites(writes []write) [][]*write {
	var groups [][]*write
	type open struct{ at, deliveries int }
	current := make(map[uuid.UUID]open) // the group that a company's smooth writes go to
	for i := range writes {
		w := &writes[i]
		if !w.smooth() {
			groups = append(groups, []*write{w})
			continue
		}
		o, ok := current[w.event.Company]
		if !ok || o.deliveries >= recordChunk {
			o = open{at: len(groups)}
			groups = append(groups, nil)
		}
		groups[o.at] = append(groups[o.at], w)
		o.deliveries += 1 + len(w.changes)
		current[w.event.Company] = o
	}
	return groups
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

func (s *Store) deliveredCall(group []*write, now time.Time) *script.Call {
	company := group[0].event.Company
	p := events.Partition(company)
	numbers := make(map[uuid.UUID]int) // of subscribers
	var subs []uuid.UUID
	for _, w := range group {
		for _, ch := range w.changes {
			if _, ok := numbers[ch.ref.Subscriber]; !ok {
				subs = append(subs, ch.ref.Subscriber)
				numbers[ch.ref.Subscriber] = len(subs)
			}
		}
	}
	c := &script.Call{
		Script: deliveredScript,
		Keys:   append(make([]string, 0, 2+len(group)+len(subs)), events.OpenKey(p), delayedKey(p)),
		Args: append(make([]any, 0, 5+2*len(group)+5*len(subs)),
			now.UnixMilli(), (s.policy.Retention + settleSlack).Milliseconds(), company.String(), len(group), len(subs)),
	}
	for _, w := range group {
		c.Keys = append(c.Keys, deliveriesKey(w.event))
		c.Args = append(c.Args, w.event.ID, flag(w.settled))
	}
	for _, sub := range subs {
		c.Keys = append(c.Keys, allOfSubscriber(company, sub))
		c.Args = append(c.Args, sub.String())
	}
	for i, w := range group {
		for j := range w.changes {
			ch := &w.changes[j]
			c.Args = append(c.Args, i+1, numbers[ch.ref.Subscriber], ch.next.Created, ch.text)
		}
	}
	return c
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
