package workqueue

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"spendhook/internal/pacedlog"
	"spendhook/internal/partition"
)

const (
	wakeupTask  = "partitions:serve" // its payload names partitions
	wakeupQueue = "spendhook"

	// wakeupWorkers is how many wake-ups a replica serves at once. Others are left to other
	// replicas.
	wakeupWorkers = 4

	// wakeupMost is how many partitions a wake-up names at most, so that a burst is spread over
	// the replicas.
	wakeupMost = 16

	enqueueTimeout = 250 * time.Millisecond
	// wakeupSlow is the time after which a replica serves the partitions of a wake-up
	// itself if its asynq server has not polled since: another asynq key may be on a
	// shard that hangs.
	wakeupSlow = 25 * time.Millisecond
	// pollEvery is how often an idle replica polls for wake-ups of other replicas.
	pollEvery = 200 * time.Millisecond
)

// wakeups distributes wake-ups over the replicas through asynq.
type wakeups struct {
	client *asynq.Client
	server *asynq.Server
	waker  *waker
	trying sync.WaitGroup // wake-ups are being enqueued
}

// newWakeups makes wakeups that takes none while full returns true.
func newWakeups(o Options, full func() bool) *wakeups {
	w := &waker{UniversalClient: o.Client, full: full, nudge: make(chan struct{}, 1)}
	return &wakeups{
		client: asynq.NewClientFromRedisClient(o.Client),
		waker:  w,
		server: asynq.NewServerFromRedisClient(w, asynq.Config{
			Queues:                   map[string]int{wakeupQueue: 1},
			Concurrency:              wakeupWorkers,
			TaskCheckInterval:        o.CheckInterval,
			DelayedTaskCheckInterval: 5 * time.Second, // none is delayed
			ShutdownTimeout:          o.StopTimeout,
			// A wake-up of a killed worker is retried when its lease has expired. By then
			// the owner has served the partition.
			RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return 0 },
			IsFailure:      func(err error) bool { return !errors.Is(err, asynq.ErrLeaseExpired) },
			Logger:         asynqLog{pacedlog.New(o.Logger, "asynq", nil)},
			LogLevel:       asynq.ErrorLevel,
		}),
	}
}

// start starts to take wake-ups. serve is called concurrently.
func (w *wakeups) start(serve func(partitions []int)) error {
	err := w.server.Start(asynq.HandlerFunc(func(_ context.Context, t *asynq.Task) error {
		serve(parsePartitions(string(t.Payload())))
		return nil
	}))
	if err != nil {
		return fmt.Errorf("take wake-ups: %w", err)
	}
	return nil
}

// takeNoMore leaves all wake-ups to other replicas. This replica still enqueues some.
func (w *wakeups) takeNoMore() { w.server.Stop() }

// stop takes no more wake-ups and waits for those under way.
func (w *wakeups) stop() {
	w.server.Shutdown()
	w.trying.Wait()
}

// enqueue enqueues wake-ups for partitions.
func (w *wakeups) enqueue(ctx context.Context, partitions []int) error {
	ctx, cancel := context.WithTimeout(ctx, enqueueTimeout)
	defer cancel()
	for part := range slices.Chunk(partitions, wakeupMost) {
		_, err := w.client.EnqueueContext(ctx, asynq.NewTask(wakeupTask, formatPartitions(part)),
			asynq.Queue(wakeupQueue), asynq.MaxRetry(0), asynq.Timeout(time.Minute))
		if err != nil && !errors.Is(err, asynq.ErrTaskIDConflict) { // task ids are random: a conflict is a repeat after a lost answer
			return fmt.Errorf("enqueue wake-up: %w", err)
		}
		w.waker.wake()
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
	polls := q.wakeups.waker.polls.Load()
	q.mu.Lock()
	stopping := q.ctx.Err() != nil
	if !stopping {
		for _, p := range partitions {
			q.unwoken[p] = true
		}
		if !q.waking {
			q.waking = true
			q.wakeups.trying.Go(q.enqueueWakeups)
		}
	}
	q.mu.Unlock()
	if stopping { // wake other replicas; if that fails, the owner serves the partition soon
		_ = q.wakeups.enqueue(ctx, partitions)
		return
	}
	time.AfterFunc(wakeupSlow, func() {
		if q.wakeups.waker.polls.Load() == polls { // asynq waits for Redis, or all its workers are busy
			q.Kick(partitions...)
		}
	})
}

// enqueueWakeups enqueues wake-ups until none is left.
func (q *Queue) enqueueWakeups() {
	for {
		var partitions []int
		q.set(func() {
			partitions = slices.Collect(maps.Keys(q.unwoken))
			clear(q.unwoken)
			q.waking = len(partitions) > 0
		})
		if len(partitions) == 0 {
			return
		}
		if err := q.wakeups.enqueue(context.Background(), partitions); err != nil { // the queue of wake-ups may hang
			q.metrics.wakeupsFailed.Inc()
			q.Kick(partitions...)
		} else {
			q.metrics.enqueued.Add(math.Ceil(float64(len(partitions)) / wakeupMost))
		}
	}
}

func formatPartitions(partitions []int) []byte {
	return []byte(strings.Trim(fmt.Sprint(partitions), "[]"))
}

func parsePartitions(payload string) []int {
	fields := strings.Fields(payload)
	out := make([]int, 0, len(fields))
	for _, f := range fields {
		if p, err := strconv.Atoi(f); err == nil && p >= 0 && p < partition.Count {
			out = append(out, p)
		}
	}
	return out
}

// waker is the Redis client of an asynq server. asynq polls an empty queue without pause.
// After an empty poll, this client delays the next poll until this process enqueues a
// wake-up, or for pollEvery. While the replica is full, each poll finds nothing.
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

// asynqLog logs asynq's messages at a limited pace: several of its loops report the same
// problem every few seconds, and no work depends on them.
type asynqLog struct{ to *pacedlog.Problems }

func (l asynqLog) Debug(args ...any) { l.to.Debug(context.Background(), fmt.Sprint(args...)) }
func (l asynqLog) Info(args ...any)  { l.to.Debug(context.Background(), fmt.Sprint(args...)) }
func (l asynqLog) Warn(args ...any)  { l.to.Log(context.Background(), fmt.Sprint(args...)) }
func (l asynqLog) Error(args ...any) { l.to.Log(context.Background(), fmt.Sprint(args...)) }
func (l asynqLog) Fatal(args ...any) { l.to.Log(context.Background(), fmt.Sprint(args...)) }
