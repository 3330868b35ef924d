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
)

// Company is how many pending events a company has.
type Company struct {
	Company uuid.UUID
	Pending int64
}

// Largest lists up to n companies with the most pending events of those partitions
// that t was measured in, the most first. A company has no more than its partition,
// so a partition with less than the smallest of the list is not looked at; of the
// others a page of companies is read each time, and those that are known. So it may take
// some calls until a company is found. One goroutine calls it.
func (m *Meter) Largest(ctx context.Context, t Total, n int) ([]Company, error) {
	known := make(map[int][]Company)
	for _, k := range m.known {
		known[partition.Of(k.Company)] = append(known[partition.Of(k.Company)], k)
	}
	partitions := m.candidates(t, n, known)
	calls := make([]*script.Call, len(partitions))
	for i, p := range partitions {
		args := []any{partition.Prefix(p), m.from[p], largestPage, n}
		for _, k := range known[p] {
			args = append(args, k.Company.String())
		}
		calls[i] = &script.Call{Script: largestScript, Keys: queues.Keys(p), Args: args}
	}
	if err := script.Run(ctx, m.client, nil, calls...); err != nil {
		return nil, fmt.Errorf("find the largest companies: %w", err)
	}
	m.known, m.from = nil, make(map[int]int, len(partitions))
	for i, c := range calls {
		reply, _ := c.Reply().([]any)
		if len(reply) == 0 {
			continue
		}
		next, _ := reply[0].(int64)
		m.from[partitions[i]] = int(next)
		for at := 1; at+1 < len(reply); at += 2 {
			name, _ := reply[at].(string)
			company, err := uuid.Parse(name)
			if pending, _ := reply[at+1].(int64); err == nil {
				m.known = append(m.known, Company{company, pending})
			}
		}
	}
	slices.SortFunc(m.known, func(a, b Company) int {
		return cmp.Or(cmp.Compare(b.Pending, a.Pending), cmp.Compare(a.Company.String(), b.Company.String()))
	})
	m.known = m.known[:min(n, len(m.known))]
	return slices.Clone(m.known), nil
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
