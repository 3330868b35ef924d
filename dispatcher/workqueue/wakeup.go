package workqueue

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"spendhook/internal/pacedlog"
)

const (
	wakeupTask  = "partitions:serve" // its payload names partitions
	wakeupQueue = "spendhook"

	// wakeupWorkers is how many wake-ups a replica serves at once. It leaves further ones to other
	// replicas.
	wakeupWorkers = 4

	// wakeupMost is how many partitions a wake-up names at most, so that a burst is spread over
	// the replicas.
	wakeupMost = 16

	enqueueTimeout = 250 * time.Millisecond
	// wakeupSlow is the time after which a replica serves the partitions of a wake-up
	// itself, unless its asynq server has polled since then: the shard of another asynq
	// key may hang.
	wakeupSlow = 25 * time.Millisecond
	// pollEvery is how often an idle replica polls for wake-ups of other replicas.
	pollEvery = 200 * time.Millisecond
)

// wakeups distributes wake-ups over the replicas through asynq.
type wakeups struct {
	client    *asynq.Client
	server    *asynq.Server
	waker     *waker
	enqueuing *sync.WaitGroup
}

// newWakeups returns wakeups. They take no tasks while full returns true.
func newWakeups(o Options, full func() bool) wakeups {
	w := &waker{UniversalClient: o.Client, full: full, nudge: make(chan struct{}, 1)}
	return wakeups{asynq.NewClientFromRedisClient(o.Client), asynq.NewServerFromRedisClient(w, asynq.Config{
		Queues:                   map[string]int{wakeupQueue: 1},
		Concurrency:              wakeupWorkers,
		TaskCheckInterval:        time.Millisecond, // waker delays the polls
		DelayedTaskCheckInterval: 5 * time.Second,  // no wake-up is delayed
		ShutdownTimeout:          10 * serveWait,
		Logger:                   asynqLog{pacedlog.OfLibrary(o.Logger, "asynq")},
		LogLevel:                 asynq.ErrorLevel,
	}), w, new(sync.WaitGroup)}
}

// takeWakeups starts to take wake-ups, and serves their partitions. The payload of a task has a byte
// for each partition.
func (q *Queue) takeWakeups() error {
	err := q.server.Start(asynq.HandlerFunc(func(_ context.Context, t *asynq.Task) error {
		q.metrics.served.Inc()
		var partitions []int
		for _, p := range t.Payload() {
			partitions = append(partitions, int(p))
		}
		q.serve(partitions)
		return nil
	}))
	if err != nil {
		return fmt.Errorf("take wake-ups: %w", err)
	}
	return nil
}

// enqueueWakeup enqueues wake-ups for partitions. A replica may be killed while it serves one:
// asynq then archives the task, and the owners serve its partitions.
func (q *Queue) enqueueWakeup(ctx context.Context, partitions []int) error {
	ctx, cancel := context.WithTimeout(ctx, enqueueTimeout)
	defer cancel()
	for part := range slices.Chunk(partitions, wakeupMost) {
		payload := make([]byte, len(part))
		for i, p := range part {
			payload[i] = byte(p) //nolint:gosec // 0 to 255
		}
		_, err := q.client.EnqueueContext(ctx, asynq.NewTask(wakeupTask, payload),
			asynq.Queue(wakeupQueue), asynq.MaxRetry(0), asynq.Timeout(time.Minute))
		if err != nil && !errors.Is(err, asynq.ErrTaskIDConflict) { // task ids are random: a conflict is a repeat after a lost answer
			q.metrics.wakeupsFailed.Inc()
			return fmt.Errorf("enqueue wake-up: %w", err)
		}
		q.metrics.enqueued.Inc()
		q.waker.wake()
	}
	return nil
}

// Wake enqueues a wake-up for partitions that have work. It does not wait: partitions that come
// while a wake-up is being enqueued share the next one. If it cannot be enqueued, this replica
// serves the partitions itself. After StopClaiming, Wake waits and only tries to enqueue.
func (q *Queue) Wake(ctx context.Context, partitions []int) {
	if len(partitions) == 0 {
		return
	}
	polls := q.waker.polls.Load()
	q.mu.Lock()
	stopping := q.ctx.Err() != nil
	if !stopping {
		for _, p := range partitions {
			q.unwoken[p] = true
		}
		if !q.waking {
			q.waking = true
			q.enqueuing.Go(q.enqueueUnwoken)
		}
	}
	q.mu.Unlock()
	if stopping { // if this fails, the owners serve the partitions soon
		_ = q.enqueueWakeup(ctx, partitions)
		return
	}
	time.AfterFunc(wakeupSlow, func() {
		if q.waker.polls.Load() == polls { // asynq waits for Redis, or all its workers are busy
			q.Kick(partitions...)
		}
	})
}

// enqueueUnwoken enqueues wake-ups until no partition is to be woken.
func (q *Queue) enqueueUnwoken() {
	for {
		var partitions []int
		q.locked(func() {
			partitions = slices.Collect(maps.Keys(q.unwoken))
			clear(q.unwoken)
			q.waking = len(partitions) > 0
		})
		if len(partitions) == 0 {
			return
		}
		if q.enqueueWakeup(context.Background(), partitions) != nil {
			q.Kick(partitions...)
		}
	}
}

// waker is the Redis client of an asynq server. asynq polls an empty queue without pause.
// After an empty poll, this client delays the next poll until this process enqueues a
// wake-up, at most for pollEvery. While the replica has no places, each poll finds nothing.
type waker struct {
	redis.UniversalClient
	full  func() bool   // the replica has no places
	nudge chan struct{} // holds one
	empty atomic.Bool   // the last poll found nothing, or failed
	polls atomic.Uint64 // number of polls
}

func (w *waker) wake() {
	select {
	case w.nudge <- struct{}{}:
	default:
	}
}

// EvalSha delays asynq's dequeue script, recognised by its keys, and passes on all other
// scripts.
func (w *waker) EvalSha(ctx context.Context, sha string, keys []string, args ...any) *redis.Cmd {
	if len(keys) != 4 || !strings.HasSuffix(keys[0], ":pending") || !strings.HasSuffix(keys[1], ":paused") {
		return w.UniversalClient.EvalSha(ctx, sha, keys, args...)
	}
	if w.empty.Load() || w.full() {
		poll := time.NewTimer(pollEvery)
		select {
		case <-w.nudge:
		case <-poll.C:
		}
		poll.Stop()
	}
	if w.full() {
		cmd := redis.NewCmd(ctx)
		cmd.SetErr(redis.Nil)
		return cmd
	}
	w.polls.Add(1)
	cmd := w.UniversalClient.EvalSha(ctx, sha, keys, args...)
	// An error counts as empty: asynq does not pause after errors, and gets one on each
	// poll while Redis is at its memory limit.
	w.empty.Store(cmd.Err() != nil)
	return cmd
}

// asynqLog logs asynq's errors at a limited pace: several of its loops report the same
// problem every few seconds, and no work depends on them.
type asynqLog struct{ to *pacedlog.Problems }

func (l asynqLog) Debug(...any) {}
func (l asynqLog) Info(...any)  {}
func (l asynqLog) Warn(...any)  {}
func (l asynqLog) Error(args ...any) {
	l.to.Log(context.Background(), slog.String("message", fmt.Sprint(args...)))
}
func (l asynqLog) Fatal(args ...any) { l.Error(args...) }
