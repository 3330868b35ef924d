package backlog

import (
	"cmp"
	"context"
	_ "embed" // the script
	"fmt"
	"slices"

	"github.com/google/uuid"

	"spendhook/dispatcher/workqueue/queues"
	"spendhook/internal/partition"
	"spendhook/internal/script"
)

//go:embed lua/largest.lua
var largestSource string

var largestScript = queues.Script(largestSource, true)

// Bounds of one search for the largest companies.
const (
	largestPartitions = 64
	largestPage       = 200 // companies of a partition
	topPage           = 500 // the same, of Top
)

// Company is how many pending events a company has.
type Company struct {
	Company uuid.UUID
	Pending int64
}

// Largest lists up to n companies with the most pending events in the partitions of t, the most
// first. It skips partitions with fewer pending events than the last company of the list. In
// the others it reads the companies it knows and one page of the rest, so that it may find a
// company only after some calls. Only one goroutine may call it.
func (m *Meter) Largest(ctx context.Context, t Total, n int) ([]Company, error) {
	known := make(map[int][]Company)
	for _, k := range m.known {
		known[partition.Of(k.Company)] = append(known[partition.Of(k.Company)], k)
	}
	partitions := m.candidates(t, n, known)
	calls := make([]*script.Call, len(partitions))
	for i, p := range partitions {
		calls[i] = largestCall(p, m.from[p], largestPage, n, known[p])
	}
	found, next, err := m.largest(ctx, calls, n)
	if err != nil {
		return nil, err
	}
	m.known, m.from = found, make(map[int]int, len(partitions))
	for i, p := range partitions {
		m.from[p] = next[i]
	}
	return slices.Clone(m.known), nil
}

// Top lists up to n companies with the most pending events, the most first. In each partition
// it reads the 500 companies with the latest events. It is safe for concurrent use.
func (m *Meter) Top(ctx context.Context, n int) ([]Company, error) {
	calls := make([]*script.Call, partition.Count)
	for p := range calls {
		calls[p] = largestCall(p, 0, topPage, n, nil)
	}
	found, _, err := m.largest(ctx, calls, n)
	return found, err
}

func largestCall(p, from, page, n int, known []Company) *script.Call {
	args := []any{partition.Prefix(p), from, page, n}
	for _, k := range known {
		args = append(args, k.Company.String())
	}
	return &script.Call{Script: largestScript, Keys: queues.Keys(p), Args: args}
}

// largest runs calls of largest.lua. It returns the n companies with the most pending events,
// and where the next page of each call begins.
func (m *Meter) largest(ctx context.Context, calls []*script.Call, n int) (found []Company, next []int, err error) {
	if err := script.Run(ctx, m.client, calls...); err != nil {
		return nil, nil, fmt.Errorf("find the largest companies: %w", err)
	}
	next = make([]int, len(calls))
	for i, c := range calls {
		reply, _ := c.Reply().([]any)
		if len(reply) == 0 {
			continue
		}
		from, _ := reply[0].(int64)
		next[i] = int(from)
		for at := 1; at+1 < len(reply); at += 2 {
			name, _ := reply[at].(string)
			company, err := uuid.Parse(name)
			if pending, _ := reply[at+1].(int64); err == nil {
				found = append(found, Company{company, pending})
			}
		}
	}
	slices.SortFunc(found, func(a, b Company) int {
		return cmp.Or(cmp.Compare(b.Pending, a.Pending), cmp.Compare(a.Company.String(), b.Company.String()))
	})
	return found[:min(n, len(found))], next, nil
}

// candidates lists the partitions that may have one of the n largest companies, those
// with the most pending events first.
func (m *Meter) candidates(t Total, n int, known map[int][]Company) []int {
	smallest := int64(0)
	if len(m.known) >= n {
		smallest = m.known[len(m.known)-1].Pending
	}
	var out []int
	for p, pending := range t.byPartition {
		if pending > smallest || known[p] != nil {
			out = append(out, p)
		}
	}
	slices.SortFunc(out, func(p, o int) int {
		return cmp.Or(cmp.Compare(t.byPartition[o], t.byPartition[p]), cmp.Compare(p, o))
	})
	return out[:min(largestPartitions, len(out))]
}
