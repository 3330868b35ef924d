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

// Company is how many pending events a company has.
type Company struct {
	Company uuid.UUID
	Pending int64
}

// Largest lists up to n companies with the most pending events in partitions, the most first. In
// each partition it reads the 500 companies with the latest events. With an error, it leaves out the
// partitions that could not be read.
func (m *Meter) Largest(ctx context.Context, partitions []int, n int) ([]Company, error) {
	calls := make([]*script.Call, len(partitions))
	for i, p := range partitions {
		calls[i] = &script.Call{Script: largestScript, Keys: queues.Keys(p), Args: []any{partition.Prefix(p), n}}
	}
	err := script.Run(ctx, m.client, calls...)
	if err != nil {
		err = fmt.Errorf("find the largest companies: %w", err)
	}
	var found []Company
	for _, c := range calls {
		reply, _ := c.Reply().([]any) // nil after an error
		for at := 0; at+1 < len(reply); at += 2 {
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
	return found[:min(n, len(found))], err
}
