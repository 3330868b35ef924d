package bulk_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/uptrace/bun"

	"spendhook/storage"
	"spendhook/storage/cards/bulk"
	"spendhook/storage/cards/cardstest"
	"spendhook/storage/column"
	"spendhook/storage/creations"
	"spendhook/storage/storagetest"
)

// Neither database sorts, or reads the whole table, to find the next item.
func TestTheNextItemHasAnIndex(t *testing.T) {
	t.Parallel()
	cardstest.OnBoth(t, func(h *cardstest.Data) {
		for range 10 {
			storagetest.Must(h.CreateCardJob(h.Context(), acme, cardstest.Requests(500), creations.Once{}))(h)
		}
		for _, companies := range []string{"company_uuid > ?", "company_uuid <= ?"} {
			wantNextByIndex(h.T, h.DB, companies, column.Key(acme))
		}
	})
}

// wantNextByIndex looks whether the next item is read from the index, however
// many wait behind it.
func wantNextByIndex(t *testing.T, db *storage.DB, companies string, last column.Key) {
	t.Helper()
	err := db.Write(t.Context(), "explain", func(ctx context.Context, tx bun.Tx) error {
		if err := bulk.InOrderOfIndex(ctx, tx); err != nil {
			return err
		}
		plan, err := storagetest.Plan(ctx, tx, bulk.NextItemQuery(tx, companies, last))
		if !strings.Contains(plan, "card_job_items_pending") || strings.Contains(plan, "Sort") || strings.Contains(plan, "B-TREE") {
			t.Errorf("%s: sorts, or does not use the index:\n%s", companies, plan)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func exec(t *testing.T, db *storage.DB, statement string) {
	t.Helper()
	err := db.Write(t.Context(), "exec", func(ctx context.Context, tx bun.Tx) error {
		_, err := tx.ExecContext(ctx, statement)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// An item that fails, whatever the reason, is tried again later; others go on.
func TestAnItemThatFailsHoldsUpNobody(t *testing.T) {
	t.Parallel()
	db := storagetest.Open(t, storage.Options{})
	s := cardstest.New(t, db)
	const refuse = `CREATE TRIGGER refuse BEFORE UPDATE OF status ON card_job_items WHEN old.alias = 'bad' BEGIN SELECT RAISE(ABORT, 'refused'); END`
	exec(t, db, refuse)
	list := cardstest.Requests(3)
	list[0].Alias = "bad"
	if _, err := s.CreateCardJob(t.Context(), acme, list, creations.Once{}); err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	next := func(at time.Time, wantIndex int, wantFound, wantFailure bool) {
		t.Helper()
		item, found, err := s.CreateNextCard(t.Context(), at)
		if found != wantFound || (err != nil) != wantFailure || item.Index != wantIndex {
			t.Fatalf("item %d, found %v, %v", item.Index, found, err)
		}
	}
	next(now, 0, true, true)
	next(now, 1, true, false)
	next(now, 2, true, false)
	next(now, 0, false, false)
	next(now.Add(bulk.RetryItem), 0, true, true)
	exec(t, db, "DROP TRIGGER refuse")
	next(now.Add(2*bulk.RetryItem), 0, true, false)
}
