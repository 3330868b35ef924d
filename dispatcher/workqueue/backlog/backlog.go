// Package backlog measures the waiting work: its amount, the wait of the oldest work, and the
// companies with the most.
package backlog

import (
	"cmp"
	"context"
	_ "embed" // the script
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/internal/partition"
	"spendhook/internal/pipeline"
	"spendhook/internal/queues"
	"spendhook/internal/script"
)

// Total is the waiting work of some partitions.
type Total struct {
	Pending int64 // events that are not settled
	// OldestDue is the longest that due work has waited, except work that its receiver
	// delays, or has been started and put back again and again; 0: there is none.
	OldestDue time.Duration

	Quarantined int64 // entries of the quarantine
	Dead        int64 // dead letters
	// Unarchived is the number of settled events that are not written to the history yet, Behind how long the oldest of
	// them waits. Both are 0 without a history.
	Unarchived int64
	Behind     time.Duration

	Largest []Company // companies with the most pending events, the largest first

	byPartition map[int]Total
}

// Company is how many pending events a company has.
type Company struct {
	Company uuid.UUID
	Pending int64
}

func (t *Total) add(p int, of Total) {
	t.Pending += of.Pending
	t.OldestDue = max(t.OldestDue, of.OldestDue)
	t.Quarantined += of.Quarantined
	t.Dead += of.Dead
	t.Unarchived += of.Unarchived
	t.Behind = max(t.Behind, of.Behind)
	t.byPartition[p] = of
}

// Keep adds the last figures of the partitions that were not measured for t, but not their companies.
func (t *Total) Keep(last Total, partitions []int) {
	for _, p := range partitions {
		if _, measured := t.byPartition[p]; measured {
			continue
		}
		if of, known := last.byPartition[p]; known {
			t.add(p, of)
		}
	}
}

//go:embed lua/backlog.lua
var backlogSource string

var backlogScript = queues.ReadScript(backlogSource)

// skippedFor is how long a company counts as delayed by its receivers after it was left out.
const skippedFor = 15 * time.Second

// Meter measures the work that waits in Redis. Make it with New. It is safe for concurrent use.
type Meter struct {
	client       redis.UniversalClient
	keepDead     time.Duration
	skippedSince func(company uuid.UUID, at time.Time) bool
}

// New returns a Meter. Dead letters are kept for keepDead. skippedSince reports whether turns left out
// a company at the time or later, because its receivers delay its work; nil: no company was skipped.
func New(client redis.UniversalClient, keepDead time.Duration, skippedSince func(company uuid.UUID, at time.Time) bool) *Meter {
	if skippedSince == nil {
		skippedSince = func(uuid.UUID, time.Time) bool { return false }
	}
	return &Meter{client: client, keepDead: keepDead, skippedSince: skippedSince}
}

// Pending counts the events of all partitions that are not settled. Unlike Measure, it reads one
// key of each partition, however many companies there are.
func (m *Meter) Pending(ctx context.Context) (all int64, err error) {
	counts, _ := pipeline.Each(ctx, m.client, partition.All(), func(pipe redis.Pipeliner, p int) *redis.StringCmd {
		return pipe.Get(ctx, partition.Prefix(p)+"pending")
	}) // each command has its own error
	for _, count := range counts {
		n, err := count.Int64()
		if err != nil && !errors.Is(err, redis.Nil) {
			return 0, fmt.Errorf("count pending events: %w", err)
		}
		all += n
	}
	return all, nil
}

// Measure measures the waiting work of partitions. Of each partition it reads the 500 companies with
// the latest events, and finds among them up to `largest` companies with the most pending events. With
// an error, the result leaves out the partitions that could not be measured, for example because their
// shard is down.
func (m *Meter) Measure(ctx context.Context, partitions []int, largest int) (Total, error) {
	calls := make([]*script.Call, len(partitions))
	for i, p := range partitions {
		calls[i] = &script.Call{Script: backlogScript, Keys: queues.Keys(p), Args: []any{partition.Prefix(p), largest, m.keepDead.Milliseconds()}}
	}
	err := script.Run(ctx, m.client, calls...)
	if err != nil {
		err = fmt.Errorf("measure backlog: %w", err)
	}
	t := Total{byPartition: make(map[int]Total, len(partitions))}
	for i, c := range calls {
		if reply, _ := c.Reply().([]any); len(reply) == 8 { // nil after an error
			t.add(partitions[i], m.totalOf(reply))
			for company, pending := range companiesOf(reply[4]) {
				t.Largest = append(t.Largest, Company{company, pending})
			}
		}
	}
	slices.SortFunc(t.Largest, func(a, b Company) int {
		return cmp.Or(cmp.Compare(b.Pending, a.Pending), cmp.Compare(a.Company.String(), b.Company.String()))
	})
	t.Largest = t.Largest[:min(largest, len(t.Largest))]
	return t, err
}

// totalOf reads a reply of backlog.lua.
func (m *Meter) totalOf(reply []any) Total {
	lately := time.Now().Add(-skippedFor) //nolint:forbidigo // for metrics
	pending, _ := reply[0].(int64)
	waited, _ := reply[1].(int64)
	quarantined, _ := reply[2].(int64)
	dead, _ := reply[5].(int64)
	unarchived, _ := reply[6].(int64)
	behind, _ := reply[7].(int64)
	for company, ms := range companiesOf(reply[3]) {
		if !m.skippedSince(company, lately) {
			waited = max(waited, ms)
		}
	}
	return Total{
		Pending: pending, OldestDue: time.Duration(waited) * time.Millisecond, Quarantined: quarantined, Dead: dead,
		Unarchived: unarchived, Behind: time.Duration(behind) * time.Millisecond,
	}
}

// companiesOf reads a list of companies and numbers in turn.
func companiesOf(reply any) iter.Seq2[uuid.UUID, int64] {
	return func(yield func(uuid.UUID, int64) bool) {
		list, _ := reply.([]any)
		for at := 0; at+1 < len(list); at += 2 {
			name, _ := list[at].(string)
			n, _ := list[at+1].(int64)
			if company, err := uuid.Parse(name); err == nil && !yield(company, n) {
				return
			}
		}
	}
}
