package sequence

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"

	"spendhook/internal/pause"
)

// ErrTooManyWaiting means that the company, or this process, has as many waiting callers as
// allowed.
var ErrTooManyWaiting = errors.New("too many wait for new events")

// Bounds of waiting callers in one process.
const (
	maxWaiting        = 1024
	maxCompanyWaiting = 16
)

// readEvery is the interval at which the last number of a company is read while a reader
// waits for it.
const readEvery = 250 * time.Millisecond

type watch struct {
	waiting int
	last    int64         // the last number that was read
	changed chan struct{} // closed, and replaced, when last changes
	cancel  context.CancelFunc
}

// Wait returns once the company has an event with a higher number than after (arrived is true),
// or ctx ends, or Close is called. It returns ErrTooManyWaiting without waiting.
func (r *Reader) Wait(ctx context.Context, company uuid.UUID, after int64) (arrived bool, err error) {
	w, err := r.enter(company) //nolint:contextcheck // other callers may need the watch for longer
	if err != nil {
		return false, err
	}
	defer r.leave(company, w)
	for {
		r.mu.Lock()
		last, changed := w.last, w.changed
		r.mu.Unlock()
		if last > after {
			return true, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false, nil
		case <-r.stopped.Done():
			return false, nil
		}
	}
}

// Close ends all waits, and makes later ones return at once.
func (r *Reader) Close() {
	r.mu.Lock()
	r.stop()
	r.mu.Unlock()
	r.loops.Wait()
}

func (r *Reader) enter(company uuid.UUID) (*watch, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	w := r.watched[company]
	if r.waiting >= maxWaiting || w != nil && w.waiting >= maxCompanyWaiting {
		return nil, ErrTooManyWaiting
	}
	if w == nil {
		ctx, cancel := context.WithCancel(r.stopped)
		w = &watch{changed: make(chan struct{}), cancel: cancel}
		r.watched[company] = w
		if ctx.Err() == nil {
			r.loops.Go(func() { r.follow(ctx, company, w) })
		}
	}
	w.waiting++
	r.waiting++
	return w, nil
}

func (r *Reader) leave(company uuid.UUID, w *watch) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waiting--
	if w.waiting--; w.waiting == 0 {
		delete(r.watched, company)
		w.cancel()
	}
}

// follow reads the last number of a company until no caller waits for it. While Redis does not
// answer, the callers keep waiting.
func (r *Reader) follow(ctx context.Context, company uuid.UUID, w *watch) {
	for {
		if last, err := r.lastNumber(ctx, company); err == nil {
			r.mu.Lock()
			if last != w.last {
				w.last = last
				close(w.changed)
				w.changed = make(chan struct{})
			}
			r.mu.Unlock()
		}
		if !pause.For(ctx, readEvery) {
			return
		}
	}
}
