package storage

import (
	"context"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/uptrace/bun"
)

const maxWrites = 64 // in one commit

// commits collects the writes that arrive during a commit of SQLite. Up to maxWrites of them share
// the next commit, and so one sync of the disk.
type commits struct {
	mu      sync.Mutex
	waiting []*write
	running bool
}

// write is a call of Write that waits for its commit.
type write struct {
	ctx      context.Context //nolint:containedctx // the context of the waiting caller
	fn       func(context.Context, bun.Tx) error
	err      error
	panicked error         // the panic of fn, which is repeated in the goroutine of the caller
	done     chan struct{} // closed after the commit or rollback
}

// writeInSharedCommit is Write for SQLite.
func (db *DB) writeInSharedCommit(ctx context.Context, fn func(context.Context, bun.Tx) error) error {
	w := &write{ctx: ctx, fn: fn, done: make(chan struct{})}
	if db.commits.add(w) {
		go db.commitAll() //nolint:contextcheck // commitAll serves all waiting callers
	}
	select {
	case <-w.done:
	case <-ctx.Done():
		if db.commits.remove(w) {
			return ctx.Err()
		}
		<-w.done // fn is running and may use the caller's variables
	}
	if w.panicked != nil {
		panic(w.panicked)
	}
	return w.err
}

// add queues a write and reports whether the caller must start commitAll.
func (c *commits) add(w *write) (first bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiting = append(c.waiting, w)
	first, c.running = !c.running, true
	return first
}

// remove removes a write that has not started. It returns false if the write has started.
func (c *commits) remove(w *write) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := slices.Index(c.waiting, w)
	if i < 0 {
		return false
	}
	c.waiting = slices.Delete(c.waiting, i, i+1)
	return true
}

// next removes and returns the writes of the next commit. It returns none when no write waits.
func (c *commits) next() []*write {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := min(len(c.waiting), maxWrites)
	batch := slices.Clone(c.waiting[:n])
	c.waiting = slices.Delete(c.waiting, 0, n)
	c.running = n > 0
	return batch
}

func (db *DB) commitAll() {
	for batch := db.commits.next(); len(batch) > 0; batch = db.commits.next() {
		if len(batch) == 1 || db.commitBatch(batch) != nil {
			for _, w := range batch { // one write may be the reason why the commit of all failed
				w.panicked = nil
				w.err = w.run(func() error { return db.transaction(w.ctx, w.fn) })
			}
		}
		for _, w := range batch {
			close(w.done)
		}
	}
}

// commitBatch runs each write in a savepoint of one transaction. An error of
// a write rolls back only that write, unless the transaction itself has failed. The context
// of one caller does not interrupt the transaction, since SQLite would roll back all writes.
func (db *DB) commitBatch(batch []*write) error {
	deadline, _ := batch[0].ctx.Deadline()                                         // of the write that has waited longest
	ctx, cancel := context.WithTimeout(context.Background(), time.Until(deadline)) //nolint:forbidigo // a context's clock is the real one
	defer cancel()
	return db.transaction(ctx, func(ctx context.Context, tx bun.Tx) error {
		for _, w := range batch {
			w.panicked = nil
			if w.err = w.ctx.Err(); w.err != nil {
				continue
			}
			w.err = w.run(func() error { return tx.RunInTx(ctx, nil, w.fn) })
			if isRetryable(w.err) || isUnavailable(w.err) {
				return w.err
			}
		}
		return nil
	})
}

func (w *write) run(call func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			w.panicked = fmt.Errorf("%v\n%s", p, debug.Stack())
		}
	}()
	return call()
}
