package cardjobs

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"spendhook/events"
	"spendhook/storage"
)

// The environment of a child process that only runs a replica.
const (
	childURL    = "CARDJOBS_TEST_REDIS"
	childSQL    = "CARDJOBS_TEST_POSTGRES"
	childSQLite = "CARDJOBS_TEST_SQLITE"
)

// runChild works until it is killed.
func runChild() {
	store, err := storage.Open(storage.Options{URL: os.Getenv(childSQL), DataDir: os.Getenv(childSQLite), Timeout: 20 * time.Second})
	if err == nil {
		err = store.Migrate(context.Background())
	}
	client := redis.NewClient(&redis.Options{Network: "unix", Addr: os.Getenv(childURL)})
	if err == nil {
		err = New(Options{
			Store: store, Queue: NewQueue(QueueOptions{Client: client, CheckInterval: 5 * time.Millisecond, Concurrency: 2}),
			Publish:      newPublisher(events.NewStore(events.StoreOptions{Client: client, Retention: retention})).Accept,
			RecoverEvery: 50 * time.Millisecond, RecoverAfter: 300 * time.Millisecond,
		}).Start(context.Background())
	}
	if err != nil {
		fmt.Fprintln(os.Stdout, err)
		os.Exit(1)
	}
	fmt.Fprintln(os.Stdout, "working")
	select {}
}

// child starts a replica in a process of its own and returns what kills it.
func (h *harness) child() (kill func()) {
	h.t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childURL+"="+h.server.Socket(), childSQL+"="+h.options.URL, childSQLite+"="+h.options.DataDir)
	cmd.Stderr = os.Stderr
	out := must(cmd.StdoutPipe())(h.t)
	if err := cmd.Start(); err != nil {
		h.t.Fatal(err)
	}
	kill = sync.OnceFunc(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	h.t.Cleanup(kill)
	if line, _ := bufio.NewReader(out).ReadString('\n'); line != "working\n" {
		h.t.Fatalf("the child says %q", line)
	}
	return kill
}

func TestBulkOf500With50DoomedThroughFiveKills(t *testing.T) {
	t.Parallel()
	onBoth(t, func(h *harness) {
		job := h.replica(nil).submit(bulk(500))
		for i := range 5 {
			kill := h.child()
			h.wantFinished(job.UUID, h.finished(job.UUID)+10)
			kill()
			if n := h.finished(job.UUID); n == 500 {
				h.t.Errorf("kill %d came when all was done", i+1)
			}
		}
		h.child()
		h.wantDone(job.UUID)
	})
}

func TestCrashAfterStoreBeforeEnqueue(t *testing.T) {
	t.Parallel()
	onBoth(t, func(h *harness) {
		job := must(h.store.CreateCardJob(h.t.Context(), acme, bulk(60), storage.Once{}))(h.t)
		r := h.replica(nil).start()
		h.wantDone(job.UUID)
		if n := r.items(itemCreated) + r.items(itemError); n != 60 {
			h.t.Errorf("%v items counted", n)
		}
	})
}

func TestCrashAmidEnqueue(t *testing.T) {
	t.Parallel()
	onBoth(t, func(h *harness) {
		r := h.replica(nil)
		job := must(h.store.CreateCardJob(h.t.Context(), acme, bulk(60), storage.Once{}))(h.t)
		if err := r.opts.Queue.enqueue(h.t.Context(), job.UUID, []int{3, 59, 7}, job.CreatedAt); err != nil {
			h.t.Fatal(err)
		}
		r.start()
		h.wantDone(job.UUID)
	})
}

func TestCrashAfterCreateBeforePublish(t *testing.T) {
	t.Parallel()
	onBoth(t, func(h *harness) {
		job := must(h.store.CreateCardJob(h.t.Context(), acme, bulk(60), storage.Once{}))(h.t)
		for i := range 60 {
			must(h.store.CreateCardForItem(h.t.Context(), job.UUID, i, time.Now()))(h.t)
		}
		h.replica(nil).start()
		h.wantDone(job.UUID)
	})
}

// A publisher that fails at first, before or after it took the event, leaves
// what two crash points leave.
func TestOutcomesThatAreNotPublishedAtOnce(t *testing.T) {
	t.Parallel()
	for name, publishFirst := range map[string]bool{"before publish": false, "after publish before mark": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onBoth(t, func(h *harness) {
				var failed sync.Map
				r := h.replica(func(o *Options) {
					o.Publish = func(ctx context.Context, batch []events.Event) ([]events.Result, error) {
						if _, again := failed.LoadOrStore(batch[0].ID, true); again {
							return h.publish(ctx, batch)
						}
						if publishFirst {
							_, _ = h.publish(ctx, batch)
						}
						return nil, events.ErrUnavailable
					}
				}).start()
				h.wantDone(r.submit(bulk(60)).UUID)
			})
		})
	}
}

