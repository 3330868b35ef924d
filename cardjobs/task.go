package cardjobs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"
)

const (
	queueName = "spendhook-cards"
	taskItem  = "card:create" // payload: the job's uuid and the item's index
)

const (
	// taskTimeout is what asynq allows a task, after our own itemTimeout.
	taskTimeout = itemTimeout + 5*time.Second
	// enqueueParallel bounds the round trips to Redis at once.
	enqueueParallel = 16
)

// QueueOptions configures [NewQueue]. Client is required; zero values of the
// rest mean the defaults.
type QueueOptions struct {
	Client        redis.UniversalClient
	Concurrency   int           // items worked on at once; default 8
	CheckInterval time.Duration // how often an empty queue is looked at; default 200 ms
	Logger        *slog.Logger  // nil: discard
}

// Queue hands items to asynq and has them worked on, in a queue and by a server
// of their own: however many there are, no delivery waits behind them. It is
// safe for concurrent use.
type Queue struct {
	opts      QueueOptions
	inspector *asynq.Inspector
	server    *asynq.Server
}

// NewQueue returns a queue that is not yet worked on. It does not close the client.
func NewQueue(o QueueOptions) *Queue {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	q := &Queue{opts: o, inspector: asynq.NewInspectorFromRedisClient(o.Client)}
	q.server = asynq.NewServerFromRedisClient(o.Client, q.config())
	return q
}

func (q *Queue) config() asynq.Config {
	return asynq.Config{
		Queues:                   map[string]int{queueName: 1},
		Concurrency:              orInt(q.opts.Concurrency, 8),
		TaskCheckInterval:        orDuration(q.opts.CheckInterval, 200*time.Millisecond),
		DelayedTaskCheckInterval: time.Second,
		ShutdownTimeout:          taskTimeout + 2*time.Second,
		RetryDelayFunc:           func(int, error, *asynq.Task) time.Duration { return 0 },
		IsFailure:                isFailure,
		Logger:                   asynqLog{q.opts.Logger},
		LogLevel:                 asynq.WarnLevel,
	}
}

// errKept hands a task back to the queue.
var errKept = errors.New("interrupted by a stop")

// isFailure is true for what asynq may try once more and then drops, which is a
// panic. Stops and crashes do not count.
func isFailure(err error) bool {
	return !errors.Is(err, errKept) && !errors.Is(err, asynq.ErrLeaseExpired)
}

// enqueue adds a task for each item. The stamp of a hand-out makes their ids:
// replicas that hand out the same items at the same stamp add them once, and
// what asynq may still hold of a former hand-out is not in the way of this one.
func (q *Queue) enqueue(ctx context.Context, job uuid.UUID, indexes []int, stamp time.Time) error {
	// A new client makes the queue known again, should its keys have been lost.
	client := asynq.NewClientFromRedisClient(q.opts.Client)
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(enqueueParallel)
	for _, index := range indexes {
		group.Go(func() error {
			payload := fmt.Sprintf("%s %d", job, index)
			id := fmt.Sprintf("%s:%d:%d", job, index, stamp.UnixMilli())
			_, err := client.EnqueueContext(ctx, asynq.NewTask(taskItem, []byte(payload)),
				asynq.Queue(queueName), asynq.TaskID(id), asynq.MaxRetry(1), asynq.Timeout(taskTimeout))
			if err != nil && !errors.Is(err, asynq.ErrTaskIDConflict) {
				return fmt.Errorf("enqueue card items: %w", err)
			}
			return nil
		})
	}
	return group.Wait()
}

// start begins work: handle is called concurrently and reports whether the queue
// must keep the task. It takes its context from the caller, since asynq gives a
// task up at once when the context that it gave ends.
func (q *Queue) start(handle func(job uuid.UUID, index int) (keep bool)) error {
	return q.server.Start(asynq.HandlerFunc(func(_ context.Context, t *asynq.Task) error {
		job, index, err := parsePayload(string(t.Payload()))
		if err != nil {
			return fmt.Errorf("%w: %w", asynq.RevokeTask, err)
		}
		if handle(job, index) {
			return errKept
		}
		return nil
	}))
}

// stop takes in no more tasks and waits for the running ones.
func (q *Queue) stop() { q.server.Shutdown() }

// oldestWait is how long the oldest pending task has been waiting, 0 when none
// is. asynq does not know a queue that never had a task, or has lost its keys.
func (q *Queue) oldestWait() (time.Duration, error) {
	known, err := q.inspector.Queues()
	if err != nil {
		return 0, fmt.Errorf("list queues: %w", err)
	}
	if !slices.Contains(known, queueName) {
		return 0, nil
	}
	info, err := q.inspector.GetQueueInfo(queueName)
	if err != nil {
		return 0, fmt.Errorf("inspect queue %s: %w", queueName, err)
	}
	return info.Latency, nil
}

func parsePayload(payload string) (job uuid.UUID, index int, err error) {
	id, number, _ := strings.Cut(payload, " ")
	if job, err = uuid.Parse(id); err != nil {
		return uuid.Nil, 0, fmt.Errorf("card task: %w", err)
	}
	if index, err = strconv.Atoi(number); err != nil {
		return uuid.Nil, 0, fmt.Errorf("card task: %w", err)
	}
	return job, index, nil
}

// asynqLog passes asynq's messages on; what matters of them is in our own lines.
type asynqLog struct{ to *slog.Logger }

func (l asynqLog) Debug(args ...any) { l.to.Debug("asynq", "message", fmt.Sprint(args...)) }
func (l asynqLog) Info(args ...any)  { l.to.Debug("asynq", "message", fmt.Sprint(args...)) }
func (l asynqLog) Warn(args ...any)  { l.to.Warn("asynq", "message", fmt.Sprint(args...)) }
func (l asynqLog) Error(args ...any) { l.to.Error("asynq", "message", fmt.Sprint(args...)) }
func (l asynqLog) Fatal(args ...any) { l.to.Error("asynq", "message", fmt.Sprint(args...)) }
