package cardjobs

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/hibiken/asynq"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/redis/go-redis/v9"

	"spendhook/events"
	"spendhook/internal/invalid"
	"spendhook/internal/pgtest"
	"spendhook/storage"
)

func TestSubmitStoresTheJobAndQueuesItsItems(t *testing.T) {
	t.Parallel()
	onBoth(t, func(h *harness) {
		r := h.replica(nil)
		job := r.submit(bulk(60))
		if job.Status != storage.JobQueued || job.Total != 60 || h.finished(job.UUID) != 0 {
			h.t.Errorf("job = %+v", job)
		}
		if n := h.queued().Pending; n != 60 {
			h.t.Errorf("%d tasks", n)
		}
		queues := must(asynq.NewInspectorFromRedisClient(h.client).Queues())(h.t)
		if !slices.Equal(queues, []string{"spendhook-cards"}) {
			h.t.Errorf("queues = %v: deliveries may not wait behind cards", queues)
		}
	})
}

func TestSubmitRefusesWhatStorageRefuses(t *testing.T) {
	t.Parallel()
	onBoth(t, func(h *harness) {
		r := h.replica(nil)
		for _, requests := range [][]storage.CardRequest{nil, bulk(501), {{Type: "VIRTUAL"}}} {
			_, err := r.Submit(h.t.Context(), acme, requests, storage.Once{})
			if _, ok := errors.AsType[*invalid.Error](err); !ok {
				h.t.Errorf("error = %v", err)
			}
		}
		if r.jobs(storage.JobQueued) != 0 || len(must(h.client.Keys(h.t.Context(), "*").Result())(h.t)) != 0 {
			h.t.Error("a refused job left something behind")
		}
	})
}

func TestSubmitDoesNotWaitForARedisThatHangs(t *testing.T) {
	t.Parallel()
	h := build(t, storage.Options{DataDir: t.TempDir()})
	patient := redis.NewClient(&redis.Options{
		Network: "unix", Addr: h.server.Socket(), ContextTimeoutEnabled: true, ReadTimeout: patience, MaxRetries: -1,
	})
	defer patient.Close()
	r := h.replica(func(o *Options) { o.Queue = NewQueue(QueueOptions{Client: patient}) })
	h.server.Pause()
	start := time.Now()
	job := r.submit(bulk(500))
	if took := time.Since(start); took > patience/2 {
		t.Errorf("took %s", took)
	}
	h.server.Resume()
	h.replica(nil).start()
	h.wantDone(job.UUID)
}

func TestContractEventsOfCards(t *testing.T) {
	t.Parallel()
	id := func(n byte) uuid.UUID { return uuid.UUID{15: n} }
	at, card := time.UnixMilli(1_780_000_000_123), id(3)
	item := storage.CardItem{
		JobUUID: id(1), CompanyUUID: id(2), Index: 7, RequestUUID: id(4), Alias: "<Ann & co>", UserUUID: id(5), FinishedAt: &at,
	}
	const head = `{"id":"card-request-00000000-0000-0000-0000-000000000004","companyUuid":"00000000-0000-0000-0000-000000000002","event":"`
	const metadata = `"index":7,"jobUuid":"00000000-0000-0000-0000-000000000001","requestUuid":"00000000-0000-0000-0000-000000000004","userUuid":"00000000-0000-0000-0000-000000000005"}`
	created, failed := item, item
	created.Status, created.CardUUID = storage.ItemCreated, &card
	failed.Status, failed.ErrorCode, failed.ErrorMessage = storage.ItemError, "USER_NOT_FOUND", "no such user"
	for want, item := range map[string]storage.CardItem{
		head + `CARD_CREATION_REQUEST_CREATED","timestamp":"2026-05-28T20:26:40.123Z","metadata":{"alias":"<Ann & co>","cardUuid":"00000000-0000-0000-0000-000000000003",` + metadata + `}`:        created,
		head + `CARD_CREATION_REQUEST_ERROR","timestamp":"2026-05-28T20:26:40.123Z","metadata":{"alias":"<Ann & co>",` + metadata + `,"errorCode":"USER_NOT_FOUND","errorMessage":"no such user"}`: failed,
	} {
		e := must(event(&item))(t)
		if got := string(must(e.Body())(t)); got != want {
			t.Errorf("body = %s\nwant   %s", got, want)
		}
		if err := e.Validate(at, events.Limits{MaxMetadata: 256 << 10}); err != nil {
			t.Error(err)
		}
	}
}

