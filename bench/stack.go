package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"
)

// stack is one Redis, one or more daemons on it, and a receiver.
type stack struct {
	dir      string
	redis    *redisServer
	daemons  []*daemon
	receiver *receiverProcess
	settings settings
	runs     int64
}

// stackOptions shape a stack; the zero value is one daemon as it comes.
type stackOptions struct {
	replicas int
	delivery string // settings of the delivery section, as in YAML
	more     string // further sections, each on a line
}

func startStack(ctx context.Context, s settings, o stackOptions) (_ *stack, err error) {
	st := &stack{settings: s}
	defer func() {
		if err != nil {
			st.stop()
		}
	}()
	if st.dir, err = os.MkdirTemp(s.Dir, "bench-"); err != nil {
		return nil, err
	}
	if st.redis, err = startRedis(ctx, st.dir); err != nil {
		return nil, err
	}
	if st.receiver, err = startReceiver(ctx, st.dir); err != nil {
		return nil, err
	}
	for i := range max(o.replicas, 1) {
		d, err := startDaemon(ctx, daemonOptions{
			program: s.Spendhook, dir: st.dir, id: fmt.Sprintf("daemon%d", i),
			redis: st.redis.url(), settings: o.delivery, more: o.more,
		})
		if err != nil {
			return nil, err
		}
		st.daemons = append(st.daemons, d)
	}
	return st, nil
}

// stop kills the processes and removes their files: all is over, and hung
// attempts are not worth waiting for.
func (s *stack) stop() {
	for _, d := range s.daemons {
		d.Kill()
	}
	if s.receiver != nil {
		s.receiver.Kill()
	}
	if s.redis != nil {
		s.redis.Kill()
	}
	if s.dir != "" {
		_ = os.RemoveAll(s.dir)
	}
}

// subscribe gives each of the first companies subscribers of its own, each on
// the next endpoint of the receiver, and returns their ids.
func (s *stack) subscribe(ctx context.Context, companies, each int) (ids []string, err error) {
	for c := range companies {
		for i := range each {
			id, err := s.daemons[0].subscribe(ctx, company(c), fmt.Sprintf("bench %d", i), s.receiver.Endpoints[c*each+i])
			if err != nil {
				return nil, err
			}
			ids = append(ids, id)
		}
	}
	return ids, nil
}

// newRun has the receiver forget, and count only what is sent from now on.
func (s *stack) newRun(ctx context.Context) (int64, error) {
	s.runs++
	return s.runs, s.receiver.reset(ctx, s.runs)
}

// targets are the daemons, for the load generator.
func (s *stack) targets() []target {
	var list []target
	for _, d := range s.daemons {
		list = append(list, target{URL: d.base + "/api/v1/events", Token: d.token})
	}
	return list
}

// bareClients is how many goroutines the bare loop has, and the load.
const bareClients = 64

// bare is what a plain loop of POSTs to the receiver reaches, per second.
func (s *stack) bare(ctx context.Context) (float64, error) {
	run, err := s.newRun(ctx)
	if err != nil {
		return 0, err
	}
	result, _, err := generate(ctx, loadSpec{
		Targets: []target{{URL: s.receiver.Endpoints[0]}}, Bare: true, Run: run, Companies: 1,
		Clients: bareClients, Batch: 1, Count: maxEvents, For: s.settings.BareFor,
	})
	if err != nil {
		return 0, fmt.Errorf("bare loop: %w", err)
	}
	return float64(result.Accepted) / result.Took.Seconds(), nil
}

// usage is the CPU time that each process has used; rewrites are those of the
// append-only file, which Redis makes in a child.
type usage struct{ daemon, redis, rewrites, receiver, load time.Duration }

func (s *stack) usage() (u usage, err error) {
	for _, d := range s.daemons {
		t, _, e := cpuTime(d.Pid())
		u.daemon, err = u.daemon+t, errors.Join(err, e)
	}
	var e1, e2 error
	u.redis, u.rewrites, e1 = cpuTime(s.redis.Pid())
	u.receiver, _, e2 = cpuTime(s.receiver.Pid())
	return u, errors.Join(err, e1, e2)
}

func (u usage) since(v usage) usage {
	return usage{u.daemon - v.daemon, u.redis - v.redis, u.rewrites - v.rewrites, u.receiver - v.receiver, u.load - v.load}
}

// drainTime is how long a backlog may take to be delivered.
const drainTime = 10 * time.Minute

// awaitDistinct waits until the receiver has acknowledged n different deliveries.
func (s *stack) awaitDistinct(ctx context.Context, n int64) error {
	var got tally
	err := await(ctx, drainTime, func() (bool, error) {
		var err error
		got, err = s.receiver.tally(ctx)
		return got.Distinct >= n, err
	})
	if err == nil && got.Distinct != n {
		err = errors.New("more than was accepted")
	}
	if err != nil {
		return fmt.Errorf("%d of %d deliveries were received: %w", got.Distinct, n, err)
	}
	return nil
}

// awaitRecorded waits until the daemon has recorded n deliveries as delivered.
func (s *stack) awaitRecorded(ctx context.Context, n int64) error {
	var got int64
	err := await(ctx, drainTime, func() (done bool, err error) {
		got, err = s.daemons[0].delivered(ctx)
		return got >= n, err
	})
	if err == nil && got != n {
		err = errors.New("more than was accepted")
	}
	if err != nil {
		return fmt.Errorf("%d of %d deliveries were recorded: %w", got, n, err)
	}
	return nil
}

// settleTime is how long Redis may still name work when all is recorded.
const settleTime = 10 * time.Second

// awaitSettled waits until no event is pending in Redis.
func (s *stack) awaitSettled(ctx context.Context, limit time.Duration) error {
	var left int64
	err := await(ctx, limit, func() (done bool, err error) {
		left, err = s.redis.pending(ctx)
		return left == 0, err
	})
	if err != nil {
		return fmt.Errorf("%d events are still pending: %w", left, err)
	}
	return nil
}
