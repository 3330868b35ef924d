package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
)

// The kinds of task. Payloads hold identifiers only: asynq rewrites those of
// its active tasks every few seconds.
const (
	taskDispatch = "event:dispatch"   // event references
	taskAttempt  = "delivery:attempt" // the stamp of their hand-out, then delivery references
	taskJob      = "subscriber:job"   // a job reference
)

// QueueOptions configures [NewQueue]. Zero values mean the defaults.
type QueueOptions struct {
	Client        redis.UniversalClient
	Queues        int           // asynq queues of new events, one server each; default 1
	CheckInterval time.Duration // between two looks at an empty queue, which also waits for a task; default 1 ms
	StopTimeout   time.Duration // how long tasks may go on once stopping; default 5 s
	Logger        *slog.Logger
}

// queueAgain is the queue of what is handed out once more: retries, recovered
// work and jobs. It does not wait behind a burst of new events, nor they behind it.
const queueAgain = "spendhook-again"

// Queue hands tasks to asynq and works on them, one asynq server for each
// queue since a server takes in one task at a time. It is safe for concurrent
// use.
type Queue struct {
	redis     redis.UniversalClient
	client    atomic.Pointer[asynq.Client]
	inspector *asynq.Inspector
	servers   []*asynq.Server
	names     []string // the last is queueAgain
	wakers    []*waker
	turn      atomic.Uint64
}

// NewQueue returns a queue that is not yet worked on.
func NewQueue(o QueueOptions) *Queue {
	q := &Queue{redis: o.Client, inspector: asynq.NewInspectorFromRedisClient(o.Client)}
	q.client.Store(asynq.NewClientFromRedisClient(o.Client))
	for i := range max(o.Queues, 1) {
		q.names = append(q.names, "spendhook"+strconv.Itoa(i))
	}
	q.names = append(q.names, queueAgain)
	for _, name := range q.names {
		w := &waker{UniversalClient: o.Client, nap: longestNap, nudge: make(chan struct{}, 1)}
		if name == queueAgain {
			w.nap = napAgain
		}
		q.wakers = append(q.wakers, w)
		q.servers = append(q.servers, asynq.NewServerFromRedisClient(w, serverConfig(name, o)))
	}
	return q
}

// workers is how many tasks a server begins at once. Few, since each may hold a
// task that waits for room.
const workers = 4

func serverConfig(queue string, o QueueOptions) asynq.Config {
	concurrency := workers
	if queue == queueAgain {
		concurrency += maxJobs // a job stays
	}
	return asynq.Config{
		Queues:                   map[string]int{queue: 1},
		Concurrency:              concurrency,
		TaskCheckInterval:        orDuration(o.CheckInterval, time.Millisecond),
		DelayedTaskCheckInterval: 5 * time.Second, // only tasks whose handler panicked are delayed
		ShutdownTimeout:          orDuration(o.StopTimeout, 5*time.Second),
		RetryDelayFunc:           retryDelay,
		IsFailure:                func(err error) bool { return !errors.Is(err, asynq.ErrLeaseExpired) },
		Logger:                   asynqLog{o.Logger},
		LogLevel:                 asynq.WarnLevel,
	}
}

// retryDelay is for a task whose handler panicked. Tasks of a crashed replica
// are long taken over by our own means when asynq finds them, so these come at
// once, find nothing to do, and are gone.
func retryDelay(_ int, err error, _ *asynq.Task) time.Duration {
	if errors.Is(err, asynq.ErrLeaseExpired) {
		return 0
	}
	return time.Second
}

// inTurn is the index of the next queue for new events.
func (q *Queue) inTurn() int {
	return int(q.turn.Add(1) % uint64(len(q.names)-1)) //nolint:gosec // small
}

// again is the index of queueAgain.
func (q *Queue) again() int { return len(q.names) - 1 }