func TestWhatThePublishersAnswerMeans(t *testing.T) {
	t.Parallel()
	with := func(code string) error {
		e := &invalid.Error{}
		e.Add("timestamp", code, "is wrong")
		return e
	}
	for _, c := range []struct {
		result events.Result
		want   verdict
	}{
		{events.Result{Status: events.Accepted}, accepted},
		{events.Result{Status: events.Duplicate}, known},
		{events.Result{Err: events.ErrConflict}, conflict},
		{events.Result{Err: with("EVENT_TOO_OLD")}, tooOld},
		{events.Result{Err: with("EVENT_IN_FUTURE")}, pending},
		{events.Result{Err: with("TOO_LONG")}, refused},
		{events.Result{Err: events.ErrUnavailable}, pending},
	} {
		if got := judge(c.result); got != c.want {
			t.Errorf("%+v means %q, want %q", c.result, got, c.want)
		}
	}
}

// finish does the work on the first items of a new job at the given times,
// without publishing.
func (h *harness) finish(at ...time.Time) storage.CardJob {
	h.t.Helper()
	job := must(h.store.CreateCardJob(h.t.Context(), acme, bulk(len(at)), storage.Once{}))(h.t)
	for i, now := range at {
		must(h.store.CreateCardForItem(h.t.Context(), job.UUID, i, now))(h.t)
	}
	return job
}

func TestOutcomesTooOldToPublishAreGivenUp(t *testing.T) {
	t.Parallel()
	onBoth(t, func(h *harness) {
		now := time.Now()
		h.finish(now.Add(-retention-time.Minute), now.Add(-retention+time.Minute))
		r := h.replica(nil)
		if err := r.publishPending(h.t.Context()); err != nil {
			h.t.Error(err)
		}
		if r.items("too_old") != 1 || r.items(itemCreated) != 1 || len(h.published()) != 1 {
			h.t.Errorf("%v too old, %d events", r.items("too_old"), len(h.published()))
		}
		h.wantPending(0)
	})
}

func (h *harness) wantPending(n int) {
	h.t.Helper()
	if out := must(h.store.PendingOutcomes(h.t.Context(), 1000))(h.t); len(out) != n {
		h.t.Errorf("%d outcomes pending, want %d", len(out), n)
	}
}

// Here the clock of the replica that did the work is ahead.
func TestOutcomesOfTheFutureWaitAndHoldUpNobody(t *testing.T) {
	t.Parallel()
	onBoth(t, func(h *harness) {
		now := time.Now()
		h.finish(now.Add(time.Hour), now)
		r := h.replica(nil)
		if err := r.publishPending(h.t.Context()); err == nil {
			h.t.Error("no error, so that it would be tried without a backoff")
		}
		h.wantPending(1)
		later := events.NewPublisher(events.PublisherOptions{
			Store: h.events, Now: func() time.Time { return now.Add(time.Hour) },
			Wake: func(context.Context, []int) {},
		})
		defer later.Close()
		h.accept = later.Accept
		if err := r.publishPending(h.t.Context()); err != nil {
			h.t.Error(err)
		}
		h.wantPending(0)
		if n := r.items(itemError) + r.items(itemCreated); n != 2 {
			h.t.Errorf("%v outcomes published", n)
		}
	})
}

func TestOutcomeWhoseEventIDIsTakenIsGivenUp(t *testing.T) {
	t.Parallel()
	onBoth(t, func(h *harness) {
		job := h.finish(time.Now(), time.Now())
		e := must(event(&must(h.store.CardJob(h.t.Context(), acme, job.UUID))(h.t).Items[0]))(h.t)
		e.Metadata = nil
		must(h.publish(h.t.Context(), []events.Event{e}))(h.t)
		r := h.replica(nil)
		if err := r.publishPending(h.t.Context()); err != nil {
			h.t.Error(err)
		}
		if r.items("conflict") != 1 || r.items(itemCreated) != 1 {
			h.t.Errorf("%v conflicts, %v created", r.items("conflict"), r.items(itemCreated))
		}
		h.wantPending(0)
	})
}

