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
var ErrTooManyWaiting = errors.New("too many requests wait for new events")

// Bounds of waiting callers in one process.
const (
	maxWaiting        = 512
	maxCompanyWaiting = 16
)

// readEvery is the interval at which a waiting caller reads the last number of its company.
const readEvery = 250 * time.Millisecond

// Wait waits until the company has an event with a higher number than after (arrived is true), ctx
// ends, or Close is called. It also waits while Redis does not answer. It returns ErrTooManyWaiting
// at once.
func (r *Reader) Wait(ctx context.Context, company uuid.UUID, after int64) (arrived bool, err error) {
	if !r.enter(company) {
		return false, ErrTooManyWaiting
	}
	defer r.leave(company)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(r.stopped, cancel)() //nolint:contextcheck // Close ends the wait, too
	for {
		if last, err := r.lastNumber(ctx, company); err == nil && last > after {
			return true, nil
		}
		if !pause.For(ctx, readEvery) {
			return false, nil
		}
	}
}

// Close ends all waits. Later calls of Wait return at once.
func (r *Reader) Close() { r.stop() }

func (r *Reader) enter(company uuid.UUID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.waiting >= maxWaiting || r.ofCompany[company] >= maxCompanyWaiting {
		return false
	}
	r.waiting++
	r.ofCompany[company]++
	return true
}

func (r *Reader) leave(company uuid.UUID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waiting--
	if r.ofCompany[company]--; r.ofCompany[company] == 0 {
		delete(r.ofCompany, company)
	}
}
