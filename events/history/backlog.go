package history

import (
	"cmp"
	"context"
	_ "embed" // the script
	"errors"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/dispatcher/workqueue/backlog"
	"spendhook/events"
	"spendhook/events/layout"
	"spendhook/internal/partition"
	"spendhook/internal/script"
)

//go:embed lua/backlogs.lua
var backlogsSource string

var backlogsScript = redis.NewScript(backlogsSource)

// Pending counts the events of a company that are not settled.
func (r *Reader) Pending(ctx context.Context, company uuid.UUID) (int64, error) {
	n, err := r.client.HGet(ctx, layout.StateKey(company), "pending").Int64()
	if errors.Is(err, redis.Nil) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("%w: count pending events: %w", events.ErrUnavailable, err)
	}
	return n, nil
}

// Backlogs lists the companies with the most pending events, the largest first and n
// at most. In each partition it reads the 500 companies with the latest events.
func (r *Reader) Backlogs(ctx context.Context, n int) ([]backlog.Company, error) {
	calls := make([]*script.Call, partition.Count)
	for p := range calls {
		calls[p] = &script.Call{Script: backlogsScript, Keys: []string{companiesKey(p)}, Args: []any{partition.Prefix(p) + "c:", n}}
	}
	if err := script.Run(ctx, r.client, nil, calls...); err != nil {
		return nil, fmt.Errorf("%w: measure backlogs: %w", events.ErrUnavailable, err)
	}
	var found []backlog.Company
	for _, call := range calls {
		pairs, _ := call.Reply().([]any)
		for i := 0; i+1 < len(pairs); i += 2 {
			name, _ := pairs[i].(string)
			pending, _ := pairs[i+1].(int64)
			if company, err := uuid.Parse(name); err == nil {
				found = append(found, backlog.Company{Company: company, Pending: pending})
			}
		}
	}
	slices.SortFunc(found, func(a, b backlog.Company) int {
		return cmp.Or(cmp.Compare(b.Pending, a.Pending), cmp.Compare(a.Company.String(), b.Company.String()))
	})
	return found[:min(n, len(found))], nil
}
