package workqueue

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"spendhook/internal/partition"
	"spendhook/internal/queues"
	"spendhook/internal/script"
)

// Bounds of one claim.
const (
	claimBytes   = 1 << 20 // bytes of events of a partition; the last event may exceed them
	claimsFull   = 16      // partitions of a call that get claimBytes each; more partitions share claimBytes * claimsFull
	claimQuantum = 50      // deliveries of a company while others have work
	claimLeast   = 8       // deliveries of a partition, however many others have work
	claimShort   = 50      // deliveries of a partition while others have work
	claimLong    = 400     // deliveries of a call
)

// Event is a claimed event that is to be matched with subscribers.
type Event struct {
	ID    string
	Value string      // as package events stores it; "" when the event is gone or cannot be read
	Known []uuid.UUID // subscribers that have a delivery of the event already
	// Suspect: a replica was lost while the event was in flight. Call BeginSuspect before and EndSuspect after it is matched.
	Suspect bool
}

// Delivery is a claimed delivery of an endpoint queue.
type Delivery struct {
	Subscriber uuid.UUID
	EventID    string
	Record     string // as package delivery encodes it; "" when there is none
	Value      string // the event, as package events stores it; "" when the event is gone or cannot be read
}

// Batch is the work of one company that one claim returned. Each item is noted as in
// flight, under the token of the partition's owner, until it is recorded or requeued.
type Batch struct {
	Company    uuid.UUID
	Token      string      // under which the partition's owner has noted the work
	Version    int64       // of the company's subscribers
	Backlogged []uuid.UUID // subscribers whose deliveries must go through their endpoint queue
	Paused     []uuid.UUID // the paused ones among Backlogged
	Asked      time.Time   // when the claim was sent to Redis
	Events     []Event
	Deliveries []Delivery
	Jobs       []uuid.UUID
}

var (
	errNotOwner   = errors.New("another replica owns the partition")
	errRanAlready = errors.New("the claim ran before, and its answer was lost")
)

// part is a partition that this replica owns.
type part struct {
	id    int
	token string
}

// claimed is the answer of one claim.
type claimed struct {
	part
	wake    bool          // work remains: a wake-up must be enqueued
	skipped []uuid.UUID   // companies that were skipped: they hold their share of this replica's memory
	next    time.Duration // until the rate limit of an endpoint queue allows a delivery; negative: none waits
	batches []Batch
	err     error

	// damaged has the companies with a damaged key, and the error: none of their work was claimed,
	// or only a part.
	damaged map[uuid.UUID]string
}

// claim claims at most `most` deliveries of each partition, in one pipeline. Each answer
// has its own error. number is unique to this call.
func (q *Queue) claim(ctx context.Context, number uint64, parts []part, most int, shares map[uuid.UUID]int, others int) []claimed {
	listed := make(map[int][]any)
	for company, share := range shares {
		p := partition.Of(company)
		listed[p] = append(listed[p], company.String(), share)
	}
	bytes := claimBytes * claimsFull / max(claimsFull, len(parts))
	calls := make([]*script.Call, len(parts))
	for i, p := range parts {
		calls[i] = &script.Call{
			Script: claimScript,
			Keys:   queues.Keys(p.id),
			Args: append([]any{
				partition.Prefix(p.id), p.token, number, most, bytes, claimQuantum,
				q.opts.EndpointLimit, q.opts.BreakerFailures, others, q.opts.HostLimit,
			}, listed[p.id]...),
		}
	}
	asked := time.Now()                          //nolint:forbidigo // for the age of the claim
	_ = script.Run(ctx, q.opts.Client, calls...) // each call keeps its own error
	out := make([]claimed, len(calls))
	for i, p := range parts {
		c := calls[i]
		out[i] = claimed{part: p}
		if reply, err := c.Result(); err != nil {
			out[i].err = fmt.Errorf("claim work: %w", err)
		} else {
			out[i].read(reply, asked)
		}
	}
	return out
}

func (c *claimed) read(reply any, asked time.Time) {
	list, _ := reply.([]any)
	switch {
	case len(list) == 1 && list[0] == int64(-1):
		c.err = errNotOwner
		return
	case len(list) == 1:
		c.err = errRanAlready
		return
	}
	wake, _ := list[0].(int64)
	c.wake = wake == 1
	c.skipped = parseIDs(list[1])
	next, _ := list[2].(int64)
	c.next = time.Duration(next) * time.Millisecond
	companies, _ := list[3].([]any)
	c.damaged = make(map[uuid.UUID]string)
	for i := 0; i+1 < len(companies); i += 2 {
		c.damaged[parseID(companies[i])] = text(companies[i+1])
	}
	for _, v := range list[4:] {
		c.batches = append(c.batches, readBatch(v, c.token, asked))
	}
}

// readBatch reads the result of the Lua function batch.
func readBatch(reply any, token string, asked time.Time) Batch {
	parts, _ := reply.([]any)
	b := Batch{Company: parseID(parts[0]), Token: token, Jobs: parseIDs(parts[5]), Asked: asked}
	queued, _ := parts[2].([]any)
	for _, member := range queued {
		if id, paused := strings.CutPrefix(text(member), queues.PausedMark); paused {
			b.Paused = append(b.Paused, parseID(id))
		} else {
			b.Backlogged = append(b.Backlogged, parseID(id))
		}
	}
	b.Version, _ = strconv.ParseInt(text(parts[1]), 10, 64) // an absent version is 0
	events, _ := parts[3].([]any)
	for i := 0; i+2 < len(events); i += 3 {
		id, suspect := strings.CutPrefix(text(events[i]), "!")
		b.Events = append(b.Events, Event{ID: id, Value: text(events[i+1]), Known: parseIDs(events[i+2]), Suspect: suspect})
	}
	deliveries, _ := parts[4].([]any)
	for i := 0; i+3 < len(deliveries); i += 4 {
		b.Deliveries = append(b.Deliveries, Delivery{
			Subscriber: parseID(deliveries[i]), EventID: text(deliveries[i+1]),
			Record: text(deliveries[i+2]), Value: text(deliveries[i+3]),
		})
	}
	return b
}

func text(v any) string {
	s, _ := v.(string)
	return s
}

func parseID(v any) uuid.UUID {
	id, _ := uuid.Parse(text(v)) // only our scripts write it
	return id
}

func parseIDs(v any) []uuid.UUID {
	list, _ := v.([]any)
	out := make([]uuid.UUID, 0, len(list))
	for _, e := range list {
		if id, err := uuid.Parse(text(e)); err == nil {
			out = append(out, id)
		}
	}
	return out
}
