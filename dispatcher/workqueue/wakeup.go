package workqueue

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"spendhook/internal/pacedlog"
	"spendhook/internal/pause"
)

const (
	wakeupTask = "partitions:serve" // its payload has a byte for each partition

	// wakeupWorkers is how many wake-ups a replica takes at once.
	wakeupWorkers  = 4
	enqueueTimeout = 250 * time.Millisecond
	// pollEvery is how often a replica looks for wake-ups whose message was lost.
	pollEvery = 250 * time.Millisecond
)

// wakeups tell the owners of partitions that there is work. A wake-up is a message, which takes no time,
// and an asynq task in the owner's queue, in case that the message is lost. If both are lost, the owner
// serves the partition at one of its next ticks.
type wakeups struct {
	client    *asynq.Client
	server    *asynq.Server
	receiving *sync.WaitGroup
	enqueuing *sync.WaitGroup
}

// queueOf is the asynq queue of a process.
func queueOf(process string) string { return "spendhook:" + process }

// channelOf is the channel of messages to a process. Its hash tag names the process: a Cluster then has
// one server for it.
func channelOf(process string) string { return "sh:to:{" + process + "}" }

func newWakeups(o Options) wakeups {
	return wakeups{
		client: asynq.NewClientFromRedisClient(o.Client),
		server: asynq.NewServerFromRedisClient(o.Client, asynq.Config{
			Queues:                   map[string]int{queueOf(o.Replica): 1},
			Concurrency:              wakeupWorkers,
			TaskCheckInterval:        pollEvery,
			DelayedTaskCheckInterval: 5 * time.Second, // no wake-up is delayed
			ShutdownTimeout:          time.Second,
			Logger:                   asynqLog{pacedlog.OfLibrary(o.Logger, "asynq")},
			LogLevel:                 asynq.ErrorLevel,
		}),
		receiving: new(sync.WaitGroup), enqueuing: new(sync.WaitGroup),
	}
}

// takeWakeups starts to take wake-ups, and looks at their partitions.
func (q *Queue) takeWakeups() error {
	q.receiving.Go(func() {
		for q.ctx.Err() == nil {
			q.takeMessages(q.subscribe())
			pause.For(q.ctx, time.Second) // before it subscribes again
		}
	})
	err := q.server.Start(asynq.HandlerFunc(func(_ context.Context, t *asynq.Task) error {
		q.metrics.served.Inc()
		q.takeWakeup(t.Payload())
		return nil
	}))
	if err != nil {
		return fmt.Errorf("take wake-ups: %w", err)
	}
	return nil
}

// subscribe subscribes to the messages to this process.
func (q *Queue) subscribe() *redis.PubSub {
	if _, ok := q.opts.Client.(*redis.ClusterClient); ok {
		return q.opts.Client.SSubscribe(q.ctx, channelOf(q.opts.Replica))
	}
	return q.opts.Client.Subscribe(q.ctx, channelOf(q.opts.Replica))
}

// takeMessages takes wake-ups until the subscription ends, at the latest with Leave.
func (q *Queue) takeMessages(from *redis.PubSub) {
	closing := func() { _ = from.Close() } // it ends in any case
	defer closing()
	defer context.AfterFunc(q.ctx, closing)()
	for m := range from.Channel() {
		q.takeWakeup([]byte(m.Payload))
	}
}

// takeWakeup looks at the partitions of a wake-up. When this replica does not own one of them, another
// replica may have given it away.
func (q *Queue) takeWakeup(payload []byte) {
	partitions := make([]int, len(payload))
	for i, p := range payload {
		partitions[i] = int(p)
	}
	own, others := q.divide(partitions)
	q.lookAt(own)
	if len(others) > 0 {
		q.owner.Look()
	}
}

// stopWakeups returns when no more wake-ups are taken.
func (q *Queue) stopWakeups() {
	q.server.Shutdown()
	q.receiving.Wait()
	q.enqueuing.Wait()
}

// divide returns the partitions that this replica owns, and the others.
func (q *Queue) divide(partitions []int) (own, others []int) {
	for _, p := range partitions {
		if q.owner.Token(p) != "" {
			own = append(own, p)
		} else {
			others = append(others, p)
		}
	}
	return own, others
}

// Wake has partitions with work served: by this replica, or by their owners. It does not wait: owners are
// woken together while a wake-up is being sent. After Leave it waits until the owners are woken.
func (q *Queue) Wake(ctx context.Context, partitions []int) {
	own, others := q.divide(partitions)
	q.lookAt(own)
	if len(others) == 0 {
		return
	}
	q.mu.Lock()
	stopping := q.ctx.Err() != nil
	if !stopping {
		for _, p := range others {
			q.unwoken[p] = true
		}
		if !q.waking {
			q.waking = true
			q.enqueuing.Go(q.wakeOthers)
		}
	}
	q.mu.Unlock()
	if stopping {
		q.wakeOwners(ctx, others)
	}
}

// wakeOthers wakes owners until no partition is to be woken.
func (q *Queue) wakeOthers() {
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
		q.wakeOwners(context.Background(), partitions)
	}
}

// wakeOwners sends wake-ups to the owners of partitions. If that fails, they serve them a moment later.
func (q *Queue) wakeOwners(ctx context.Context, partitions []int) {
	ctx, cancel := context.WithTimeout(ctx, enqueueTimeout)
	defer cancel()
	payloads := make(map[string][]byte)
	for _, p := range partitions {
		if process := q.owner.Server(p); process != "" && process != q.opts.Replica {
			payloads[process] = append(payloads[process], byte(p)) //nolint:gosec // 0 to 255
		}
	}
	for process, payload := range payloads {
		if _, ok := q.opts.Client.(*redis.ClusterClient); ok {
			q.opts.Client.SPublish(ctx, channelOf(process), payload)
		} else {
			q.opts.Client.Publish(ctx, channelOf(process), payload)
		}
		_, err := q.client.EnqueueContext(ctx, asynq.NewTask(wakeupTask, payload),
			asynq.Queue(queueOf(process)), asynq.MaxRetry(0), asynq.Timeout(time.Minute))
		if err != nil {
			q.metrics.wakeupsFailed.Inc()
		} else {
			q.metrics.enqueued.Inc()
		}
	}
}

// deleteQueue deletes the asynq queue of a process that is gone. Its wake-ups are of no use.
func (q *Queue) deleteQueue(process string) {
	_ = asynq.NewInspectorFromRedisClient(q.opts.Client).DeleteQueue(queueOf(process), true) // if it fails, the next run of the process takes them
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
