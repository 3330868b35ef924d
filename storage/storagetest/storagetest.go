// Package storagetest has helpers for tests with migrated databases and data in them. The first
// database of a test binary is migrated, the others are copies of the first one.
package storagetest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/uptrace/bun"

	"spendhook/internal/invalid"
	"spendhook/internal/pgtest"
	"spendhook/storage"
	"spendhook/storage/importer"
)

// timeout is the time-out of database calls on a machine that is busy with other tests.
const timeout = 20 * time.Second

// SQLite returns a data directory with an empty database for this test only.
func SQLite(tb testing.TB) string {
	tb.Helper()
	files, err := migrated()
	if err != nil {
		tb.Fatalf("storagetest: %v", err)
	}
	dir := tb.TempDir()
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			tb.Fatalf("storagetest: %v", err)
		}
	}
	return dir
}

// Postgres returns the URL of an empty, migrated database for this test only.
func Postgres(tb testing.TB) string {
	tb.Helper()
	return pgtest.Copy(tb, func(url string) error {
		return errors.Join(migrate(storage.Options{URL: url}), migrate(storage.Options{URL: url, History: true}))
	})
}

// Open opens and migrates a database, and closes it when the test ends. Without a URL and a
// directory it opens a new SQLite database. Without a time-out it sets the one for a busy machine.
func Open(tb testing.TB, o storage.Options) *storage.DB {
	tb.Helper()
	if o.URL == "" && o.DataDir == "" {
		o.DataDir = SQLite(tb)
	}
	if o.Timeout == 0 {
		o.Timeout = timeout
	}
	s, err := storage.Open(o)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := s.Close(); err != nil {
			tb.Error(err)
		}
	})
	if err := s.Migrate(context.Background()); err != nil {
		tb.Fatal(err)
	}
	return s
}

// databases has a function for each kind of database, which opens an empty one.
var databases = map[string]func(testing.TB) *storage.DB{
	"sqlite": func(tb testing.TB) *storage.DB { tb.Helper(); return Open(tb, storage.Options{}) },
	"postgres": func(tb testing.TB) *storage.DB {
		tb.Helper()
		return Open(tb, storage.Options{URL: Postgres(tb)})
	},
}

// OnBoth runs a test on an empty database of each kind, in parallel.
func OnBoth(t *testing.T, test func(*testing.T, *storage.DB)) {
	t.Helper()
	for name, open := range databases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, open(t))
		})
	}
}

// OnBothHistories runs a test on an empty database of the history of each kind, in parallel.
func OnBothHistories(t *testing.T, test func(*testing.T, *storage.DB)) {
	t.Helper()
	for name, open := range map[string]func(testing.TB) storage.Options{
		"sqlite":   func(tb testing.TB) storage.Options { tb.Helper(); return storage.Options{DataDir: tb.TempDir()} },
		"postgres": func(tb testing.TB) storage.Options { tb.Helper(); return storage.Options{URL: Postgres(tb)} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := open(t)
			o.History = true
			test(t, Open(t, o))
		})
	}
}

// Race runs functions concurrently, and returns when all have returned.
func Race(run ...func()) {
	var all sync.WaitGroup
	for _, f := range run {
		all.Go(f)
	}
	all.Wait()
}

