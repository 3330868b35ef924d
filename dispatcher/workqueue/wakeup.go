package workqueue

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
)

const (
	wakeupTask  = "partitions:serve" // its payload names partitions
	wakeupQueue = "spendhook"

	// wakeupWorkers is how many wake-ups a replica serves at once. A claim is
	// mostly a round trip, and serving one starts attempts without waiting.
	wakeupWorkers = 4

	enqueueTimeout = 250 * time.Millisecond
	// enqueuePause is how long a replica serves its wake-ups itself after one
	// could not be enqueued, before it tries again.
	enqueuePause = 2 * time.Second
	// pollEvery is how often an idle replica looks for wake-ups of others.
	pollEvery = 200 * time.Millisecond
)

// wakeups spreads wake-ups over the replicas by asynq.
type wakeups struct {
	client *asynq.Client
	server *asynq.Server
	waker  *waker
	paused atomic.Int64 // unix ms until which none is enqueued
}

func newWakeups(o Options) *wakeups {
	w := &waker{UniversalClient: o.Client, nudge: make(chan struct{}, 1)}
	return &wakeups{
		client: asynq.NewClientFromRedisClient(o.Client),
		waker:  w,
		server: asynq.NewServerFromRedisClient(w, asynq.Config{
			Queues:                   map[string]int{wakeupQueue: 1},
			Concurrency:              wakeupWorkers,
			TaskCheckInterval:        o.CheckInterval,
			DelayedTaskCheckInterval: 5 * time.Second, // none is delayed
			ShutdownTimeout:          o.StopTimeout,
			// One whose worker was killed comes again when its lease has expired, and
			// finds nothing to claim: the partition's owner was there long before.
			RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return 0 },
			IsFailure:      func(err error) bool { return !errors.Is(err, asynq.ErrLeaseExpired) },
			Logger:         asynqLog{o.Logger},
			LogLevel:       asynq.ErrorLevel,
		}),
	}
}

// start begins to take wake-ups. serve is called concurrently.
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

// pause takes no more wake-ups.
func (w *wakeups) pause() { w.server.Stop() }

// stop takes no more wake-ups and waits for those under way.
func (w *wakeups) stop() { w.server.Shutdown() }

var errPaused = errors.New("wake-ups are paused after a failure")

// enqueue adds one wake-up for partitions.
func (w *wakeups) enqueue(ctx context.Context, partitions []int) error {
	now := time.Now() //nolint:forbidigo // paces tries, decides nothing
	if now.UnixMilli() < w.paused.Load() {
		return errPaused
	}
	ctx, cancel := context.WithTimeout(ctx, enqueueTimeout)
	defer cancel()
	_, err := w.client.EnqueueContext(ctx, asynq.NewTask(wakeupTask, formatPartitions(partitions)),
		asynq.Queue(wakeupQueue), asynq.MaxRetry(0), asynq.Timeout(time.Minute))
	if err != nil && !errors.Is(err, asynq.ErrTaskIDConflict) { // ids are new, so that one is a repeat after a lost answer
		w.paused.Store(now.Add(enqueuePause).UnixMilli())
		return fmt.Errorf("enqueue wake-up: %w", err)
	}
	w.waker.wake()
	return nil
}

func formatPartitions(partitions []int) []byte {
	out := make([]byte, 0, 4*len(partitions))
	for _, p := range partitions {
		out = append(strconv.AppendInt(out, int64(p), 10), ' ')
	}
	return out
}

func parsePartitions(payload string) []int {
	fields := strings.Fields(payload)
	out := make([]int, 0, len(fields))
	for _, f := range fields {
		if p, err := strconv.Atoi(f); err == nil {
			out = append(out, p)
		}
	}
	return out
}

// waker is the Redis client of an asynq server. asynq polls an empty queue all
// the time; through this client its next look at a queue that was empty waits
// for a wake-up of this process, or for pollEvery.
type waker struct {
	redis.UniversalClient
	nudge chan struct{} // holds one
	empty atomic.Bool   // the last look found nothing
}

func (w *waker) wake() {
	select {
	case w.nudge <- struct{}{}:
	default:
	}
}

// EvalSha delays the dequeue script, known by its keys; all else passes.
func (w *waker) EvalSha(ctx context.Context, sha string, keys []string, args ...any) *redis.Cmd {
	if len(keys) != 4 || !strings.HasSuffix(keys[0], ":pending") || !strings.HasSuffix(keys[1], ":paused") {
		return w.UniversalClient.EvalSha(ctx, sha, keys, args...)
	}
	if w.empty.Load() {
		poll := time.NewTimer(pollEvery)
		select {
		case <-w.nudge:
		case <-poll.C:
		}
		poll.Stop()
	}
	cmd := w.UniversalClient.EvalSha(ctx, sha, keys, args...)
	w.empty.Store(errors.Is(cmd.Err(), redis.Nil))
	return cmd
}

// asynqLog passes asynq's messages on.
type asynqLog struct{ to *slog.Logger }

func (l asynqLog) Debug(args ...any) { l.to.Debug("asynq", "message", fmt.Sprint(args...)) }
func (l asynqLog) Info(args ...any)  { l.to.Debug("asynq", "message", fmt.Sprint(args...)) }
func (l asynqLog) Warn(args ...any)  { l.to.Warn("asynq", "message", fmt.Sprint(args...)) }
func (l asynqLog) Error(args ...any) { l.to.Error("asynq", "message", fmt.Sprint(args...)) }
func (l asynqLog) Fatal(args ...any) { l.to.Error("asynq", "message", fmt.Sprint(args...)) }
