package main

import (
	"context"
	"errors"
	"fmt"
)

// idleCost is one measurement of idle replicas.
type idleCost struct {
	trips         float64 // round trips to Redis a second, of each replica
	daemon, redis float64 // shares of a core: of each replica, of all servers
}

// replicas counts the round trips of idle replicas to Redis.
func replicas(ctx context.Context, b *bench) error {
	return errors.Join(
		b.idleReplicas(ctx, "replicas", stackOptions{}, 60),
		b.idleReplicas(ctx, "replicas-cluster", stackOptions{masters: clusterMasters}, 300),
	)
}

// idleReplicas adds replicas to one stack, and measures each number of them.
func (b *bench) idleReplicas(ctx context.Context, name string, o stackOptions, goal float64) error {
	st, err := startStack(ctx, b.settings, o)
	if err != nil {
		return err
	}
	defer st.stop()
	var first, last *figure
	for _, n := range b.Replicas {
		rounds, err := b.idleRounds(ctx, st, n)
		if err != nil {
			return err
		}
		last = addOf(b, name, fmt.Sprintf("%d: round trips/s each", n), "1/s", less, rounds, func(r idleCost) float64 { return r.trips }).goal(goal)
		if first == nil {
			first = last
		}
		addOf(b, name, fmt.Sprintf("%d: each daemon", n), "% of a core", less, rounds, func(r idleCost) float64 { return 100 * r.daemon })
		addOf(b, name, fmt.Sprintf("%d: redis", n), "% of a core", less, rounds, func(r idleCost) float64 { return 100 * r.redis })
	}
	if first != last {
		growth := each(last.Values, func(v float64) float64 { return v / first.Median })
		b.add(name, "round trips/s each, most replicas of fewest", "", less, growth...).goal(noGrowth)
	}
	return nil
}

// noGrowth is the largest growth that counts as none, because counts are noisy.
const noGrowth = 1.1

func (b *bench) idleRounds(ctx context.Context, st *stack, n int) (rounds []idleCost, err error) {
	if err := st.addReplicas(ctx, n); err != nil {
		return nil, err
	}
	if err := pause(ctx, idleAfter+b.PacedFor/10); err != nil {
		return nil, err
	}
	for range b.Rounds {
		before, err := st.reads(ctx)
		if err != nil {
			return nil, err
		}
		w, err := st.watch(ctx, b.PacedFor/2)
		if err != nil {
			return nil, err
		}
		after, err := st.reads(ctx)
		if err != nil {
			return nil, err
		}
		each, seconds := float64(len(st.daemons)), w.took.Seconds()
		r := idleCost{float64(after-before) / each / seconds, w.cpu.daemon.Seconds() / each / seconds, w.cpu.redis.Seconds() / seconds}
		b.note("replicas: %d on %d masters: %.1f round trips/s each, %.2f %% of a core each, redis %.2f %%",
			n, len(st.masters), r.trips, 100*r.daemon, 100*r.redis)
		rounds = append(rounds, r)
	}
	return rounds, nil
}

// reads returns how often all servers have read from a client's connection. A request of an idle
// replica, also a pipeline, fits into one buffer, so the server reads it at once: a read is a
// round trip. Messages that a server pushes to a client do not count.
func (s *stack) reads(ctx context.Context) (sum int64, err error) {
	for _, m := range s.masters {
		n, e := m.info(ctx, "stats", "total_reads_processed")
		sum, err = sum+n, errors.Join(err, e)
	}
	return sum, err
}
