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
	"spendhook/storage/column"
	"spendhook/storage/importer"
	"spendhook/storage/storagetest"
)

// Every filter of 4.1 has an index that serves it: neither database reads the
// whole table for any of them. The next item has one too.
func TestEveryFilterHasAnIndex(t *testing.T) {
	t.Parallel()
	storagetest.OnBoth(t, func(t *testing.T, db *storage.DB) {
		t.Helper()
		some, company := uuid.New(), uuid.New()
		storagetest.LoadDemo(t, db, importer.DemoData{First: company, Companies: 3, Users: 200, Cards: 1000, Reimbursements: 1, Statements: 1})
		for index, f := range map[string]cards.Filter{
			"cards_issued":      {},
			"cards_holder":      {UserUUID: &some},
			"users_username":    {Username: "zoe"},
			"users_erp_id":      {UserERPID: "ERP-1"},
			"cards_status":      {Status: "EXPIRED"},
			"cards_type":        {Type: "VISA_VIRTUAL"},
			"cards_periodicity": {Periodicity: "DAILY"},
		} {
			f.Company = &company
			storagetest.WantIndex(t, db, index, func(db bun.IDB) *bun.SelectQuery {
				q := f.Apply(db.NewSelect().Table("cards"))
				if index == "cards_issued" { // any of them can count all, only this one has their order
					return q.Column("uuid").OrderExpr("issued_at DESC, uuid").Limit(20)
				}
				return q.ColumnExpr("count(*)")
			})
		}
		s := cards.New(cards.Options{DB: db})
		for range 10 {
			storagetest.Must(s.CreateCardJob(t.Context(), company, requests(500), cards.Once{}))(t)
		}
		for _, companies := range []string{"company_uuid > ?", "company_uuid <= ?"} {
			wantNextByIndex(t, db, companies, column.Key(company))
		}
	})
}

// wantNextByIndex looks whether the next item is read from the index, however
// many wait behind it.
func wantNextByIndex(t *testing.T, db *storage.DB, companies string, last column.Key) {
	t.Helper()
	err := db.Write(t.Context(), "explain", func(ctx context.Context, tx bun.Tx) error {
		if err := cards.InOrderOfIndex(ctx, tx); err != nil {
			return err
		}
		plan, err := storagetest.Plan(ctx, tx, cards.NextItemQuery(tx, companies, last))
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
	storagetest.LoadCompanies(t, db)
	s := cards.New(cards.Options{DB: db})
	const refuse = `CREATE TRIGGER refuse BEFORE UPDATE OF status ON card_job_items WHEN old.alias = 'bad' BEGIN SELECT RAISE(ABORT, 'refused'); END`
	exec(t, db, refuse)
	list := requests(3)
	list[0].Alias = "bad"
	if _, err := s.CreateCardJob(t.Context(), acme, list, cards.Once{}); err != nil {
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
	next(now.Add(cards.RetryItem), 0, true, true)
	exec(t, db, "DROP TRIGGER refuse")
	next(now.Add(2*cards.RetryItem), 0, true, false)
}
