package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"
)

// stack is one Redis or a Cluster, one or more daemons on it, and a receiver.
type stack struct {
	dir         string
	redis       *redisServer   // the only server, or the first master
	masters     []*redisServer // all masters, or the only server
	daemons     []*daemon
	receiver    *receiverProcess
	other       *receiverProcess // of the bystanders; nil without bystanders
	certificate certificate
	settings    settings
	options     stackOptions
	runs        int64
}

// stackOptions describe a stack. The zero value is one daemon with default settings.
type stackOptions struct {
	replicas int
	delivery string // settings of the delivery section, as in YAML
	more     string // further sections, each on a line
	receiver receiverOptions
	other    bool // a second receiver, in a process of its own
	masters  int  // of a Redis Cluster; 0: one server

	environment []string // of the daemons, besides our own

	bareHosts int // endpoints that the bare loop sends to; 0: one
}

func startStack(ctx context.Context, s settings, o stackOptions) (_ *stack, err error) {
	st := &stack{settings: s, options: o}
	defer func() {
		if err != nil {
			st.stop()
		}
	}()
	if st.dir, err = os.MkdirTemp(s.Dir, "bench-"); err != nil {
		return nil, err
	}
	if err = st.startRedis(ctx); err != nil {
		return nil, err
	}
	if err = st.startReceivers(ctx); err != nil {
		return nil, err
	}
	return st, st.addReplicas(ctx, max(o.replicas, 1))
}

func (s *stack) startRedis(ctx context.Context) (err error) {
	if s.options.masters > 0 {
		s.masters, err = startCluster(ctx, s.dir, s.options.masters)
	} else {
		s.redis, err = startRedis(ctx, s.dir)
		s.masters = []*redisServer{s.redis}
	}
	if err == nil {
		s.redis = s.masters[0]
	}
	return err
}

func (s *stack) startReceivers(ctx context.Context) (err error) {
	if s.options.receiver.tls {
		if s.certificate, err = makeCertificate(s.dir); err != nil {
			return err
		}
	}
	args := s.options.receiver.args(s.certificate)
	if s.receiver, err = startReceiver(ctx, s.dir, "receiver", args...); err != nil || !s.options.other {
		return err
	}
	s.other, err = startReceiver(ctx, s.dir, "other-receiver", args...)
	return err
}

// addReplicas starts daemons until there are n.
func (s *stack) addReplicas(ctx context.Context, n int) error {
	for i := len(s.daemons); i < n; i++ {
		d, err := startDaemon(ctx, daemonOptions{
			program: s.settings.Spendhook, dir: s.dir, id: fmt.Sprintf("daemon%d", i), redis: redisURL(s.masters),
			settings: s.options.delivery, more: s.options.more, ca: s.certificate.ca, variables: s.options.environment,
		})
		if err != nil {
			return err
		}
		s.daemons = append(s.daemons, d)
	}
	return nil
}

// stop kills the processes and removes their files. It does not wait for hanging attempts.
func (s *stack) stop() {
	for _, d := range s.daemons {
		d.Kill()
	}
	for _, r := range []*receiverProcess{s.receiver, s.other} {
		if r != nil {
			r.Kill()
		}
	}
	for _, r := range s.masters {
		if r != nil {
			r.Kill()
		}
	}
	if s.dir != "" {
		_ = os.RemoveAll(s.dir)
	}
}

// subscribe gives each of the first companies so many subscribers, each on the next endpoint of
// the receiver, and returns their ids.
func (s *stack) subscribe(ctx context.Context, companies, each int) ([]string, error) {
	return s.daemons[0].subscribeAll(ctx, s.receiver.subscriptions(firstOf(companies), each))
}

// newRun resets the receivers. They count only the events of the new run.
func (s *stack) newRun(ctx context.Context) (int64, error) {
	s.runs++
	err := s.receiver.reset(ctx, s.runs)
	if s.other != nil {
		err = errors.Join(err, s.other.reset(ctx, s.runs))
	}
	return s.runs, err
}

// newOtherRun is newRun for the other receiver alone.
func (s *stack) newOtherRun(ctx context.Context) (int64, error) {
	s.runs++
	return s.runs, s.other.reset(ctx, s.runs)
}

// bareTargets returns the endpoints that the bare loop sends to.
func (s *stack) bareTargets() []target {
	var list []target
	for _, url := range s.receiver.Endpoints[:max(s.options.bareHosts, 1)] {
		list = append(list, target{URL: url})
	}
	return list
}

// uncounted is a run that no receiver counts.
const uncounted = 0

// targets returns the daemons as targets of the load generator.
func (s *stack) targets() []target {
	var list []target
	for _, d := range s.daemons {
		list = append(list, target{URL: d.base + "/api/v1/events", Token: d.token})
	}
	return list
}

// bareClients is the number of goroutines of the bare loop and of a load.
const bareClients = 64

// bare returns the requests per second of a plain loop of POSTs to the receiver.
func (s *stack) bare(ctx context.Context) (float64, error) {
	run, err := s.newRun(ctx)
	if err != nil {
		return 0, err
	}
	result, _, err := generate(ctx, loadSpec{
		Targets: s.bareTargets(), Bare: true, Run: run, Companies: 1,
		Clients: bareClients, Batch: 1, Count: maxEvents, For: s.settings.BareFor,
		CA: s.certificate.ca, HTTP2: s.options.receiver.http2,
	})
	if err != nil {
		return 0, fmt.Errorf("bare loop: %w", err)
	}
	return float64(result.Accepted) / result.Took.Seconds(), nil
}

// usage is the CPU time that the processes have used. rewrites is that of the child processes in
// which Redis rewrites its append-only file.
type usage struct{ daemon, redis, rewrites, receiver, load time.Duration }

func (s *stack) usage() (u usage, err error) {
	for _, d := range s.daemons {
		t, _, e := cpuTime(d.Pid())
		u.daemon, err = u.daemon+t, errors.Join(err, e)
	}
	var e1, e2 error
	for _, r := range s.masters {
		own, children, e := cpuTime(r.Pid())
		u.redis, u.rewrites, e1 = u.redis+own, u.rewrites+children, errors.Join(e1, e)
	}
	u.receiver, _, e2 = cpuTime(s.receiver.Pid())
	return u, errors.Join(err, e1, e2)
}

func (u usage) since(v usage) usage {
	return usage{u.daemon - v.daemon, u.redis - v.redis, u.rewrites - v.rewrites, u.receiver - v.receiver, u.load - v.load}
}

// drainTime is how long a backlog may take to be delivered.
const drainTime = 10 * time.Minute

// awaitDistinct waits until the receiver has acknowledged exactly n different deliveries.
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

// delivered returns how many deliveries the daemons have recorded as delivered.
func (s *stack) delivered(ctx context.Context) (n int64, err error) {
	for _, d := range s.daemons {
		of, failed := d.delivered(ctx)
		n, err = n+of, errors.Join(err, failed)
	}
	return n, err
}

// awaitRecorded waits until the daemons have recorded exactly n deliveries as delivered.
func (s *stack) awaitRecorded(ctx context.Context, n int64) error {
	var got int64
	err := await(ctx, drainTime, func() (done bool, err error) {
		got, err = s.delivered(ctx)
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

// settleTime is how long events may stay pending after all deliveries are recorded.
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