func TestOutboxIsPublishedInBatches(t *testing.T) {
	t.Parallel()
	onBoth(t, func(h *harness) {
		h.finish(slices.Repeat([]time.Time{time.Now()}, 2*outboxBatch+1)...)
		var calls, most atomic.Int64
		r := h.replica(func(o *Options) {
			o.Publish = func(ctx context.Context, batch []events.Event) ([]events.Result, error) {
				calls.Add(1)
				most.Store(max(most.Load(), int64(len(batch))))
				return h.publish(ctx, batch)
			}
		})
		if err := r.publishPending(h.t.Context()); err != nil {
			h.t.Error(err)
		}
		h.wantPending(0)
		if calls.Load() != 3 || most.Load() != outboxBatch {
			h.t.Errorf("%d calls with at most %d events", calls.Load(), most.Load())
		}
	})
}

// ago is the same database as it was used at another time.
func (h *harness) ago(d time.Duration) *storage.Store {
	o := h.options
	o.Now = func() time.Time { return time.Now().Add(-d) }
	return openStore(h.t, o)
}

// waitSince makes every task look as if it had been enqueued at the time.
func (h *harness) waitSince(at time.Time) {
	h.t.Helper()
	for _, key := range must(h.client.Keys(h.t.Context(), "asynq:{"+queueName+"}:t:*").Result())(h.t) {
		if err := h.client.HSet(h.t.Context(), key, "pending_since", at.UnixNano()).Err(); err != nil {
			h.t.Fatal(err)
		}
	}
}

func TestWhatWaitsInTheQueueIsNotHandedOutAgain(t *testing.T) {
	t.Parallel()
	onBoth(t, func(h *harness) {
		r := h.replica(func(o *Options) { o.Store, o.RecoverAfter = h.ago(time.Hour), time.Minute })
		job := r.submit(bulk(60))
		h.waitSince(time.Now().Add(-time.Hour))
		for range 2 {
			if err := r.recoverJobs(h.t.Context()); err != nil {
				h.t.Fatal(err)
			}
			if n := h.queued().Pending; n != 60 {
				h.t.Errorf("%d tasks", n)
			}
		}
		must(h.store.CreateCardForItem(h.t.Context(), job.UUID, 5, time.Now()))(h.t)
		h.loseQueue()
		for range 2 { // the second time, it was handed out lately
			if err := r.recoverJobs(h.t.Context()); err != nil {
				h.t.Fatal(err)
			}
			if n := h.queued().Pending; n != 59 || testutil.ToFloat64(r.metrics.recovered) != 59 {
				h.t.Errorf("%d tasks, %v counted", n, testutil.ToFloat64(r.metrics.recovered))
			}
		}
		h.waitSince(time.Now().Add(-time.Hour))
		other := h.replica(func(o *Options) { o.RecoverAfter = time.Minute })
		if err := other.recoverJobs(h.t.Context()); err != nil {
			h.t.Fatal(err)
		}
		if n := h.queued().Pending; n != 59 {
			h.t.Errorf("%d tasks after another replica looked", n)
		}
	})
}

func TestReplicasThatRecoverAtTheSameTimeHandOutOnce(t *testing.T) {
	t.Parallel()
	onBoth(t, func(h *harness) {
		must(h.ago(time.Hour).CreateCardJob(h.t.Context(), acme, bulk(60), storage.Once{}))(h.t)
		now := time.Now().Truncate(time.Minute)
		for i := range 3 {
			r := h.replica(func(o *Options) {
				o.RecoverAfter = time.Minute
				o.Now = func() time.Time { return now.Add(time.Duration(i) * time.Second) }
			})
			if err := r.recoverJobs(h.t.Context()); err != nil {
				h.t.Fatal(err)
			}
		}
		if n := h.queued().Pending; n != 60 {
			h.t.Errorf("%d tasks", n)
		}
	})
}

