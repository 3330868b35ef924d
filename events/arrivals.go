package events

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/google/uuid"

	"spendhook/internal/pause"
)

// ErrTooManyWaiting means that as many wait for new events as may, of the company or
// in all.
var ErrTooManyWaiting = errors.New("too many wait for new events")

// How many may wait at a time in one process.
const (
	maxWaiting        = 1024
	maxCompanyWaiting = 16
)

// arrivalsEvery is how often the last number of a company is read for whom wait.
const arrivalsEvery = 250 * time.Millisecond

// Arrivals has callers wait for new events of companies. All that wait for one company
// share one read of Redis each 250 ms. It is safe for concurrent use; Close it.
type Arrivals struct {
	store *Store

	mu      sync.Mutex
	watched map[uuid.UUID]*watch
	waiting int
	stopped context.Context //nolint:containedctx // ends with Close
	stop    context.CancelFunc
	loops   sync.WaitGroup
}

// watch is a company that somebody waits for.
type watch struct {
	waiting int
	last    int64         // its last number, as far as it is known
	changed chan struct{} // closed when last is another
	cancel  context.CancelFunc
}

// NewArrivals returns Arrivals of the store. They talk to Redis only while somebody
// waits.
func NewArrivals(store *Store) *Arrivals {
	a := &Arrivals{store: store, watched: map[uuid.UUID]*watch{}}
	a.stopped, a.stop = context.WithCancel(context.Background())
	return a
}

// Wait returns once the company has an event with a higher number than after, or ctx
// ends, or Close is called; arrived tells which. ErrTooManyWaiting at once.
func (a *Arrivals) Wait(ctx context.Context, company uuid.UUID, after int64) (arrived bool, err error) {
	w, err := a.enter(company) //nolint:contextcheck // the watch outlives the one who began it
	if err != nil {
		return false, err
	}
	defer a.leave(company, w)
	for {
		a.mu.Lock()
		last, changed := w.last, w.changed
		a.mu.Unlock()
		if last > after {
			return true, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false, nil
		case <-a.stopped.Done():
			return false, nil
		}
	}
}

// Close ends all that wait, and those that come later at once.
func (a *Arrivals) Close() {
	a.mu.Lock()
	a.stop()
	a.mu.Unlock()
	a.loops.Wait()
}

func (a *Arrivals) enter(company uuid.UUID) (*watch, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	w := a.watched[company]
	if a.waiting >= maxWaiting || w != nil && w.waiting >= maxCompanyWaiting {
		return nil, ErrTooManyWaiting
	}
	if w == nil {
		ctx, cancel := context.WithCancel(a.stopped)
		w = &watch{changed: make(chan struct{}), cancel: cancel}
		a.watched[company] = w
		if ctx.Err() == nil {
			a.loops.Go(func() { a.follow(ctx, company, w) })
		}
	}
	w.waiting++
	a.waiting++
	return w, nil
}

func (a *Arrivals) leave(company uuid.UUID, w *watch) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.waiting--
	if w.waiting--; w.waiting == 0 {
		delete(a.watched, company)
		w.cancel()
	}
}

// follow reads the last number of a company until nobody waits for it. While Redis
// does not answer nothing arrives.
func (a *Arrivals) follow(ctx context.Context, company uuid.UUID, w *watch) {
	for {
		if last, err := a.store.lastNumber(ctx, company); err == nil {
			a.mu.Lock()
			if last != w.last {
				w.last = last
				close(w.changed)
				w.changed = make(chan struct{})
			}
			a.mu.Unlock()
		}
		if !pause.For(ctx, arrivalsEvery) {
			return
		}
	}
}
