package storage

import (
	"bytes"
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/uptrace/bun"

	"spendhook/internal/pgtest"
)

// Every filter of 4.1, 4.3 and 4.4 has an index that serves it: neither
// database reads the whole table for any of them.
func TestEveryFilterHasAnIndex(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]Options{"sqlite": {DataDir: t.TempDir()}, "postgres": {URL: pgtest.New(t)}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, company := filledStore(t, o)
			day, some := Date(20_500), uuid.New()
			only := DateRange{Start: &day, End: &day}
			for index, f := range map[string]ReimbursementFilter{
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
				q := f.apply(s.r.NewSelect().Table("reimbursements"), "").ColumnExpr("?, count(*)", bun.Safe(f.dayColumn())).
					GroupExpr("?", bun.Safe(f.dayColumn()))
				wantIndex(t, s, q, index)
			}
			for index, f := range map[string]CardFilter{
				"cards_issued":      {},
				"cards_holder":      {UserUUID: &some},
				"users_username":    {Username: "zoe"},
				"users_erp_id":      {UserERPID: "ERP-1"},
				"cards_status":      {Status: "EXPIRED"},
				"cards_type":        {Type: "VISA_VIRTUAL"},
				"cards_periodicity": {Periodicity: "DAILY"},
			} {
				f.Company = &company
				wantIndex(t, s, f.apply(s.r.NewSelect().Table("cards").ColumnExpr("count(*)")), index)
			}
		})
	}
}

func filledStore(t *testing.T, o Options) (*Store, uuid.UUID) {
	t.Helper()
	o.Timeout = 20 * time.Second
	s, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	if err := s.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	var data bytes.Buffer
	if err := WriteDemoData(&data, DemoData{Companies: 4, Users: 500, Cards: 2000, Reimbursements: 3000}); err != nil {
		t.Fatal(err)
	}
	in := Importer{Store: s}
	if _, err := in.Run(t.Context(), &data); err != nil {
		t.Fatal(err)
	}
	cards, _, err := s.Cards(t.Context(), CardFilter{Page: Page{Size: 1}})
	if err != nil {
		t.Fatal(err)
	}
	return s, cards[0].CompanyUUID
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
	for name, o := range map[string]Options{"sqlite": {DataDir: t.TempDir()}, "postgres": {URL: pgtest.New(t)}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, company := filledStore(t, o)
			var c countings
			s.r = s.r.WithQueryHook(&c)
			for round := range int64(2) {
				var group sync.WaitGroup
				for range 32 {
					group.Go(func() {
						_, total, err := s.Reimbursements(t.Context(), ReimbursementFilter{Company: &company, Statuses: []string{"PAID"}})
						if err != nil || total == 0 {
							t.Errorf("%d, %v", total, err)
						}
					})
				}
				group.Wait()
				if n := c.n.Load(); n != round+1 {
					t.Errorf("round %d: counted %d times", round, n)
				}
				q := s.w.NewUpdate().Table("companies").Set("reimbursements_rev = reimbursements_rev + 1").Where("uuid = ?", key(company))
				if _, err := q.Exec(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// wantIndex looks for the index in the plan, and for a scan of a whole table.
func wantIndex(t *testing.T, s *Store, q *bun.SelectQuery, index string) {
	t.Helper()
	plan := explain(t, s, q)
	if !s.postgres() && strings.HasSuffix(index, "_pkey") {
		index = "sqlite_autoindex_" + strings.TrimSuffix(index, "_pkey")
	}
	for _, full := range []string{"Seq Scan on reimbursements", "Seq Scan on cards", "SCAN reimbursements", "SCAN cards"} {
		if strings.Contains(plan, full) {
			t.Errorf("%s: reads the whole table:\n%s", index, plan)
		}
	}
	if !strings.Contains(plan, index) {
		t.Errorf("%s does not serve the filter:\n%s", index, plan)
	}
}

func explain(t *testing.T, s *Store, q *bun.SelectQuery) string {
	t.Helper()
	prefix := "EXPLAIN QUERY PLAN "
	if s.postgres() {
		prefix = "EXPLAIN "
	}
	rows, err := s.r.DB.QueryContext(t.Context(), prefix+q.String())
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var plan []string
	for rows.Next() {
		var step string
		into := []any{&step}
		if !s.postgres() {
			into = []any{new(int), new(int), new(int), &step}
		}
		if err := rows.Scan(into...); err != nil {
			t.Fatal(err)
		}
		plan = append(plan, step)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return strings.Join(plan, "\n")
}
