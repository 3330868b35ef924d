package main

import (
	"context"
	"errors"
	"time"
)

// window is a measurement over some time.
type window struct {
	took     time.Duration
	cpu      usage
	distinct int64 // deliveries that came to the receiver
}

// share is the part of one core that daemon and Redis used.
func (w window) share() float64 { return (w.cpu.daemon + w.cpu.redis).Seconds() / w.took.Seconds() }

// rate is deliveries/s.
func (w window) rate() float64 { return float64(w.distinct) / w.took.Seconds() }

// watch measures for some time.
func (s *stack) watch(ctx context.Context, length time.Duration) (w window, err error) {
	start := time.Now()
	before, err := s.usage()
	was, err2 := s.receiver.tally(ctx)
	if err := errors.Join(err, err2, pause(ctx, length)); err != nil {
		return w, err
	}
	after, err := s.usage()
	is, err2 := s.receiver.tally(ctx)
	return window{time.Since(start), after.since(before), is.Distinct - was.Distinct}, errors.Join(err, err2)
}

// idle is the share of one core that daemon and Redis use with nothing to do.
func (s *stack) idle(ctx context.Context) (float64, error) {
	if err := pause(ctx, idleAfter); err != nil {
		return 0, err
	}
	w, err := s.watch(ctx, s.settings.PacedFor/2)
	return w.share(), err
}

const idleAfter = 2 * time.Second

// calmFor is how long no task may be in a queue until all are done with.
const calmFor = time.Second

// awaitCalm waits until the queues stay empty, but not beyond limit; calm says
// whether they did.
func (s *stack) awaitCalm(ctx context.Context, limit time.Duration) (calm bool, err error) {
	var since time.Time
	err = await(ctx, limit, func() (bool, error) {
		n, err := s.redis.tasks(ctx)
		if n > 0 || since.IsZero() {
			since = time.Now()
		}
		return time.Since(since) >= calmFor, err
	})
	if errors.Is(err, errLate) {
		return false, nil
	}
	return err == nil, err
}
