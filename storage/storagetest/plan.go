package storagetest

import (
	"context"
	"strings"
	"testing"

	"github.com/uptrace/bun"

	"spendhook/storage"
)

// WantIndex fails the test unless the plan of a query uses the index and reads
// no whole table. PostgreSQL is told to avoid reading whole tables: it prefers that for small
// ones, depending on its statistics.
func WantIndex(t *testing.T, db *storage.DB, index string, query func(bun.IDB) *bun.SelectQuery) {
	t.Helper()
	err := db.Snapshot(t.Context(), "explain", func(ctx context.Context, idb bun.IDB) error {
		if storage.IsPostgres(idb) {
			if _, err := idb.ExecContext(ctx, "SET LOCAL enable_seqscan = off"); err != nil {
				return err
			}
		}
		plan, err := Plan(ctx, idb, query(idb))
		if !storage.IsPostgres(idb) && strings.HasSuffix(index, "_pkey") {
			index = "sqlite_autoindex_" + strings.TrimSuffix(index, "_pkey")
		}
		for _, full := range []string{"Seq Scan on reimbursements", "Seq Scan on cards", "Seq Scan on card_job", "SCAN reimbursements", "SCAN cards"} {
			if strings.Contains(plan, full) {
				t.Errorf("%s: reads the whole table:\n%s", index, plan)
			}
		}
		if !strings.Contains(plan, index) {
			t.Errorf("the plan does not use the index %s:\n%s", index, plan)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// Plan returns the query plan of the database.
func Plan(ctx context.Context, db bun.IDB, q *bun.SelectQuery) (string, error) {
	prefix, columns := "EXPLAIN QUERY PLAN ", 4
	if storage.IsPostgres(db) {
		prefix, columns = "EXPLAIN ", 1
	}
	rows, err := db.QueryContext(ctx, "?", bun.Safe(prefix+q.String()))
	if err != nil {
		return "", err
	}
	defer func() { _ = rows.Close() }() // rows.Err returns the error
	var plan []string
	for rows.Next() {
		var step string
		into := []any{new(int), new(int), new(int), &step}
		if err := rows.Scan(into[4-columns:]...); err != nil {
			return "", err
		}
		plan = append(plan, step)
	}
	return strings.Join(plan, "\n"), rows.Err()
}
