package cards_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/uptrace/bun"

	"spendhook/storage"
	"spendhook/storage/cards"
	"spendhook/storage/cards/cardstest"
	"spendhook/storage/storagetest"
)

// Neither database sorts, or reads the whole table, to find the next item.
func TestTheNextItemHasAnIndex(t *testing.T) {
	t.Parallel()
	cardstest.OnBoth(t, func(h *cardstest.Data) {
		for range 10 {
			storagetest.Must(h.CreateCardJob(h.Context(), acme, cardstest.Requests(500), cards.Once{}))(h)
		}
		for _, companies := range []string{"company_uuid > ?", "company_uuid <= ?"} {
			wantInOrder(h.T, h.DB, "card_job_items_pending", func(ctx context.Context, tx bun.Tx) (*bun.SelectQuery, error) {
				return cards.NextItemQuery(tx, companies, storage.Key(acme)), cards.InOrderOfIndex(ctx, tx)
			})
		}
	})
}

// Neither database sorts, or reads the whole outbox, to find the outcomes of the next
// company.
func TestOutcomesHaveAnIndex(t *testing.T) {
	t.Parallel()
	cardstest.OnBoth(t, func(h *cardstest.Data) {
		for range 10 {
			storagetest.Must(h.CreateCardJob(h.Context(), acme, cardstest.Requests(500), cards.Once{}))(h)
		}
		exec(h.T, h.DB, "INSERT INTO card_outbox (request_uuid, company_uuid, job_uuid, item_index, finished_at)"+
			" SELECT request_uuid, company_uuid, job_uuid, item_index, created_at FROM card_job_items")
		exec(h.T, h.DB, "ANALYZE card_outbox")
		exec(h.T, h.DB, "ANALYZE card_job_items")
		wantInOrder(h.T, h.DB, "card_outbox_order", func(_ context.Context, tx bun.Tx) (*bun.SelectQuery, error) {
			return cards.OutcomesQuery(tx, uuid.Nil, 200), nil
		})
	})
}

// wantInOrder checks that a query reads an index in its order, and neither sorts nor reads the
// whole table. PostgreSQL is told to avoid reading whole tables: it prefers that for small ones.
func wantInOrder(t *testing.T, db *storage.DB, index string, query func(context.Context, bun.Tx) (*bun.SelectQuery, error)) {
	t.Helper()
	err := db.Write(t.Context(), "explain", func(ctx context.Context, tx bun.Tx) error {
		if storage.IsPostgres(tx) {
			if _, err := tx.ExecContext(ctx, "SET LOCAL enable_seqscan = off"); err != nil {
				return err
			}
		}
		q, err := query(ctx, tx)
		if err != nil {
			return err
		}
		plan, err := storagetest.Plan(ctx, tx, q)
		if !strings.Contains(plan, index) || strings.Contains(plan, "Sort") || strings.Contains(plan, "B-TREE") || strings.Contains(plan, "Seq Scan") {
			t.Errorf("sorts, or does not use the index %s:\n%s", index, plan)
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

// A failed item is retried later, and other items are worked on meanwhile.
func TestAFailedItemBlocksNoOthers(t *testing.T) {
	t.Parallel()
	db := storagetest.Open(t, storage.Options{})
	s := cardstest.New(t, db)
	const refuse = `CREATE TRIGGER refuse BEFORE UPDATE OF status ON card_job_items WHEN old.name = 'bad' BEGIN SELECT RAISE(ABORT, 'refused'); END`
	exec(t, db, refuse)
	list := cardstest.Requests(3)
	list[0].Alias = "bad"
	if _, err := s.CreateCardJob(t.Context(), acme, list, cards.Once{}); err != nil {
		t.Fatal(err)
	}
	now := s.Clock
	next := func(at time.Time, wantIndex int, wantFound, wantFailure bool) {
		t.Helper()
		s.Clock = at
		item, found, err := s.CreateNextCard(t.Context())
		if found != wantFound || (err != nil) != wantFailure || item.Index != wantIndex {
			t.Fatalf("item %d, found %v, %v", item.Index, found, err)
		}
	}
	next(now, 0, true, true)
	next(now, 1, true, false)
	next(now, 2, true, false)
	next(now, 0, false, false)
	next(now.Add(cards.RetryItem), 0, true, true)
	exec(t, db, "DROP TRIGGER refuse")
	next(now.Add(2*cards.RetryItem), 0, true, false)
}