// migrated returns the files of a migrated SQLite database.
var migrated = sync.OnceValues(func() (map[string][]byte, error) {
	dir, err := os.MkdirTemp("", "storagetest-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }() // tests use copies of the files
	if err := migrate(storage.Options{DataDir: dir}); err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	files := map[string][]byte{}
	for _, e := range entries {
		if files[e.Name()], err = os.ReadFile(filepath.Join(dir, e.Name())); err != nil {
			return nil, err
		}
	}
	return files, nil
})

func migrate(o storage.Options) error {
	o.Timeout = timeout
	s, err := storage.Open(o)
	if err != nil {
		return err
	}
	err = s.Migrate(context.Background())
	if closed := s.Close(); err == nil {
		err = closed
	}
	return err
}

// WantError fails the test unless the error is want or wraps it.
func WantError(t *testing.T, got, want error) {
	t.Helper()
	if !errors.Is(got, want) {
		t.Errorf("error = %v, want %v", got, want)
	}
}

// WantInvalid fails the test unless the error names exactly this field.
func WantInvalid(t *testing.T, err error, field string) {
	t.Helper()
	var e *invalid.Error
	if !errors.As(err, &e) || len(e.Fields) != 1 || e.Fields[0].Field != field {
		t.Errorf("error = %v, want one about %s", err, field)
	}
}

// Must returns a function that returns the value and fails the test on err.
func Must[T any](value T, err error) func(testing.TB) T {
	return func(tb testing.TB) T {
		tb.Helper()
		if err != nil {
			tb.Fatal(err)
		}
		return value
	}
}

// Now is the time of imported objects without a time of their own.
var Now = time.Date(2026, time.July, 1, 10, 0, 0, 0, time.UTC)

// Two companies: Acme (EUR, limit 1,000.00) with the users Ann (ERP-1) and the
// inactive Ivo, and Bolt (JPY, limit 50,000) with Bo.
var (
	Acme = uuid.MustParse("a0000000-0000-4000-8000-000000000000")
	Bolt = uuid.MustParse("b0000000-0000-4000-8000-000000000000")
	Ann  = uuid.MustParse("a0000000-0000-4000-8000-000000000001")
	Ivo  = uuid.MustParse("a0000000-0000-4000-8000-000000000002")
	Bo   = uuid.MustParse("b0000000-0000-4000-8000-000000000001")
)

// LoadCompanies imports the two companies.
func LoadCompanies(tb testing.TB, db *storage.DB) {
	tb.Helper()
	Load(tb, db,
		`{"kind":"company","uuid":"`+Acme.String()+`","name":"Acme","currency":"EUR","creditLimit":1000.00}`,
		`{"kind":"company","uuid":"`+Bolt.String()+`","name":"Bolt","currency":"JPY","creditLimit":50000}`,
		`{"kind":"user","uuid":"`+Ann.String()+`","companyUuid":"`+Acme.String()+`","username":"ann","name":"Ánn Mûller","erpId":"ERP-1"}`,
		`{"kind":"user","uuid":"`+Ivo.String()+`","companyUuid":"`+Acme.String()+`","username":"ivo","name":"Ivo","active":false}`,
		`{"kind":"user","uuid":"`+Bo.String()+`","companyUuid":"`+Bolt.String()+`","username":"bo","name":"Bo"}`,
	)
}

// Load imports lines of JSON. The test fails if a line is refused.
func Load(tb testing.TB, db *storage.DB, lines ...string) {
	tb.Helper()
	report, refused := Import(tb, db, lines...)
	if len(refused) > 0 || report.Imported != int64(len(lines)) {
		tb.Fatalf("imported %d of %d, refused %v", report.Imported, len(lines), refused)
	}
}

// Import imports lines of JSON.
func Import(tb testing.TB, db *storage.DB, lines ...string) (importer.Report, []importer.Refusal) {
	tb.Helper()
	var refused []importer.Refusal
	in := importer.Importer{
		DB: db, Now: func() time.Time { return Now },
		Refused: func(r importer.Refusal) { refused = append(refused, r) },
	}
	report, err := in.Run(context.Background(), strings.NewReader(strings.Join(lines, "\n")))
	if err != nil {
		tb.Fatal(err)
	}
	return report, refused
}

// LoadDemo imports invented data. The test fails if a line is refused.
func LoadDemo(tb testing.TB, db *storage.DB, d importer.DemoData) {
	tb.Helper()
	var data strings.Builder
	if err := importer.WriteDemoData(&data, d); err != nil {
		tb.Fatal(err)
	}
	if report, refused := Import(tb, db, data.String()); len(refused) > 0 {
		tb.Fatalf("%+v, refused %v", report, refused)
	}
}

// FullReimbursement is the line of a reimbursement of Acme with every field.
var FullReimbursement = strings.ReplaceAll(`{"kind":"reimbursement","uuid":"11111111-1111-4111-8111-111111111111",
 "companyUuid":"a0000000-0000-4000-8000-000000000000","description":"Lunch with \"Δ\"",
 "audit":{"requestCreationDate":"2026-05-01","expenseDate":"2026-04-30","finalApprovalDate":"2026-05-03","paymentDate":"2026-05-04","lastUpdateDate":"2026-05-05"},
 "labels":[{"uuid":"22222222-2222-4222-8222-222222222222","name":"travel","links":[{"rel":"self","href":"x"}]}],
 "merchant":{"name":"Café","description":"d","categoryCode":5812,"category":"Restaurants","countryCode":"PT"},
 "requester":{"uuid":"a0000000-0000-4000-8000-000000000001","name":"another spelling"},
 "groups":[{"uuid":"33333333-3333-4333-8333-333333333333","name":"Field"}],
 "locations":[{"uuid":"44444444-4444-4444-8444-444444444444","name":"Lisbon"}],
 "amountValue":{"currency":"BHD","amount":12.345},
 "validationStatus":{"status":"PAID","comment":"ok"},
 "attachments":[{"uuid":"55555555-5555-4555-8555-555555555555","fileName":"a.pdf"}],
 "paymentDetail":{"paymentMethod":"CASH","paymentMethodNote":"n","markedAsPaidBy":"ann@example.com"}}`, "\n", "")

// StatementLine returns the line of a billing statement of Acme for a month of 2026. Its UUID ends
// with the digit.
func StatementLine(digit string, month int, status string) string {
	return fmt.Sprintf(`{"kind":"statement","statementUuid":"d0000000-0000-4000-8000-00000000000%s","companyUuid":"%s",`+
		`"month":%d,"year":2026,"status":"%s","totalAmount":1234.5,"currency":"EUR","closingDate":"2026-%02d-28"}`,
		digit, Acme, month, status, month)
}

// WantIndex fails the test unless the plan of a query uses the index and reads no whole table. It
// disables sequential scans of PostgreSQL, which prefers them for small tables.
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
func Plan(ctx context.Context, db bun.IDB, q fmt.Stringer) (string, error) {
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
