package reimbursements_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"
	"github.com/uptrace/bun"

	"spendhook/internal/calendar"
	"spendhook/storage"
	"spendhook/storage/importer"
	"spendhook/storage/reimbursements"
	"spendhook/storage/storagetest"
)

// Every filter of 4.3 and 4.4 has an index that serves it: neither database reads
// the whole table for any of them.
func TestEveryFilterHasAnIndex(t *testing.T) {
	t.Parallel()
	storagetest.OnBoth(t, func(t *testing.T, db *storage.DB) {
		t.Helper()
		day, some, company := calendar.Date(20_500), uuid.New(), uuid.New()
		storagetest.LoadDemo(t, db, importer.DemoData{First: company, Companies: 3, Users: 200, Cards: 1, Reimbursements: 1500})
		only := reimbursements.DateRange{Start: &day, End: &day}
		for index, f := range map[string]reimbursements.Filter{
			"reimbursements_recency":   {LastUpdateDate: only},
			"reimbursements_creation":  {RequestCreationDate: only},
			"reimbursements_expense":   {ExpenseDate: only},
			"reimbursements_approval":  {FinalApprovalDate: only},
			"reimbursements_payment":   {PaymentDate: only},
			"reimbursements_category":  {CategoryCodes: []int32{5812}},
			"reimbursements_status":    {Statuses: []string{"PAID"}},
			"reimbursements_requester": {RequesterUUIDs: []uuid.UUID{some}},
			"users_name":               {RequesterName: "zoe"},
			"reimbursements_pkey":      {UUIDs: []uuid.UUID{some}},
		} {
			f.Company = &company
			storagetest.WantIndex(t, db, index, f.Counted)
		}
	})
}

// asked records the text of queries on reimbursements.
type asked struct {
	mu      sync.Mutex
	queries []string
}

func (*asked) BeforeQuery(ctx context.Context, _ *bun.QueryEvent) context.Context { return ctx }

func (a *asked) AfterQuery(_ context.Context, e *bun.QueryEvent) {
	if strings.Contains(e.Query, "reimbursements") && strings.HasPrefix(e.Query, "SELECT") {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.queries = append(a.queries, e.Query)
	}
}

// However a company's reimbursements are filtered, and whichever page is read, no
// query of it reads the whole table.
func TestNoPageReadsTheWholeTable(t *testing.T) {
	t.Parallel()
	storagetest.OnBoth(t, func(t *testing.T, db *storage.DB) {
		t.Helper()
		from, to, company, s := calendar.Date(20_000), calendar.Date(20_600), uuid.New(), reimbursements.New(db)
		storagetest.LoadDemo(t, db, importer.DemoData{First: company, Companies: 3, Users: 200, Cards: 1, Reimbursements: 4000})
		var a asked
		err := db.Query(t.Context(), "watch", func(_ context.Context, db bun.IDB) error {
			db.(*bun.DB).AddQueryHook(&a) //nolint:staticcheck // WithQueryHook makes another pool
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		days := reimbursements.DateRange{Start: &from, End: &to}
		for name, f := range map[string]reimbursements.Filter{
			"none": {}, "update": {LastUpdateDate: days}, "creation": {RequestCreationDate: days}, "expense": {ExpenseDate: days},
			"approval": {FinalApprovalDate: days}, "payment": {PaymentDate: days},
			"status": {Statuses: []string{"PAID", "APPROVED"}}, "category": {CategoryCodes: []int32{5812, 4111}},
			"name": {RequesterName: "zoe"}, "any name": {RequesterName: "a"},
			"several": {Statuses: []string{"PAID"}, RequestCreationDate: days, RequesterName: "a"},
		} {
			f.Company = &company
			for _, page := range []int{0, 15} {
				f.Page = storage.Page{Number: page, Size: 20}
				a.queries = nil
				if _, _, err := s.List(t.Context(), f); err != nil {
					t.Fatal(err)
				}
				if len(a.queries) == 0 {
					t.Fatalf("%s: nothing was asked", name)
				}
				for _, q := range slices.Clone(a.queries) {
					wantNoScan(t, db, name, q)
				}
			}
		}
	})
}

func wantNoScan(t *testing.T, db *storage.DB, name, query string) {
	t.Helper()
	err := db.Query(t.Context(), "explain", func(ctx context.Context, idb bun.IDB) error {
		plan, err := storagetest.Plan(ctx, idb, idb.NewSelect().TableExpr("(?) AS q", bun.Safe(query)))
		for _, whole := range []string{"Seq Scan on reimbursements", "SCAN reimbursements", "SCAN r\n"} {
			if strings.Contains(plan+"\n", whole) {
				t.Errorf("%s: reads the whole table: %s\n%s", name, query, plan)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// countings counts the queries that count.
type countings struct{ n atomic.Int64 }

func (*countings) BeforeQuery(ctx context.Context, _ *bun.QueryEvent) context.Context { return ctx }

func (c *countings) AfterQuery(_ context.Context, e *bun.QueryEvent) {
	if strings.Contains(e.Query, "GROUP BY") {
		c.n.Add(1)
	}
}

// Calls with the same filter count once. After a change the next call counts again.
func TestOneCallCountsForTheNextOnes(t *testing.T) {
	t.Parallel()
	storagetest.OnBoth(t, func(t *testing.T, db *storage.DB) {
		t.Helper()
		company, s := uuid.New(), reimbursements.New(db)
		storagetest.LoadDemo(t, db, importer.DemoData{First: company, Companies: 1, Users: 2, Cards: 1, Reimbursements: 20})
		var c countings
		err := db.Query(t.Context(), "watch", func(_ context.Context, db bun.IDB) error {
			db.(*bun.DB).AddQueryHook(&c) //nolint:staticcheck // WithQueryHook makes another pool
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		for round := range int64(2) {
			for range 3 {
				_, total, err := s.List(t.Context(), reimbursements.Filter{Company: &company, Statuses: []string{"PAID"}})
				if err != nil || total == 0 {
					t.Errorf("%d, %v", total, err)
				}
			}
			if n := c.n.Load(); n != round+1 {
				t.Errorf("round %d: counted %d times", round, n)
			}
			err := db.Write(t.Context(), "change", func(ctx context.Context, tx bun.Tx) error {
				q := tx.NewUpdate().Table("companies").Set("reimbursements_rev = reimbursements_rev + 1")
				_, err := q.Where("uuid = ?", storage.Key(company)).Exec(ctx)
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
		}
	})
}
