package cardjobs

import (
	"bufio"
	"context"
	"fmt"
	"math"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"spendhook/events"
	"spendhook/events/publish"
	"spendhook/internal/waittest"
	"spendhook/storage"
	"spendhook/storage/cards"
	"spendhook/storage/storagetest"
)

// The environment of a child process that only runs a replica.
const (
	childURL    = "CARDJOBS_TEST_REDIS"
	childSQL    = "CARDJOBS_TEST_POSTGRES"
	childSQLite = "CARDJOBS_TEST_SQLITE"
	childLimit  = "CARDJOBS_TEST_LIMIT"
)

// runChild works until it is killed. After about childLimit events its workers block, so that it
// cannot finish the job before a late kill.
func runChild() {
	store, err := storage.Open(storage.Options{URL: os.Getenv(childSQL), DataDir: os.Getenv(childSQLite), Timeout: 20 * time.Second})
	if err == nil {
		err = store.Migrate(context.Background())
	}
	client := redis.NewClient(&redis.Options{Network: "unix", Addr: os.Getenv(childURL)})
	if err == nil {
		limit, _ := strconv.ParseInt(os.Getenv(childLimit), 10, 64)
		accept := newPublisher(client).Accept
		var published atomic.Int64
		New(Options{
			Store: cards.New(store, nil), Every: 50 * time.Millisecond,
			Publish: func(ctx context.Context, batch []events.Event) ([]publish.Result, error) {
				if published.Add(int64(len(batch))) > limit {
					select {}
				}
				return accept(ctx, batch)
			},
		}).Start(context.Background())
	}
	if err != nil {
		fmt.Fprintln(os.Stdout, err)
		os.Exit(1)
	}
	fmt.Fprintln(os.Stdout, "working")
	select {}
}

// child starts a replica in its own process and returns a function that kills it. The replica
// blocks after about limit events.
func (h *harness) child(limit int) (kill func()) {
	h.t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childURL+"="+h.server.Socket(), childSQL+"="+h.options.URL, childSQLite+"="+h.options.DataDir,
		childLimit+"="+strconv.Itoa(limit))
	cmd.Stderr = os.Stderr
	out := storagetest.Must(cmd.StdoutPipe())(h.t)
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
		job := h.replica(nil).submit(requests(500))
		for i := range 5 {
			kill := h.child(60)
			h.wantFinished(job.UUID, h.finished(job.UUID)+10)
			kill()
			if n := h.finished(job.UUID); n == 500 {
				h.t.Errorf("kill %d came after the job had ended", i+1)
			}
		}
		h.child(math.MaxInt)
		h.wantDone(job.UUID)
	})
}

func TestCrashAfterStore(t *testing.T) {
	t.Parallel()
	onBoth(t, func(h *harness) {
		job := storagetest.Must(h.store.CreateCardJob(h.t.Context(), acme, requests(60), cards.Once{}))(h.t)
		r := h.replica(nil).start()
		h.wantDone(job.UUID)
		r.stop(patience)
		if n := r.items(itemCreated) + r.items(itemError); n != 60 {
			h.t.Errorf("%v items counted", n)
		}
	})
}

func TestCrashAfterCreateBeforePublish(t *testing.T) {
	t.Parallel()
	onBoth(t, func(h *harness) {
		job := storagetest.Must(h.store.CreateCardJob(h.t.Context(), acme, requests(60), cards.Once{}))(h.t)
		for range 60 {
			h.create(time.Now())
		}
		h.replica(nil).start()
		h.wantDone(job.UUID)
	})
}

// A publisher that fails at first, before or after it accepted the event, leaves the same
// state as a crash at these two points. The outcomes are published later.
func TestFailedOutcomesArePublishedLater(t *testing.T) {
	t.Parallel()
	for name, publishFirst := range map[string]bool{"before publish": false, "after publish before mark": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onBoth(t, func(h *harness) {
				var failed sync.Map
				r := h.replica(func(o *Options) {
					o.Publish = func(ctx context.Context, batch []events.Event) ([]publish.Result, error) {
						if _, again := failed.LoadOrStore(batch[0].ID, true); again {
							return h.publish(ctx, batch)
						}
						if publishFirst {
							_, _ = h.publish(ctx, batch)
						}
						return nil, events.ErrUnavailable
					}
				}).start()
				h.wantDone(r.submit(requests(60)).UUID)
			})
		})
	}
}

