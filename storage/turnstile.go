package storage

import (
	"context"
	"errors"
	"os"
	"time"

	"spendhook/internal/datadir"
	"spendhook/internal/filelock"
	"spendhook/internal/pause"
)

const (
	// turnEvery is the interval at which waiting writers try again.
	turnEvery = time.Millisecond
	// passLimit is the maximum time that an import waits for other writers, in case one is
	// stuck.
	passLimit = 2 * time.Second
)

// turnstile is a file beside the SQLite database, locked by each process that finds
// another one writing. An import begins no transaction while the file is locked. SQLite's
// own lock is not fair: an import, which writes almost always, would get it again and
// again. The kernel unlocks the file when a process ends.
type turnstile struct{ path string }

// stand makes imports wait until the file is closed. It is nil while an import is
// passing, and where there can be no such file.
func (t turnstile) stand() *os.File {
	f, err := t.lock(filelock.TryShared)
	if err != nil {
		return nil
	}
	return f
}

// pass returns when no writer waits, or after passLimit.
func (t turnstile) pass(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, passLimit)
	defer cancel()
	_ = pause.Until(ctx, turnEvery, func() error { // after passLimit, it goes first all the same
		f, err := t.lock(filelock.TryExclusive)
		_ = f.Close() // nothing was written
		return err
	}, func(error) {})
}

func (t turnstile) lock(try func(*os.File) error) (*os.File, error) {
	f, err := datadir.Open(t.path, os.O_CREATE|os.O_RDWR)
	if err != nil {
		return nil, err
	}
	if err := try(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// untilItsTurn repeats fn while it fails because of other writers, until ctx ends.
func (db *DB) untilItsTurn(ctx context.Context, fn func() error) error {
	var standing *os.File
	defer func() { _ = standing.Close() }() // nothing was written, if it is there at all
	for {
		err := fn()
		if !isRetryable(err) {
			return err
		}
		if standing == nil && !db.postgres() {
			standing = db.turnstile().stand()
		}
		if !pause.For(ctx, turnEvery) {
			return err
		}
	}
}

func (db *DB) turnstile() turnstile { return turnstile{db.file("writers.lock")} }

// MakeWay lets waiting writers of the SQLite file go first, for 2 s at most. A long series
// of writes calls it between two of them. It reports false for PostgreSQL, where writers do
// not wait for each other.
func (db *DB) MakeWay(ctx context.Context) bool {
	if db.postgres() {
		return false
	}
	db.turnstile().pass(ctx)
	return true
}
