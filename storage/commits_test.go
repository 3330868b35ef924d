package storage_test

import (
	"context"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"testing"

	"github.com/uptrace/bun"

	"spendhook/storage"
	"spendhook/storage/storagetest"
)

// ledger is an SQLite database with a table for tests.
func ledger(t *testing.T, o storage.Options) (*storage.DB, string) {
	t.Helper()
	o.DataDir = storagetest.SQLite(t)
	db := storagetest.Open(t, o)
	if err := db.Write(t.Context(), "table", func(ctx context.Context, tx bun.Tx) error {
		_, err := tx.ExecContext(ctx, "CREATE TABLE ledger (line TEXT PRIMARY KEY)")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return db, o.DataDir
}

func add(line string) func(context.Context, bun.Tx) error {
	return func(ctx context.Context, tx bun.Tx) error {
		_, err := tx.ExecContext(ctx, "INSERT INTO ledger VALUES (?)", line)
		return err
	}
}

func lines(t *testing.T, db *storage.DB) (list []string) {
	t.Helper()
	if err := db.Query(t.Context(), "read", func(ctx context.Context, tx bun.IDB) error {
		return tx.NewRaw("SELECT line FROM ledger ORDER BY line").Scan(ctx, &list)
	}); err != nil {
		t.Fatal(err)
	}
	return list
}

// commitsIn counts the commits in the log of a database: the last frame of a commit has the size of the database.
func commitsIn(t *testing.T, dir string) (count int) {
	t.Helper()
	const header, frameHeader = 32, 24
	log, err := os.ReadFile(filepath.Join(dir, "spend.db-wal"))
	if err != nil || len(log) < header {
		t.Fatalf("%d bytes of log, %v", len(log), err)
	}
	frame := frameHeader + int(binary.BigEndian.Uint32(log[8:]))
	for rest := log[header:]; len(rest) >= frame; rest = rest[frame:] {
		if binary.BigEndian.Uint32(rest[4:]) != 0 {
			count++
		}
	}
	return count
}

// atOnce holds a first write until all other calls wait for it, and then releases it. It
// returns the errors of the other calls.
func atOnce(t *testing.T, db *storage.DB, calls ...func() error) []error {
	t.Helper()
	began, release := make(chan struct{}), make(chan struct{})
	var all sync.WaitGroup
	all.Go(func() {
		_ = db.Write(t.Context(), "first", func(context.Context, bun.Tx) error {
			close(began)
			<-release
			return nil
		})
	})
	<-began
	results := make([]error, len(calls))
	for i, call := range calls {
		all.Go(func() { results[i] = call() })
		for storage.Waiting(db) <= i {
			runtime.Gosched()
		}
	}
	close(release)
	all.Wait()
	return results
}

func TestConcurrentWritesShareACommit(t *testing.T) {
	t.Parallel()
	db, dir := ledger(t, storage.Options{})
	before := commitsIn(t, dir)
	var calls []func() error
	for i := range 30 {
		calls = append(calls, func() error { return db.Write(t.Context(), "add", add(strconv.Itoa(i))) })
	}
	for i, err := range atOnce(t, db, calls...) {
		if err != nil {
			t.Errorf("%d: %v", i, err)
		}
	}
	if got := commitsIn(t, dir) - before; got != 1 || len(lines(t, db)) != 30 {
		t.Errorf("%d lines in %d commits, want 30 in 1", len(lines(t, db)), got)
	}
}

// An error or panic of one write does not roll back the other writes of its commit.
func TestWritesOfOneCommitAreIndependent(t *testing.T) {
	t.Parallel()
	db, _ := ledger(t, storage.Options{})
	refused := errors.New("refused")
	gone, leave := context.WithCancel(t.Context())
	var panicked any
	results := atOnce(t, db,
		func() error { return db.Write(t.Context(), "add", add("good")) },
		func() error {
			return db.Write(t.Context(), "refuse", func(ctx context.Context, tx bun.Tx) error {
				return errors.Join(add("refused")(ctx, tx), refused)
			})
		},
		func() error { return db.Write(t.Context(), "again", add("good")) },
		func() error {
			defer func() { panicked = recover() }()
			return db.Write(t.Context(), "panic", func(ctx context.Context, tx bun.Tx) error {
				_ = add("panicked")(ctx, tx)
				panic("on purpose")
			})
		},
		func() error {
			return db.Write(gone, "go away", func(ctx context.Context, tx bun.Tx) error {
				leave()
				return add("while going")(ctx, tx)
			})
		},
		func() error { return db.Write(t.Context(), "add", add("last")) },
	)
	if results[0] != nil || results[4] != nil || results[5] != nil {
		t.Errorf("the good ones: %v", results)
	}
	if !errors.Is(results[1], refused) || results[2] == nil || errors.Is(results[2], storage.ErrUnavailable) {
		t.Errorf("the others: %v", results)
	}
	if panicked == nil {
		t.Error("the panic did not reach the caller")
	}
	if got := lines(t, db); len(got) != 3 || got[0] != "good" || got[1] != "last" || got[2] != "while going" {
		t.Errorf("%q", got)
	}
}

// A write that is cancelled while it waits returns at once and writes nothing.
func TestACancelledWaitingWriteReturns(t *testing.T) {
	t.Parallel()
	db, _ := ledger(t, storage.Options{})
	ctx, leave := context.WithCancel(t.Context())
	left := make(chan error, 1)
	if err := db.Write(t.Context(), "first", func(context.Context, bun.Tx) error {
		go func() { left <- db.Write(ctx, "leave", add("left")) }()
		for storage.Waiting(db) == 0 {
			runtime.Gosched()
		}
		leave()
		if err := <-left; !errors.Is(err, context.Canceled) || errors.Is(err, storage.ErrUnavailable) {
			t.Errorf("%v", err)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	if got := lines(t, db); len(got) != 0 {
		t.Errorf("%q", got)
	}
}

// After a failed transaction, each write is repeated in a transaction of its own.
func TestAFailedCommitIsRepeatedWriteByWrite(t *testing.T) {
	t.Parallel()
	db, _ := ledger(t, storage.Options{})
	results := atOnce(t, db,
		func() error { return db.Write(t.Context(), "add", add("one")) },
		func() error {
			return db.Write(t.Context(), "spoil", func(ctx context.Context, tx bun.Tx) error {
				_, err := tx.ExecContext(ctx, "ROLLBACK")
				return errors.Join(err, context.DeadlineExceeded)
			})
		},
		func() error { return db.Write(t.Context(), "add", add("two")) },
	)
	if results[0] != nil || results[1] == nil || results[2] != nil || len(lines(t, db)) != 2 {
		t.Errorf("%v, %q", results, lines(t, db))
	}
}

func TestFullSyncIsTheSettings(t *testing.T) {
	t.Parallel()
	for full, want := range map[bool]int{true: 2, false: 1} {
		db, _ := ledger(t, storage.Options{FullSync: full})
		var got int
		if err := db.Write(t.Context(), "ask", func(ctx context.Context, tx bun.Tx) error {
			return tx.NewRaw("PRAGMA synchronous").Scan(ctx, &got)
		}); err != nil || got != want {
			t.Errorf("full_sync %v: synchronous is %d, %v", full, got, err)
		}
	}
}