func TestYoungJobsAreLeftAlone(t *testing.T) {
	t.Parallel()
	onBoth(t, func(h *harness) {
		must(h.store.CreateCardJob(h.t.Context(), acme, bulk(10), storage.Once{}))(h.t)
		r := h.replica(func(o *Options) { o.RecoverAfter = time.Minute })
		if err := r.recoverJobs(h.t.Context()); err != nil {
			h.t.Fatal(err)
		}
		if n := testutil.ToFloat64(r.metrics.recovered); n != 0 {
			h.t.Errorf("%v items handed out again", n)
		}
		if n := testutil.ToFloat64(r.metrics.unfinished); n != 10 {
			h.t.Errorf("%v unfinished items", n)
		}
	})
}

func TestRecoveryGoesThroughAllPages(t *testing.T) {
	t.Parallel()
	onBoth(t, func(h *harness) {
		past := h.ago(time.Hour)
		const jobs = 2*recoverPageSize + 3
		for range jobs {
			must(past.CreateCardJob(h.t.Context(), acme, bulk(2), storage.Once{}))(h.t)
		}
		r := h.replica(nil)
		if err := r.recoverJobs(h.t.Context()); err != nil {
			h.t.Fatal(err)
		}
		if n := h.queued().Pending; n != 2*jobs {
			h.t.Errorf("%d tasks, want %d", n, 2*jobs)
		}
		if n := testutil.ToFloat64(r.metrics.unfinished); n != 2*jobs {
			h.t.Errorf("%v unfinished items", n)
		}
		r.start()
		eventually(h.t, "nothing is unfinished", func() bool {
			return testutil.ToFloat64(r.metrics.unfinished) == 0 && r.jobs(storage.JobCompleted) == jobs
		})
		r.stop(patience)
		if len(r.handedOut)+len(r.published.jobs) != 0 {
			h.t.Errorf("still remembers %v and %v", r.handedOut, r.published.jobs)
		}
	})
}

func TestTasksThatCannotBeDoneAreDropped(t *testing.T) {
	t.Parallel()
	onBoth(t, func(h *harness) {
		r := h.replica(nil)
		if err := r.opts.Queue.enqueue(h.t.Context(), uuid.New(), []int{0, 1}, time.Now()); err != nil {
			h.t.Fatal(err)
		}
		client := asynq.NewClientFromRedisClient(h.client)
		for _, payload := range []string{"", "x 1", uuid.NewString(), uuid.NewString() + " x"} {
			must(client.EnqueueContext(h.t.Context(), asynq.NewTask(taskItem, []byte(payload)), asynq.Queue(queueName)))(h.t)
		}
		r.start()
		eventually(h.t, "the queue is empty", func() bool { return h.queued().Size == 0 })
		if q := h.queued(); q.Archived != 0 {
			h.t.Errorf("%+v", q)
		}
	})
}

func TestOldJobsAreForgottenOnceTheyAreOver(t *testing.T) {
	t.Parallel()
	onBoth(t, func(h *harness) {
		past := h.ago(31 * 24 * time.Hour)
		jobs := map[string]storage.CardJob{}
		for name, s := range map[string]*storage.Store{"old": past, "old, unfinished": past, "old, unpublished": past, "young": h.store} {
			jobs[name] = must(s.CreateCardJob(h.t.Context(), acme, bulk(2), storage.Once{}))(h.t)
			for i := range 2 {
				if name != "old, unfinished" {
					must(h.store.CreateCardForItem(h.t.Context(), jobs[name].UUID, i, time.Now()))(h.t)
				}
				if name != "old, unpublished" {
					must(0, h.store.MarkPublished(h.t.Context(), jobs[name].Items[i].RequestUUID))(h.t)
				}
			}
		}
		if err := h.replica(nil).purge(h.t.Context()); err != nil {
			h.t.Fatal(err)
		}
		for name, job := range jobs {
			if _, err := h.store.CardJob(h.t.Context(), acme, job.UUID); errors.Is(err, storage.ErrNotFound) != (name == "old") {
				h.t.Errorf("%s: %v", name, err)
			}
		}
	})
}