// enqueue adds a task to the i-th queue.
func (q *Queue) enqueue(ctx context.Context, i int, kind, payload string) error {
	defer q.wakers[i].wake()
	_, err := q.client.Load().EnqueueContext(ctx, asynq.NewTask(kind, []byte(payload)),
		asynq.Queue(q.names[i]), asynq.MaxRetry(math.MaxInt32), asynq.Timeout(taskTimeout))
	if err != nil && !errors.Is(err, asynq.ErrTaskIDConflict) { // ids are new, so that one is a repeat after a lost answer
		return fmt.Errorf("enqueue %s: %w", kind, err)
	}
	return nil
}

// taskTimeout bounds one task: a page of a job is the longest.
const taskTimeout = 10 * time.Minute

// start begins work. handle is called concurrently.
func (q *Queue) start(handle func(ctx context.Context, id, kind, payload string)) error {
	h := asynq.HandlerFunc(func(ctx context.Context, t *asynq.Task) error {
		id, _ := asynq.GetTaskID(ctx)
		handle(ctx, id, t.Type(), string(t.Payload()))
		return nil
	})
	for i, s := range q.servers {
		if err := s.Start(h); err != nil {
			for _, started := range q.servers[:i] {
				started.Shutdown()
			}
			return fmt.Errorf("start queue %s: %w", q.names[i], err)
		}
	}
	return nil
}

// stop takes in no more tasks, waits for the running ones, and hands back what
// takes too long.
func (q *Queue) stop() {
	var wg sync.WaitGroup
	for _, s := range q.servers {
		wg.Go(s.Shutdown)
	}
	wg.Wait()
}

// queueState is the depth of one queue.
type queueState struct {
	name                              string
	pending, active, retry, scheduled int
	oldestWait                        time.Duration // since the oldest pending task was enqueued
}

// states reads every queue. One that asynq does not know is empty: it learns of
// a queue with the first task that each client enqueues, so if its keys were
// lost a new client must make it known again.
func (q *Queue) states() ([]queueState, error) {
	known, err := q.inspector.Queues()
	if err != nil {
		return nil, fmt.Errorf("list queues: %w", err)
	}
	out := make([]queueState, len(q.names))
	for i, name := range q.names {
		out[i].name = name
		if !slices.Contains(known, name) {
			q.client.Store(asynq.NewClientFromRedisClient(q.redis))
			continue
		}
		info, err := q.inspector.GetQueueInfo(name)
		if err != nil {
			return nil, fmt.Errorf("inspect queue %s: %w", name, err)
		}
		out[i].pending, out[i].active = info.Pending, info.Active
		out[i].retry, out[i].scheduled = info.Retry, info.Scheduled
		out[i].oldestWait = info.Latency
	}
	return out, nil
}

// asynqLog passes asynq's messages on; what matters of them is in our own lines.
type asynqLog struct{ to *slog.Logger }

func (l asynqLog) Debug(args ...any) { l.to.Debug("asynq", "message", fmt.Sprint(args...)) }
func (l asynqLog) Info(args ...any)  { l.to.Debug("asynq", "message", fmt.Sprint(args...)) }
func (l asynqLog) Warn(args ...any)  { l.to.Warn("asynq", "message", fmt.Sprint(args...)) }
func (l asynqLog) Error(args ...any) { l.to.Error("asynq", "message", fmt.Sprint(args...)) }
func (l asynqLog) Fatal(args ...any) { l.to.Error("asynq", "message", fmt.Sprint(args...)) }

// parseAttemptPayload reads the stamp of a hand-out and its references.
func parseAttemptPayload(payload string) (stamp int64, refs []ref, err error) {
	first, rest, _ := strings.Cut(payload, " ")
	if stamp, err = strconv.ParseInt(first, 10, 64); err != nil {
		return 0, nil, fmt.Errorf("attempt task stamp: %w", err)
	}
	for _, text := range unpackRefs(rest) {
		r, err := parseRef(text)
		if err != nil {
			return 0, nil, err
		}
		refs = append(refs, r)
	}
	return stamp, refs, nil
}

func orInt(v, otherwise int) int {
	if v > 0 {
		return v
	}
	return otherwise
}

func orDuration(v, otherwise time.Duration) time.Duration {
	if v > 0 {
		return v
	}
	return otherwise
}
