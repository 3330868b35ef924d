package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

const (
	recoverySubscribers = 10
	recoveryDelay       = 20 * time.Millisecond // of the receiver, so that much is in flight
	killBetween         = 2 * time.Second       // the kill is at a random time within this period after killAfter
	killAfter           = time.Second
)

// takeover kills one of two replicas at full load.
func takeover(ctx context.Context, b *bench) error {
	return b.recovery(ctx, "takeover", 2, b.Rounds, "from the kill until the other replica has attempted the last delivery", 4)
}

// restart kills the only replica and starts it again.
func restart(ctx context.Context, b *bench) error {
	return b.recovery(ctx, "restart", 1, b.Kills, "from ready until the last delivery is attempted", 1)
}

// recovery kills a replica so many times, each time on a new stack.
func (b *bench) recovery(ctx context.Context, name string, replicas, kills int, what string, goal float64) error {
	var late, all, beyond []float64
	for range kills {
		k, err := b.kill(ctx, replicas)
		if err != nil {
			return err
		}
		b.note("%s: %d deliveries, at most %d were in flight, attempted again in %.2f s, all delivered in %.2f s, %d repeats",
			name, k.deliveries, k.inFlight, k.late.Seconds(), k.all.Seconds(), k.repeats)
		late, all = append(late, k.late.Seconds()), append(all, k.all.Seconds())
		beyond = append(beyond, float64(max(0, k.repeats-k.inFlight)))
	}
	b.add(name, what, "s", less, late...).goal(goal)
	b.add(name, "the whole backlog delivered", "s", less, all...)
	b.add(name, "repeats beyond what was in flight", "", less, beyond...).goal(0)
	return nil
}

// killResult is the result of a kill.
type killResult struct {
	late       time.Duration // until the last interrupted delivery was attempted again
	all        time.Duration // until the last event sent before the kill was delivered
	deliveries int64         // all of the run
	repeats    int64
	inFlight   int64 // deliveries that the killed replica may have begun
}

func (b *bench) kill(ctx context.Context, replicas int) (k killResult, err error) {
	st, err := startStack(ctx, b.settings, stackOptions{replicas: replicas})
	if err != nil {
		return k, err
	}
	defer st.stop()
	_, err = st.subscribe(ctx, 1, recoverySubscribers)
	if err = errors.Join(err, st.receiver.set(ctx, recoverySubscribers, mode{Delay: recoveryDelay})); err != nil {
		return k, err
	}
	run, err := st.newRun(ctx)
	if err != nil {
		return k, err
	}
	done := make(chan error, 1)
	var load loadResult
	go func() {
		spec := loadSpec{
			Targets: st.targets(), Clients: bareClients, Run: run, Companies: 1, Batch: 1,
			Count: maxAhead, For: killAfter + killBetween + b.LoadFor,
		}
		var err error
		load, _, err = generate(ctx, spec)
		done <- err
	}()
	away, err := st.killReplica(ctx, &k, replicas == 1)
	if err = errors.Join(err, <-done); err != nil {
		return k, err
	}
	if load.Lost > 0 {
		return k, fmt.Errorf("%d events were never answered: %s", load.Lost, load.Trouble)
	}
	return k, st.afterKill(ctx, &k, load.Accepted, away)
}

// killReplica kills the last replica at a random moment. away is how long no replica was ready.
func (s *stack) killReplica(ctx context.Context, k *killResult, again bool) (away time.Duration, err error) {
	wait := killAfter + rand.N(killBetween) //nolint:gosec // chance, not secrecy
	if err := pause(ctx, wait); err != nil {
		return 0, err
	}
	victim := s.daemons[len(s.daemons)-1]
	id, err := victim.replica()
	if err != nil {
		return 0, err
	}
	victim.Kill()
	at := time.Now()
	if err := s.receiver.mark(ctx); err != nil {
		return 0, err
	}
	ids, err := s.redis.inFlight(ctx, id)
	if err = errors.Join(err, s.receiver.watch(ctx, ids)); err != nil {
		return 0, err
	}
	k.inFlight = int64(len(ids)) * recoverySubscribers
	if !again {
		s.daemons = s.daemons[:len(s.daemons)-1]
		return 0, nil
	}
	d, err := victim.restart(ctx)
	if err != nil {
		return 0, err
	}
	s.daemons[len(s.daemons)-1] = d
	return time.Since(at), nil
}

// recoveryTime is how long events may stay pending after a kill.
const recoveryTime = 90 * time.Second

func (s *stack) afterKill(ctx context.Context, k *killResult, accepted int64, away time.Duration) error {
	k.deliveries = accepted * recoverySubscribers
	err := s.awaitDistinct(ctx, k.deliveries)
	if err = errors.Join(err, s.awaitSettled(ctx, recoveryTime)); err != nil {
		return err
	}
	t, err := s.receiver.tally(ctx)
	k.repeats = t.Repeats
	k.late = max(0, time.Duration(t.Watched)*time.Microsecond-away)
	k.all = max(0, time.Duration(t.AfterMark)*time.Microsecond-away)
	return err
}
