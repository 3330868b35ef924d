package cards

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/uptrace/bun"

	"spendhook/storage"
)

// RetryItem is retryItem.
const RetryItem = retryItem

// Narrow is what narrows a list of cards.
func Narrow(f Filter, q *bun.SelectQuery) *bun.SelectQuery { return narrow(f, q) }

// NextItemQuery is what CreateNextCard looks for an item with.
func NextItemQuery(tx bun.Tx, companies string, last storage.Key) *bun.SelectQuery {
	return nextItemQuery(tx, new(itemRow), companies, last, time.Now())
}

// OutcomesQuery is what NextOutcomes reads with.
func OutcomesQuery(tx bun.Tx, after uuid.UUID, limit int) *bun.SelectQuery {
	return outcomesQuery(tx, new([]itemRow), after, limit)
}

// InOrderOfIndex is what CreateNextCard does first.
func InOrderOfIndex(ctx context.Context, tx bun.Tx) error { return disableSort(ctx, tx) }
