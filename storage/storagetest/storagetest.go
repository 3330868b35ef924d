// Package storagetest gives tests migrated databases, and companies in them. The
// first database of a test binary is migrated, the others are copies of it.
package storagetest

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"spendhook/internal/pgtest"
	"spendhook/storage"
)

// timeout is the time-out of database calls; machines are busy with other tests.
const timeout = 20 * time.Second

// SQLite returns a data directory with an empty database of the test's own.
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

// Postgres returns the URL of an empty database of the test's own, as pgtest.New
// does.
func Postgres(tb testing.TB) string {
	tb.Helper()
	return pgtest.Copy(tb, func(url string) error { return migrate(storage.Options{URL: url}) })
}

// Open opens a database, which is closed when the test ends. Without a URL and a
// directory it is SQLite of the test's own; without a timeout, a busy machine's.
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

// databases open an empty database of each kind.
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

// Race runs functions at the same time, and returns when all have returned.
func Race(run ...func()) {
	var all sync.WaitGroup
	for _, f := range run {
		all.Go(f)
	}
	all.Wait()
}

// migrated are the files of a migrated SQLite database.
var migrated = sync.OnceValues(func() (map[string][]byte, error) {
	dir, err := os.MkdirTemp("", "storagetest-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }() // no test looks there
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