// Each item has three tasks, and the last of its tasks finds it finished.
func TestTasksThatRunTwiceAtTheSameTime(t *testing.T) {
	t.Parallel()
	onBoth(t, func(h *harness) {
		r := h.replica(nil)
		job := r.submit(bulk(60))
		indexes := make([]int, 0, 60)
		for i := range 60 {
			indexes = append(indexes, i)
		}
		for _, stamp := range []int64{1, 2} {
			if err := r.opts.Queue.enqueue(h.t.Context(), job.UUID, indexes, time.UnixMilli(stamp)); err != nil {
				h.t.Fatal(err)
			}
		}
		if n := h.queued().Pending; n != 180 {
			h.t.Fatalf("%d tasks, want 180", n)
		}
		r.start()
		eventually(h.t, "all tasks have run", func() bool { return h.queued().Size == 0 })
		h.wantDone(job.UUID)
	})
}

func TestQueueDeleted(t *testing.T) {
	t.Parallel()
	onBoth(t, func(h *harness) {
		r := h.replica(nil)
		job := r.submit(bulk(200))
		h.loseQueue()
		r.start()
		h.wantFinished(job.UUID, 20)
		h.loseQueue()
		h.wantDone(job.UUID)
	})
}

func TestTwoReplicasShareTheWork(t *testing.T) {
	t.Parallel()
	onBoth(t, func(h *harness) {
		a, b := h.replica(nil).start(), h.replica(nil).start()
		job := h.wantDone(a.submit(bulk(500)).UUID)
		if n := a.items(itemCreated) + b.items(itemCreated); n != 450 {
			h.t.Errorf("%v created items counted", n)
		}
		if n := a.items(itemError) + b.items(itemError); n != 50 {
			h.t.Errorf("%v failed items counted", n)
		}
		if a.items(itemCreated) == 0 || b.items(itemCreated) == 0 {
			h.t.Error("one replica did it all")
		}
		eventually(h.t, "the job is counted", func() bool { return a.jobs(storage.JobCompleted)+b.jobs(storage.JobCompleted) > 0 })
		if a.jobs(storage.JobQueued) != 1 || b.jobs(storage.JobQueued) != 0 {
			h.t.Error("the submitted job is not counted once")
		}
		for _, r := range []*replica{a, b} {
			r.stop(time.Minute)
			if err := r.countFinished(h.t.Context(), nil); err != nil {
				h.t.Error(err)
			}
		}
		if n := a.jobs(storage.JobCompleted) + b.jobs(storage.JobCompleted); n != 1 {
			h.t.Errorf("job %s was counted %v times", job.UUID, n)
		}
	})
}

func TestStopUnderLoadLosesNothing(t *testing.T) {
	t.Parallel()
	for name, grace := range map[string]time.Duration{"with grace": time.Minute, "at once": 0} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onBoth(t, func(h *harness) {
				r := h.replica(nil).start()
				job := r.submit(bulk(500))
				h.wantFinished(job.UUID, 20)
				r.stop(grace)
				n := h.finished(job.UUID)
				if n == 500 {
					h.t.Error("stop waited for the whole job")
				}
				if q := h.queued(); q.Active > 0 || q.Size < 500-n {
					h.t.Errorf("%d items done, but the queue holds %+v", n, q)
				}
				h.replica(func(o *Options) { o.RecoverAfter = time.Hour }).start() // the queue has all
				h.wantDone(job.UUID)
			})
		})
	}
}

func TestRedisAwayWhileItWorks(t *testing.T) {
	t.Parallel()
	onBoth(t, func(h *harness) {
		if err := h.client.ConfigSet(h.t.Context(), "appendfsync", "always").Err(); err != nil {
			h.t.Fatal(err) // what it answered must still be there after the kill
		}
		r := h.replica(nil).start()
		job := r.submit(bulk(500))
		h.wantFinished(job.UUID, 20)
		h.server.Kill()
		h.server.Restart()
		h.wantDone(job.UUID)
	})
}

func TestSubmitAnswersWithoutRedis(t *testing.T) {
	t.Parallel()
	onBoth(t, func(h *harness) {
		r := h.replica(nil)
		h.server.Kill()
		start := time.Now()
		job := r.submit(bulk(60))
		if took := time.Since(start); took > 20*time.Second {
			h.t.Errorf("took %s", took)
		}
		h.server.Restart()
		r.start()
		h.wantDone(job.UUID)
	})
}
