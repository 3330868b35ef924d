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
	// retryEvery is the interval at which waiting writers try again.
	retryEvery = time.Millisecond
	// maxMakeWay is the maximum time that an import waits for other writers, in case one hangs.
	maxMakeWay = 2 * time.Second
)

// lockWriters locks a file beside the SQLite database. Each process that waits for another writer
// shares this lock. An import begins no transaction while the file is locked. SQLite's own lock is
// not fair: an import, which writes almost always, would get it again and again. The kernel unlocks
// the file when a process ends.
func (db *DB) lockWriters(try func(*os.File) error) (*os.File, error) {
	f, err := datadir.Open(db.file("writers.lock"), os.O_CREATE|os.O_RDWR)
	if err != nil {
		return nil, err
	}
	if err := try(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// retryWhileBusy repeats fn while it fails because of other writers, until ctx ends. Imports wait
// until it returns.
func (db *DB) retryWhileBusy(ctx context.Context, fn func() error) error {
	var waiting *os.File // the shared lock; nil until it is taken, which fails while an import holds the file
	defer func() { _ = waiting.Close() }()
	for {
		err := fn()
		if !isRetryable(err) {
			return err
		}
		if waiting == nil && !db.postgres() {
			waiting, _ = db.lockWriters(filelock.TryShared)
		}
		if !pause.For(ctx, retryEvery) {
			return err
		}
	}
}

// MakeWay lets waiting writers of the SQLite file go first, for 2 s at most. A long series
// of writes calls it between two of them. It reports false for PostgreSQL, where writers do
// not wait for each other.
func (db *DB) MakeWay(ctx context.Context) bool {
	if db.postgres() {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, maxMakeWay)
	defer cancel()
	_ = pause.Until(ctx, retryEvery, func() error { // after maxMakeWay, the caller goes first all the same
		f, err := db.lockWriters(filelock.TryExclusive)
		_ = f.Close() // nothing was written
		return err
	}, func(error) {})
	return true
}
