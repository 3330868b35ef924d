package archive_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/uptrace/bun"

	"spendhook/events"
	"spendhook/events/history"
	"spendhook/storage"
	"spendhook/storage/archive"
	"spendhook/storage/storagetest"
)

const (
	planDays      = 3
	planCompanies = 40
	planEvents    = 900 // of each company
)

// fill writes events of many companies, each with a delivery, and some dead.
func fill(t *testing.T, db *storage.DB) {
	t.Helper()
	s := archive.New(db)
	type row struct {
		Company storage.Key `bun:"company,type:bytea"`
	}
	var rows []row
	for i := range planCompanies {
		company := uuid.UUID{byte(i)}
		rows = append(rows, row{storage.Key(company)})
		for d := range planDays {
			write(t, s, event(company, "first", float64(noon+int64(d)*day)))
		}
	}
	const numbers = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?), c (company) AS (?)"
	for _, statement := range []string{
		"INSERT INTO history_events (company, id, accepted, nonce, place, value) " + numbers +
			" SELECT company, 'e' || i, ? + i % ? * ? + i, 1, ? + i % ? * ? + i, company FROM n, c",
		"INSERT INTO history_deliveries (company, id, accepted, nonce, subscriber, created, died, member, version, record) " + numbers +
			" SELECT company, 'e' || i, ? + i % ? * ? + i, 1, company, ? + i % ? * ? + i, CASE WHEN i % 50 = 0 THEN 1 ELSE 0 END, 'e' || i, 1, company FROM n, c",
	} {
		err := db.Write(t.Context(), "fill", func(ctx context.Context, tx bun.Tx) error {
			_, err := tx.NewRaw(statement, planEvents, tx.NewValues(&rows), noon, planDays, day, noon, planDays, day).Exec(ctx)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	listed := make([]row, 5000)
	for i := range listed {
		listed[i].Company = storage.Key(uuid.NewSHA1(uuid.Nil, []byte{byte(i), byte(i >> 8)}))
	}
	err := db.Write(t.Context(), "fill", func(ctx context.Context, tx bun.Tx) error {
		_, err := tx.NewRaw("INSERT INTO history_companies (company, partition_number) WITH c (company) AS (?) SELECT company, 9 FROM c", tx.NewValues(&listed)).Exec(ctx)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Analyze(t.Context(), "history_events", "history_deliveries", "history_companies"); err != nil {
		t.Fatal(err)
	}
}

// Both databases use an index for each query, without a hint, and do not sort what Index reads.
func TestQueriesUseIndexes(t *testing.T) {
	t.Parallel()
	storagetest.OnBothHistories(t, func(t *testing.T, db *storage.DB) {
		t.Helper()
		fill(t, db)
		w := windows(t, db)[0]
		company := uuid.UUID{7}
		span := func(sub *uuid.UUID, deaths bool) history.Span {
			return history.Span{Company: company, Subscriber: sub, Deaths: deaths, High: noon + 100*day}
		}
		for index, sp := range map[string]history.Span{
			"events_place":       span(nil, false),
			"deliveries_created": span(&company, false),
			"deliveries_dead ":   span(nil, true),
			"deliveries_dead_of": span(&company, true),
		} {
			for _, ascending := range []bool{false, true} {
				for _, after := range []history.Place{{}, {MS: float64(noon + day), ID: "e9"}} {
					sp.Ascending = ascending
					wantPlan(t, db, index, true, func(db bun.IDB) fmt.Stringer { return archive.IndexQuery(db, sp, after, 100, w) })
				}
			}
		}
		var refs []events.Ref
		var list []history.Archived
		for i := range 100 {
			ref := events.Ref{Company: company, ID: fmt.Sprint("e", i)}
			refs, list = append(refs, ref), append(list, event(company, ref.ID, float64(noon)))
		}
		all := list
		for i := range planCompanies {
			all = append(all, event(uuid.UUID{byte(i)}, "e", float64(noon)))
		}
		wantPlan(t, db, "events_pkey", false, func(db bun.IDB) fmt.Stringer { return archive.EventsQuery(db, refs, w) })
		wantPlan(t, db, "events_pkey", false, func(db bun.IDB) fmt.Stringer { return archive.AcceptancesQuery(db, refs, w) })
		wantPlan(t, db, "deliveries_pkey", false, func(db bun.IDB) fmt.Stringer { return archive.DeliveriesQuery(db, list, w) })
		wantPlan(t, db, "deliveries_pkey", false, func(db bun.IDB) fmt.Stringer { return archive.DeleteQuery(db, list[:30]) })
		wantPlan(t, db, "events_place", true, func(db bun.IDB) fmt.Stringer {
			return archive.OfCompanyQuery(db, company, time.UnixMilli(noon+1000*day), 100, w)
		})
		wantPlan(t, db, "events_place", false, func(db bun.IDB) fmt.Stringer { return archive.EmptyQuery(db, all, w) })
		wantPlan(t, db, "terms", false, func(db bun.IDB) fmt.Stringer {
			return archive.SearchQuery(db, history.Span{Company: company, Search: "rare", High: noon + day}, noon/day, history.Place{})
		})
		wantPlan(t, db, "companies_order", true, func(db bun.IDB) fmt.Stringer { return archive.CompaniesQuery(db, company, 10) })
	})
}

// partitionIndexes are the names of the indexes of a partition in PostgreSQL, after that of the table; PostgreSQL cuts them.
var partitionIndexes = map[string]string{
	"events_place":       "_company_accepted_place_id_idx",
	"deliveries_created": "_company_subscriber_created_id_a",
	"deliveries_dead ":   "_company_died_member_accepted_id",
	"deliveries_dead_of": "_company_subscriber_died_id_acc",
	"events_pkey":        "_pkey",
	"deliveries_pkey":    "_pkey",
	"companies_order":    "history_companies_order",
	"terms":              "_terms_idx", // of SQLite: the full-text index
}

// wantPlan fails the test unless the plan of a query uses an index and reads no whole table of events or deliveries.
func wantPlan(t *testing.T, db *storage.DB, index string, sorted bool, query func(bun.IDB) fmt.Stringer) {
	t.Helper()
	err := db.Query(t.Context(), "explain", func(ctx context.Context, idb bun.IDB) error {
		plan, err := storagetest.Plan(ctx, idb, query(idb))
		name := strings.ReplaceAll("history_"+index, "history_events_pkey", "sqlite_autoindex_history_events")
		name = strings.ReplaceAll(name, "history_deliveries_pkey", "sqlite_autoindex_history_deliveries")
		if storage.IsPostgres(idb) {
			name = partitionIndexes[index]
		}
		for _, bad := range []string{"Seq Scan on history_events", "Seq Scan on history_deliveries", "SCAN history_events", "SCAN history_deliveries"} {
			if strings.Contains(plan, bad) {
				t.Errorf("%s: reads a whole table:\n%s", index, plan)
			}
		}
		if !strings.Contains(plan, name) || sorted && (strings.Contains(plan, "Sort  (") || strings.Contains(plan, "B-TREE")) {
			t.Errorf("%s: sorts, or does not use the index %s:\n%s", index, name, plan)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
