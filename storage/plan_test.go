package storage

import (
	"bytes"
	"context"
	"database/sql"
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
			s, company := filledStore(t, o, DemoData{Companies: 3, Users: 200, Cards: 1000, Reimbursements: 1500})
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
				q := f.apply(s.r.NewSelect().Table("cards"))
				if index == "cards_issued" { // any of them can count all, only this one has their order
					q = q.Column("uuid").OrderExpr("issued_at DESC, uuid").Limit(20)
				} else {
					q = q.ColumnExpr("count(*)")
				}
				wantIndex(t, s, q, index)
			}
			for range 10 {
				if _, err := s.CreateCardJob(t.Context(), company, someRequests(500), Once{}); err != nil {
					t.Fatal(err)
				}
			}
			for _, companies := range []string{"company_uuid > ?", "company_uuid <= ?"} {
				wantNextByIndex(t, s, companies, key(company))
			}
		})
	}
}

// few rows are enough where their number shows nothing.
var few = DemoData{Companies: 1, Users: 2, Locations: 1, Cards: 1, Reimbursements: 20, Statements: 1}

func filledStore(t *testing.T, o Options, d DemoData) (*Store, uuid.UUID) {
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
	if err := WriteDemoData(&data, d); err != nil {
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

func someRequests(n int) []CardRequest {
	list := make([]CardRequest, n)
	for i := range list {
		list[i] = CardRequest{Type: "VIRTUAL", Alias: "card", UserUUID: uuid.New()}
	}
	return list
}

// An item that fails, whatever the reason, is tried again later; others go on.
func TestAnItemThatFailsHoldsUpNobody(t *testing.T) {
	t.Parallel()
	s, company := filledStore(t, Options{DataDir: t.TempDir()}, few)
	const refuse = `CREATE TRIGGER refuse BEFORE UPDATE OF status ON card_job_items WHEN old.alias = 'bad' BEGIN SELECT RAISE(ABORT, 'refused'); END`
	if _, err := s.w.ExecContext(t.Context(), refuse); err != nil {
		t.Fatal(err)
	}
	list := someRequests(3)
	list[0].Alias = "bad"
	if _, err := s.CreateCardJob(t.Context(), company, list, Once{}); err != nil {
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
	next(now.Add(retryItem), 0, true, true)
	if _, err := s.w.ExecContext(t.Context(), "DROP TRIGGER refuse"); err != nil {
		t.Fatal(err)
	}
	next(now.Add(2*retryItem), 0, true, false)
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
			s, company := filledStore(t, o, few)
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
	for _, full := range []string{"Seq Scan on reimbursements", "Seq Scan on cards", "Seq Scan on card_job", "SCAN reimbursements", "SCAN cards"} {
		if strings.Contains(plan, full) {
			t.Errorf("%s: reads the whole table:\n%s", index, plan)
		}
	}
	if !strings.Contains(plan, index) {
		t.Errorf("%s does not serve the filter:\n%s", index, plan)
	}
}

// wantNextByIndex looks whether the next item is read from the index, however
// many wait behind it.
func wantNextByIndex(t *testing.T, s *Store, companies string, last key) {
	t.Helper()
	err := s.write(t.Context(), "explain", func(ctx context.Context, tx bun.Tx) error {
		if err := s.inOrderOfIndex(ctx, tx); err != nil {
			return err
		}
		plan, err := planOf(ctx, s, tx.Tx, nextItemQuery(tx, new(itemRow), companies, last, time.Now()))
		if !strings.Contains(plan, "card_job_items_pending") || strings.Contains(plan, "Sort") || strings.Contains(plan, "B-TREE") {
			t.Errorf("%s: sorts, or does not use the index:\n%s", companies, plan)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func explain(t *testing.T, s *Store, q *bun.SelectQuery) string {
	t.Helper()
	plan, err := planOf(t.Context(), s, s.r.DB, q)
	if err != nil {
		t.Fatal(err)
	}
	return plan
}

type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

func planOf(ctx context.Context, s *Store, db querier, q *bun.SelectQuery) (string, error) {
	prefix := "EXPLAIN QUERY PLAN "
	if s.postgres() {
		prefix = "EXPLAIN "
	}
	rows, err := db.QueryContext(ctx, prefix+q.String())
	if err != nil {
		return "", err
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
			return "", err
		}
		plan = append(plan, step)
	}
	return strings.Join(plan, "\n"), rows.Err()
}