// The first replica blocks until the second one has worked on the job, unprompted.
func TestTwoReplicasShareTheWork(t *testing.T) {
	t.Parallel()
	onBoth(t, func(h *harness) {
		helped := make(chan struct{})
		a := h.replica(func(o *Options) {
			o.Publish = func(ctx context.Context, batch []events.Event) ([]publish.Result, error) {
				select {
				case <-helped:
				case <-ctx.Done():
				}
				return h.publish(ctx, batch)
			}
		}).start()
		help := sync.OnceFunc(func() { close(helped) })
		b := h.replica(func(o *Options) {
			o.Publish = func(ctx context.Context, batch []events.Event) ([]publish.Result, error) {
				help()
				return h.publish(ctx, batch)
			}
		}).start()
		h.wantDone(a.submit(requests(500)).UUID)
		waittest.Until(h.t, "the job is counted", func() bool { return a.jobs()+b.jobs() > 0 })
		a.stop(patience)
		b.stop(patience)
		if n, m := a.items(itemCreated)+b.items(itemCreated), a.items(itemError)+b.items(itemError); n != 450 || m != 50 {
			h.t.Errorf("%v created and %v failed items counted", n, m)
		}
		if a.jobs()+b.jobs() != 1 {
			h.t.Error("the job is not counted once")
		}
	})
}

// The answer to each publication is lost, so that a further try, by either replica, finds the
// event known. Each item and job is counted once.
func TestItemsAndJobsAreCountedOnce(t *testing.T) {
	t.Parallel()
	onBoth(t, func(h *harness) {
		var lost sync.Map
		lose := func(o *Options) {
			o.Publish = func(ctx context.Context, batch []events.Event) ([]publish.Result, error) {
				results, err := h.publish(ctx, batch)
				if _, again := lost.LoadOrStore(batch[0].ID, true); !again {
					return nil, events.ErrUnavailable
				}
				return results, err
			}
		}
		a, b := h.replica(lose).start(), h.replica(lose).start()
		for range 5 {
			a.submit(requests(20))
		}
		jobs := func() uint64 { return a.jobs() + b.jobs() }
		items := func() float64 {
			return a.items(itemCreated) + b.items(itemCreated) + a.items(itemError) + b.items(itemError)
		}
		waittest.Until(h.t, "all is counted", func() bool { return jobs() >= 5 && items() >= 100 })
		a.stop(patience)
		b.stop(patience)
		if jobs() != 5 || items() != 100 {
			h.t.Errorf("%v jobs and %v items counted", jobs(), items())
		}
	})
}

func TestStopUnderLoadLosesNothing(t *testing.T) {
	t.Parallel()
	for name, timeout := range map[string]time.Duration{"drains": time.Minute, "stops at once": 0} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onBoth(t, func(h *harness) {
				r := h.replica(nil).start()
				job := r.submit(requests(500))
				h.wantFinished(job.UUID, 20)
				r.stop(timeout)
				var finished int
				waittest.Until(h.t, "each item is pending or finished", func() bool { // PostgreSQL may still commit what was cut short
					finished = h.finished(job.UUID)
					return finished+storagetest.Must(h.store.PendingItems(h.t.Context()))(h.t) == 500
				})
				if finished == 500 {
					h.t.Error("stop waited for the whole job")
				}
				h.replica(nil).start()
				h.wantDone(job.UUID)
			})
		})
	}
}

func TestRedisRestartsDuringAJob(t *testing.T) {
	t.Parallel()
	onBoth(t, func(h *harness) {
		if err := h.client.ConfigSet(h.t.Context(), "appendfsync", "always").Err(); err != nil {
			h.t.Fatal(err) // answered writes must survive the kill
		}
		r := h.replica(nil).start()
		job := r.submit(requests(500))
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
		job := r.submit(requests(60))
		if took := time.Since(start); took > 20*time.Second {
			h.t.Errorf("took %s", took)
		}
		h.server.Restart()
		r.start()
		h.wantDone(job.UUID)
	})
}
