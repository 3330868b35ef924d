package main

import (
	"context"
	"fmt"
	"strings"
)

const (
	balancedReplicas = 4
	balancedRate     = 200 // events/s
)

// balanced sends one company's events to four replicas at random, and then all of them to the replica that
// owns the company's partition.
func balanced(ctx context.Context, b *bench) error {
	st, err := startStack(ctx, b.settings, stackOptions{replicas: balancedReplicas})
	if err != nil {
		return err
	}
	defer st.stop()
	if _, err := st.subscribe(ctx, 1, 1); err != nil {
		return err
	}
	owner, err := st.ownerOf(ctx, 0)
	if err != nil {
		return err
	}
	var p50, p99, shares []float64
	for range b.Rounds {
		var cpu [2]float64
		for i, targets := range [][]target{st.targets(), {owner}} {
			spec := loadSpec{Targets: targets, Companies: 1, Batch: 1, Rate: balancedRate, Count: maxAhead, For: b.PacedFor}
			r, err := st.sustain(ctx, spec, 1)
			if err != nil {
				return err
			}
			t, err := st.receiver.latency(ctx, 0, 1, 0)
			if err != nil {
				return err
			}
			cpu[i] = r.per(r.cpu.redis)
			b.note("balanced: %d targets: p50 %.1f ms, p99 %.1f ms, daemons %.0f µs, redis %.0f µs",
				len(targets), ms(t.P50), ms(t.P99), r.per(r.cpu.daemon), cpu[i])
			if i == 0 {
				p50, p99 = append(p50, ms(t.P50)), append(p99, ms(t.P99))
			}
		}
		shares = append(shares, cpu[0]/cpu[1])
	}
	b.add("balanced", "sent to received, p50", "ms", less, p50...).goal(3)
	b.add("balanced", "sent to received, p99", "ms", less, p99...).goal(10)
	b.add("balanced", "redis CPU, of all events at the owner", "", less, shares...).goal(1.3)
	return nil
}

const ownerScript = `for p = 0, 255 do
  local P = 'sh:{' .. p .. '}:'
  if redis.call('EXISTS', P .. 's:' .. ARGV[1]) == 1 then return redis.call('GET', P .. 'owner') end
end`

// ownerOf returns the replica that owns the partition of the i-th company.
func (s *stack) ownerOf(ctx context.Context, i int) (target, error) {
	token, err := s.redis.ask(ctx, "EVAL", ownerScript, "0", company(i))
	if err != nil {
		return target{}, err
	}
	for at, d := range s.daemons {
		id, err := d.replica()
		if err != nil {
			return target{}, err
		}
		if strings.HasPrefix(token, id+".") {
			return s.targets()[at], nil
		}
	}
	return target{}, fmt.Errorf("no replica has the token %q", token)
}
