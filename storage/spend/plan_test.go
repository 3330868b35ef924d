package spend_test

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"
	"github.com/uptrace/bun"

	"spendhook/storage"
	"spendhook/storage/importer"
	"spendhook/storage/spend"
	"spendhook/storage/storagetest"
)

// Every filter of 4.3 and 4.4 has an index that serves it: neither database reads
// the whole table for any of them.
func TestEveryFilterHasAnIndex(t *testing.T) {
	t.Parallel()
	storagetest.OnBoth(t, func(t *testing.T, db *storage.DB) {
		t.Helper()
		day, some, company := spend.Date(20_500), uuid.New(), uuid.New()
		storagetest.LoadDemo(t, db, importer.DemoData{First: company, Companies: 3, Users: 200, Cards: 1, Reimbursements: 1500, Statements: 1})
		only := spend.DateRange{Start: &day, End: &day}
		for index, f := range map[string]spend.ReimbursementFilter{
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

// countings counts the queries that count.
type countings struct{ n atomic.Int64 }

func (*countings) BeforeQuery(ctx context.Context, _ *bun.QueryEvent) context.Context { return ctx }

func (c *countings) AfterQuery(_ context.Context, e *bun.QueryEvent) {
	if strings.Contains(e.Query, "GROUP BY") {
		c.n.Add(1)
	}
}

// Whatever is asked by many at once is counted once, and again after a change.
func TestOneCountsForAll(t *testing.T) {
	t.Parallel()
	storagetest.OnBoth(t, func(t *testing.T, db *storage.DB) {
		t.Helper()
		company, s := uuid.New(), spend.New(db)
		storagetest.LoadDemo(t, db, importer.DemoData{First: company, Companies: 1, Users: 2, Cards: 1, Reimbursements: 20, Statements: 1})
		var c countings
		err := db.Query(t.Context(), "watch", func(_ context.Context, db bun.IDB) error {
			db.(*bun.DB).AddQueryHook(&c) //nolint:staticcheck // WithQueryHook makes another pool
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		for round := range int64(2) {
			var group sync.WaitGroup
			for range 32 {
				group.Go(func() {
					_, total, err := s.Reimbursements(t.Context(), spend.ReimbursementFilter{Company: &company, Statuses: []string{"PAID"}})
					if err != nil || total == 0 {
						t.Errorf("%d, %v", total, err)
					}
				})
			}
			group.Wait()
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