func TestJobThatIsForgottenBeforeItWasCounted(t *testing.T) {
	t.Parallel()
	onBoth(t, func(h *harness) {
		h.finish(time.Now())
		r := h.replica(func(o *Options) { o.Retention = time.Nanosecond })
		for _, pass := range []func(context.Context) error{r.publishPending, r.purge, r.recoverJobs} {
			if err := pass(h.t.Context()); err != nil {
				h.t.Error(err)
			}
		}
		if len(r.published.jobs) != 0 || r.jobs(storage.JobCompleted) != 0 {
			h.t.Errorf("remembers %v, counted %v", r.published.jobs, r.jobs(storage.JobCompleted))
		}
	})
}

// A job may be stored and begun after the recovery listed the unfinished ones.
func TestJobThatHasOnlyBegunIsNotCountedYet(t *testing.T) {
	t.Parallel()
	onBoth(t, func(h *harness) {
		job := must(h.store.CreateCardJob(h.t.Context(), acme, bulk(2), storage.Once{}))(h.t)
		r := h.replica(nil)
		for i, want := range []float64{0, 1} {
			if keep := r.handle(h.t.Context(), job.UUID, i); keep {
				h.t.Error("kept")
			}
			if err := r.countFinished(h.t.Context(), nil); err != nil {
				h.t.Error(err)
			}
			if n := r.jobs(storage.JobCompleted); n != want {
				h.t.Errorf("%v jobs counted after item %d", n, i)
			}
		}
	})
}

func TestOutcomeNotedWhileAJobIsForgottenIsKept(t *testing.T) {
	t.Parallel()
	p, at := newPublished(), time.Now()
	item := storage.CardItem{JobUUID: uuid.New(), CompanyUUID: acme, FinishedAt: &at}
	p.note(&item)
	first := p.except(nil)[item.JobUUID]
	item.Index = 1
	p.note(&item)
	p.forget(item.JobUUID, first)
	if last := p.except(nil)[item.JobUUID]; last != markOf(&item) {
		t.Fatalf("remembers %+v", last)
	}
	p.forget(item.JobUUID, markOf(&item))
	if len(p.jobs) != 0 {
		t.Errorf("remembers %v", p.jobs)
	}
}

func TestDatabaseAwayWhileItWorks(t *testing.T) {
	t.Parallel()
	server := pgtest.Start(t)
	h := build(t, storage.Options{URL: server.URL()})
	r := h.replica(nil).start()
	job := r.submit(bulk(500))
	h.wantFinished(job.UUID, 20)
	server.Stop()
	eventually(t, "an item is tried in vain", func() bool { return h.queued().Active > 0 })
	server.Restart()
	h.wantDone(job.UUID)
}

func TestItemThatFailsIsLeftToTheRecovery(t *testing.T) {
	t.Parallel()
	server := pgtest.Start(t)
	h := build(t, storage.Options{URL: server.URL()})
	r := h.replica(nil)
	job := r.submit(bulk(3))
	h.loseQueue()
	server.Stop()
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	if r.handle(ctx, job.UUID, 0) {
		t.Error("an item that failed is kept in the queue as well")
	}
	if ctx.Err() == nil {
		t.Error("the item was tried once only")
	}
	server.Restart()
	r.start()
	h.wantDone(job.UUID)
}

func TestStopWhileTheDatabaseIsAway(t *testing.T) {
	t.Parallel()
	server := pgtest.Start(t)
	h := build(t, storage.Options{URL: server.URL()})
	r := h.replica(nil).start()
	job := r.submit(bulk(200))
	h.wantFinished(job.UUID, 5)
	server.Stop()
	eventually(t, "items are tried in vain", func() bool { return h.queued().Active > 0 })
	start := time.Now()
	r.stop(patience)
	if took := time.Since(start); took > itemTimeout/2 {
		t.Errorf("took %s", took)
	}
	server.Restart()
	h.wantFinished(job.UUID, 5) // now it answers
	if n := h.finished(job.UUID); h.queued().Size < 200-n {
		t.Errorf("%d items done, but the queue holds %d", n, h.queued().Size)
	}
	h.replica(func(o *Options) { o.RecoverAfter = time.Hour }).start()
	h.wantDone(job.UUID)
}

