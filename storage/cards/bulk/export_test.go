package bulk

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/uptrace/bun"

	"spendhook/storage/column"
)

// RetryItem is retryItem.
const RetryItem = retryItem

// NextItemQuery is what CreateNextCard looks for an item with.
func NextItemQuery(tx bun.Tx, companies string, last column.Key) *bun.SelectQuery {
	return nextItemQuery(tx, new(itemRow), companies, last, time.Now())
}

// OutcomesQuery is what PendingOutcomes reads with.
func OutcomesQuery(tx bun.Tx, company uuid.UUID, limit int) *bun.SelectQuery {
	return outcomesQuery(tx, new([]itemRow), company, limit)
}

// UnpublishedQuery is what UnpublishedCompanies reads with.
func UnpublishedQuery(tx bun.Tx) *bun.SelectQuery { return unpublishedQuery(tx) }

// InOrderOfIndex is what CreateNextCard does first.
func InOrderOfIndex(ctx context.Context, tx bun.Tx) error { return disableSort(ctx, tx) }
