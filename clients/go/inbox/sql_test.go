package inbox

import (
	"context"
	"database/sql"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
	_ "modernc.org/sqlite"             // the driver "sqlite"

	"spendhook/internal/pgtest"
	"spendhook/internal/waittest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

func openSQL(t *testing.T, driver, source string) *SQLStore {
	t.Helper()
	db, err := sql.Open(driver, source)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	s := &SQLStore{DB: db}
	for range 2 { // the second finds the tables
		if err := s.Migrate(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func TestSQLite(t *testing.T) {
	t.Parallel()
	testSQL(t, func() *SQLStore {
		return openSQL(t, "sqlite", "file:"+filepath.Join(t.TempDir(), "inbox.db")+"?_pragma=busy_timeout(10000)")
	})
}

func TestPostgreSQL(t *testing.T) {
	t.Parallel()
	testSQL(t, func() *SQLStore { return openSQL(t, "pgx", pgtest.New(t)) })
}

// PostgreSQL undoes a transaction in which a statement failed, also if the work says that it has not failed.
func TestWorkThatIgnoresAnErrorOfPostgreSQL(t *testing.T) {
	t.Parallel()
	fails := true
	box, err := New(Options[*sql.Tx]{
		Verifier: &Verifier{}, Store: openSQL(t, "pgx", pgtest.New(t)),
		Work: func(ctx context.Context, _ *Event, tx *sql.Tx) error {
			if fails {
				_, _ = tx.ExecContext(ctx, "UPDATE no_such_table SET paid = TRUE")
			}
			return nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if worked, err := box.once(t.Context(), &Event{ID: "evt_1"}); worked || err == nil {
		t.Errorf("the work ignores an error: %t, %v", worked, err)
	}
	fails = false
	if worked, err := box.once(t.Context(), &Event{ID: "evt_1"}); !worked || err != nil {
		t.Errorf("again: %t, %v", worked, err)
	}
}

func testSQL(t *testing.T, open func() *SQLStore) {
	t.Helper()
	testStore(t, open())
	testForget(t, open())
	testSameTime(t, open())
	testNames(t, open())
}

func testForget(t *testing.T, s *SQLStore) {
	t.Helper()
	now := time.Unix(1795167000, 0)
	s.Now = func() time.Time { return now }
	add := func(id string) (added bool) {
		t.Helper()
		err := s.Transaction(t.Context(), func(tx Transaction, _ *sql.Tx) (err error) {
			added, err = tx.Add(t.Context(), id, 0)
			return err
		})
		if err != nil {
			t.Error(err)
		}
		return added
	}
	add("old")
	now = now.Add(time.Hour)
	add("new")
	if n, err := (&SQLStore{DB: s.DB, Name: "other", Now: s.Now}).Forget(t.Context(), time.Minute); n != 0 || err != nil {
		t.Errorf("another inbox forgot %d, %v", n, err)
	}
	if n, err := s.Forget(t.Context(), time.Minute); n != 1 || err != nil {
		t.Errorf("forgot %d, %v", n, err)
	}
	if add("new") || !add("old") {
		t.Error("another event was forgotten")
	}
}

// Of transactions with one id at the same time, one adds it.
func testSameTime(t *testing.T, s *SQLStore) {
	t.Helper()
	var count atomic.Int32
	failed := make(chan error, 8)
	for range cap(failed) {
		go func() {
			failed <- s.Transaction(t.Context(), func(tx Transaction, _ *sql.Tx) error {
				added, err := tx.Add(t.Context(), "same", 1)
				if added {
					count.Add(1)
				}
				return err
			})
		}()
	}
	for range cap(failed) {
		if err := <-failed; err != nil {
			t.Error(err)
		}
	}
	if count.Load() != 1 {
		t.Errorf("added %d times", count.Load())
	}
}

// Inboxes with two names each work on an event, and have a cursor each. Those with one name share both.
func testNames(t *testing.T, s *SQLStore) {
	t.Helper()
	panics := true
	named := func(name string) *Inbox[*sql.Tx] {
		t.Helper()
		box, err := New(Options[*sql.Tx]{
			Verifier: &Verifier{}, Store: &SQLStore{DB: s.DB, Name: name},
			Work: func(context.Context, *Event, *sql.Tx) error {
				if panics {
					panic("on purpose")
				}
				return nil
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		return box
	}
	first, same, other := named(""), named("inbox"), named("other")
	if worked, err := first.once(t.Context(), &Event{ID: "evt_1"}); worked || err == nil {
		t.Errorf("the work panics: %t, %v", worked, err)
	}
	panics = false
	for n, c := range []struct {
		box  *Inbox[*sql.Tx]
		want bool
	}{{first, true}, {same, false}, {other, true}, {other, false}} {
		if worked, err := c.box.once(t.Context(), &Event{ID: "evt_1"}); worked != c.want || err != nil {
			t.Errorf("case %d: %t, %v", n, worked, err)
		}
	}
	for box, cursor := range map[*Inbox[*sql.Tx]]string{first: "3-x", other: "9-x"} {
		if err := box.setCursor(t.Context(), cursor); err != nil {
			t.Error(err)
		}
	}
	for box, want := range map[*Inbox[*sql.Tx]]string{first: "3-x", same: "3-x", other: "9-x"} {
		if cursor, err := box.cursor(t.Context()); cursor != want || err != nil {
			t.Errorf("%q, %v, not %q", cursor, err, want)
		}
	}
}

// PostgreSQL refuses a table that another process creates at the same time. Here two others create one each.
func TestMigrateAtTheSameTime(t *testing.T) {
	t.Parallel()
	db, err := sql.Open("pgx", pgtest.New(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	create := func(statement string) *sql.Tx {
		t.Helper()
		tx, err := db.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
		return tx
	}
	others := map[string]*sql.Tx{"spendhook_inbox": create(createInbox), "spendhook_cursor": create(createCursor)}
	migrated := make(chan error, 1)
	go func() { migrated <- (&SQLStore{DB: db}).Migrate(t.Context()) }()
	for _, table := range []string{"spendhook_inbox", "spendhook_cursor"} {
		waittest.Until(t, "it waits for "+table, func() (waits bool) {
			err := db.QueryRowContext(t.Context(), `SELECT EXISTS (SELECT 1 FROM pg_stat_activity
				WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%' || $1 || '%')`, table).Scan(&waits)
			if err != nil {
				t.Fatal(err)
			}
			return waits
		})
		if err := others[table].Commit(); err != nil {
			t.Fatal(err)
		}
	}
	if err := <-migrated; err != nil {
		t.Error(err)
	}
}