// A publisher that hangs holds up a stop for no longer than its grace, and only
// when an item's task waits for it.
func TestStopIsNotHeldUpByAPublisherThatHangs(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		begin func(*harness, *replica)
		grace time.Duration
	}{
		"in a task":     {func(_ *harness, r *replica) { r.submit(bulk(1)) }, 10 * time.Millisecond},
		"in the outbox": {func(h *harness, _ *replica) { h.finish(time.Now()) }, patience},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onBoth(t, func(h *harness) {
				called := make(chan struct{}, 100)
				r := h.replica(func(o *Options) {
					o.OutboxEvery = time.Hour
					o.Publish = func(ctx context.Context, _ []events.Event) ([]events.Result, error) {
						called <- struct{}{}
						<-ctx.Done()
						return nil, ctx.Err()
					}
				})
				c.begin(h, r)
				r.start()
				<-called
				start := time.Now()
				r.stop(c.grace)
				if took := time.Since(start); took > itemTimeout/2 {
					h.t.Errorf("took %s", took)
				}
				h.wantPending(1)
			})
		})
	}
}

func TestOnlyPanicsCountAsFailuresOfATask(t *testing.T) {
	t.Parallel()
	for err, want := range map[error]bool{errKept: false, asynq.ErrLeaseExpired: false, events.ErrClosed: true} {
		if isFailure(err) != want {
			t.Errorf("isFailure(%v) = %v", err, !want)
		}
	}
}

func TestBackoffDoublesUpToABound(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		base     time.Duration
		failures int
		want     time.Duration
	}{
		{time.Second, 0, time.Second},
		{time.Second, 1, 2 * time.Second},
		{time.Second, 4, 16 * time.Second},
		{time.Second, 5, maxBackoff},
		{time.Nanosecond, 1 << 40, 1 << 16},
		{maxBackoff - 1, 1 << 40, maxBackoff},
		{time.Hour, 3, time.Hour},
	} {
		if got := backoff(c.base, c.failures); got != c.want {
			t.Errorf("backoff(%s, %d) = %s, want %s", c.base, c.failures, got, c.want)
		}
	}
}

// A pass that keeps failing is tried less and less often, and at the usual
// pace once it works again.
func TestLoopBacksOff(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := New(Options{})
		ctx, cancel := context.WithCancel(t.Context())
		start := time.Now()
		var at []time.Duration
		r.loop(ctx, "fail", time.Second, func(context.Context) error {
			if at = append(at, time.Since(start)/time.Second); len(at) == 8 {
				cancel()
			}
			if len(at) == 5 {
				return nil
			}
			return events.ErrUnavailable
		})
		if want := []time.Duration{0, 2, 6, 14, 30, 31, 33, 37}; !slices.Equal(at, want) {
			t.Errorf("passes at %d s, want %d", at, want)
		}
	})
}

func TestMetricsStandAtZeroFromTheStart(t *testing.T) {
	t.Parallel()
	h := build(t, storage.Options{DataDir: t.TempDir()})
	r := h.replica(nil)
	got := map[string]int{}
	for _, f := range must(r.registry.Gather())(t) {
		got[f.GetName()] = len(f.GetMetric())
	}
	want := map[string]int{
		"spendhook_card_jobs_total": 2, "spendhook_card_items_total": 5, "spendhook_card_items_recovered_total": 1,
		"spendhook_card_item_seconds": 1, "spendhook_card_job_seconds": 1, "spendhook_card_items_unfinished": 1,
	}
	if !maps.Equal(got, want) {
		t.Errorf("series = %v, want %v", got, want)
	}
	job := h.replica(nil).submit(bulk(60))
	r.start()
	h.wantDone(job.UUID)
	eventually(t, "the job is counted", func() bool { return r.jobs(storage.JobCompleted) == 1 })
	for _, f := range must(r.registry.Gather())(t) {
		if n := len(f.GetMetric()); n != want[f.GetName()] {
			t.Errorf("%s has %d series now", f.GetName(), n)
		}
		if h := f.GetMetric()[0].GetHistogram(); h != nil && h.GetSampleCount() == 0 {
			t.Errorf("%s is empty", f.GetName())
		}
	}
}
