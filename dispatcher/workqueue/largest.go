package workqueue

import (
	"cmp"
	"context"
	_ "embed" // the script
	"fmt"
	"slices"

	"github.com/google/uuid"

	"spendhook/internal/partition"
	"spendhook/internal/script"
)

//go:embed lua/largest.lua
var largestSource string

var largestScript = Script(largestSource, true)

// What one look for the largest companies reads at most.
const (
	largestPartitions = 64
	largestPage       = 200 // companies of a partition
)

// CompanyBacklog is how many pending events a company has.
type CompanyBacklog struct {
	Company uuid.UUID
	Pending int64
}

// largest is what a search for the largest companies knows from one look to the
// next. The caller of Queue.Largest owns it.
type largest struct {
	known []CompanyBacklog // the most first
	from  map[int]int      // where the next page of a partition begins
}

// Largest lists up to n companies with the most pending events of those partitions
// that b was measured in, the most first. A company has no more than its partition,
// so a partition with less than the smallest of the list is not looked at; of the
// others a page of companies is read each time, and those that are known. So it may take
// some calls until a company is found. One goroutine calls it.
func (q *Queue) Largest(ctx context.Context, b Backlog, n int) ([]CompanyBacklog, error) {
	l := &q.largest
	known := make(map[int][]CompanyBacklog)
	for _, k := range l.known {
		known[partition.Of(k.Company)] = append(known[partition.Of(k.Company)], k)
	}
	partitions := l.worthALook(b, n, known)
	calls := make([]*script.Call, len(partitions))
	for i, p := range partitions {
		args := []any{partition.Prefix(p), l.from[p], largestPage, n}
		for _, k := range known[p] {
			args = append(args, k.Company.String())
		}
		calls[i] = &script.Call{Script: largestScript, Keys: Keys(p), Args: args}
	}
	if err := script.Run(ctx, q.opts.Client, nil, calls...); err != nil {
		return nil, fmt.Errorf("find the largest companies: %w", err)
	}
	l.known, l.from = nil, make(map[int]int, len(partitions))
	for i, c := range calls {
		reply, _ := c.Reply().([]any)
		if len(reply) == 0 {
			continue
		}
		next, _ := reply[0].(int64)
		l.from[partitions[i]] = int(next)
		for at := 1; at+1 < len(reply); at += 2 {
			company, err := uuid.Parse(text(reply[at]))
			if pending, _ := reply[at+1].(int64); err == nil {
				l.known = append(l.known, CompanyBacklog{company, pending})
			}
		}
	}
	slices.SortFunc(l.known, func(a, b CompanyBacklog) int {
		return cmp.Or(cmp.Compare(b.Pending, a.Pending), cmp.Compare(a.Company.String(), b.Company.String()))
	})
	l.known = l.known[:min(n, len(l.known))]
	return slices.Clone(l.known), nil
}

// worthALook lists the partitions that may have one of the n largest companies, those
// with the most pending events first.
func (l *largest) worthALook(b Backlog, n int, known map[int][]CompanyBacklog) []int {
	smallest := int64(0)
	if len(l.known) >= n {
		smallest = l.known[len(l.known)-1].Pending
	}
	var out []int
	for p, pending := range b.byPartition {
		if pending > smallest || known[p] != nil {
			out = append(out, p)
		}
	}
	slices.SortFunc(out, func(p, o int) int {
		return cmp.Or(cmp.Compare(b.byPartition[o], b.byPartition[p]), cmp.Compare(p, o))
	})
	return out[:min(largestPartitions, len(out))]
}
