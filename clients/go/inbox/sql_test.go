package inbox

import (
	"database/sql"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
	_ "modernc.org/sqlite"             // the driver "sqlite"

	"spendhook/internal/pgtest"
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

func testSQL(t *testing.T, open func() *SQLStore) {
	t.Helper()
	testStore(t, open())
	testForget(t, open())
	testSameTime(t, open())
	testFeeds(t, open())
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

// Two feeds have a place each.
func testFeeds(t *testing.T, s *SQLStore) {
	t.Helper()
	other := &SQLStore{DB: s.DB, Feed: "other"}
	for store, cursor := range map[*SQLStore]string{s: "3-x", other: "9-x"} {
		err := store.Transaction(t.Context(), func(tx Transaction, _ *sql.Tx) error { return tx.SetCursor(t.Context(), cursor) })
		if err != nil {
			t.Error(err)
		}
	}
	for store, want := range map[*SQLStore]string{s: "3-x", other: "9-x"} {
		err := store.Transaction(t.Context(), func(tx Transaction, _ *sql.Tx) error {
			cursor, err := tx.Cursor(t.Context())
			if cursor != want {
				t.Errorf("%q, not %q", cursor, want)
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
}
