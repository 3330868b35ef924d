package store

import (
	"bytes"
	"cmp"
	_ "embed" // the script
	"fmt"
	"slices"
	"strings"
	"time"

	"spendhook/dispatcher/delivery"
	"spendhook/events"
	"spendhook/events/layout"
	"spendhook/internal/partition"
	"spendhook/internal/queues"
	"spendhook/internal/script"
)

//go:embed lua/delivered.lua
var deliveredSource string

var deliveredScript = queues.Script(layout.Lua()+lib+deliveredSource, true)

// delivered reports whether a write has all deliveries of its event, each delivered at the first attempt, and nothing
// else.
func (w *Write) delivered() bool {
	if !w.Matched || w.Held || w.Fanout == 0 || len(w.Changes) != w.Fanout {
		return false
	}
	for i := range w.Changes {
		c := &w.Changes[i]
		if c.Next.Status != delivery.StatusDelivered || c.Base.Version > 0 || c.Next.OrderKey != "" || c.InFlight || c.Guarded || c.Damaged || c.Learned != nil {
			return false
		}
	}
	return true
}

// divide returns the indexes of the writes for delivered.lua, each event once, and of the others.
func divide(writes []Write) (delivered, others []int) {
	seen := make(map[events.Ref]bool, len(writes))
	for i := range writes {
		w := &writes[i]
		if w.delivered() && !seen[w.Event] {
			seen[w.Event] = true
			delivered = append(delivered, i)
		} else {
			others = append(others, i)
		}
	}
	return delivered, others
}

// deliveredCall is the call of delivered.lua for some of the writes.
func (s *Store) deliveredCall(writes []Write, group []int, now time.Time) *script.Call {
	var groups []any
	numbers := make(map[string]int, 1) // of the groups, by company and subscribers
	list := make([]any, 0, 5*len(group))
	for _, j := range group {
		w := &writes[j]
		changes := slices.Clone(w.Changes)
		slices.SortFunc(changes, func(a, b Change) int { return bytes.Compare(a.Ref.Subscriber[:], b.Ref.Subscriber[:]) })
		key := make([]byte, 0, 16*(1+len(changes)))
		key = append(key, w.Event.Company[:]...)
		for i := range changes {
			key = append(key, changes[i].Ref.Subscriber[:]...)
		}
		number, ok := numbers[string(key)]
		if !ok {
			number = len(numbers) + 1
			numbers[string(key)] = number
			groups = append(groups, partition.Prefix(partition.Of(w.Event.Company)), w.Event.Company.String(), len(changes))
			for i := range changes {
				groups = append(groups, changes[i].Ref.Subscriber.String())
			}
		}
		records, size := inValue(changes)
		list = append(list, number, w.Event.ID, changes[0].Next.Created, size, records)
	}
	p := s.opts.Policy
	args := []any{
		s.at(now), (p.Retention + deliverySlack).Milliseconds(), s.keepEvent(), cmp.Or(p.KeepDelivered, p.Retention).Milliseconds(),
		s.forHistory(), len(numbers),
	}
	keys := queues.Keys(partition.Of(writes[group[0]].Event.Company))
	return &script.Call{Script: deliveredScript, Keys: keys, Args: slices.Concat(args, groups, list)}
}

// inValue returns the records of an event's deliveries as they end its value (lua/lib.lua), and the bytes that they need
// more than an event without deliveries.
func inValue(changes []Change) (records string, more int) {
	lengths := make([]int, len(changes))
	var out strings.Builder
	for i := range changes {
		lengths[i] = len(changes[i].text)
		fmt.Fprintf(&out, "%s%06x%s", changes[i].Ref.Subscriber, lengths[i], changes[i].text)
	}
	return fmt.Sprintf("%s%08xP", out.String(), out.Len()), layout.Bytes(0, lengths...) - layout.Bytes(0)
}

// readDelivered reads the answers of delivered.lua, and returns the writes that it has not written.
func readDelivered(calls []writeCall, writes []Write, recorded []Recorded) (left []int) {
	for _, c := range calls {
		written, err := c.Result()
		for i, j := range c.writes {
			switch answers, _ := written.([]any); {
			case err != nil:
				recorded[j].Err = fmt.Errorf("record deliveries: %w", err)
			case answers[i] == int64(1):
				recorded[j].Found = make([]*Found, len(writes[j].Changes))
			default:
				left = append(left, j)
			}
		}
	}
	return left
}
