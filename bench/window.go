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
	distinct int64 // different deliveries that the receiver acknowledged
}

// share returns the share of one core that daemon and Redis used.
func (w window) share() float64 { return (w.cpu.daemon + w.cpu.redis).Seconds() / w.took.Seconds() }

// rate returns deliveries/s.
func (w window) rate() float64 { return float64(w.distinct) / w.took.Seconds() }

// watch measures for the time length.
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

// idle returns the share of one core that daemon and Redis use without load.
func (s *stack) idle(ctx context.Context) (float64, error) {
	if err := pause(ctx, idleAfter); err != nil {
		return 0, err
	}
	w, err := s.watch(ctx, s.settings.PacedFor/2)
	return w.share(), err
}

const idleAfter = 2 * time.Second

// calmFor is how long the asynq queues must be empty to be called calm.
const calmFor = time.Second

// awaitCalm waits until the asynq queues have been empty for calmFor, for limit at most, and
// reports whether they have.
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
