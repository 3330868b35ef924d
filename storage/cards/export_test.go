package cards

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/uptrace/bun"

	"spendhook/storage"
)

// RetryItem is the wait before a failed item is retried.
const RetryItem = itemRetryWait

// Narrow restricts a query to the cards that pass the filter.
func Narrow(f Filter, q *bun.SelectQuery) *bun.SelectQuery { return narrow(f, q) }

// NextItemQuery is the query with which CreateNextCard finds an item.
func NextItemQuery(tx bun.Tx, companies string, last storage.Key) *bun.SelectQuery {
	return nextItemQuery(tx, new(itemRow), companies, last, time.Now())
}

// OutcomesQuery is the query of NextOutcomes.
func OutcomesQuery(tx bun.Tx, after uuid.UUID, limit int) *bun.SelectQuery {
	return outcomesQuery(tx, new([]itemRow), after, limit)
}

// InOrderOfIndex prepares a transaction for NextItemQuery, as CreateNextCard does.
func InOrderOfIndex(ctx context.Context, tx bun.Tx) error { return disableSort(ctx, tx) }
