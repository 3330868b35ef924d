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
	"github.com/prometheus/client_golang/prometheus/testutil"

	"spendhook/events"
	"spendhook/events/publish"
	"spendhook/internal/invalid"
	"spendhook/internal/pgtest"
	"spendhook/internal/waittest"
	"spendhook/storage"
	"spendhook/storage/cards"
	"spendhook/storage/storagetest"
)

func TestSubmitStoresTheJobBeforeAnyWork(t *testing.T) {
	t.Parallel()
	onBoth(t, func(h *harness) {
		job := h.replica(nil).submit(requests(60))
		if job.Status != cards.JobQueued || job.Total != 60 || h.finished(job.UUID) != 0 {
			h.t.Errorf("job = %+v", job)
		}
		h.wantItems(60)
	})
}

func (h *harness) wantItems(n int) {
	h.t.Helper()
	if got := storagetest.Must(h.store.PendingItems(h.t.Context()))(h.t); got != n {
		h.t.Errorf("%d items are pending, want %d", got, n)
	}
}

func TestSubmitRefusesWhatStorageRefuses(t *testing.T) {
	t.Parallel()
	onBoth(t, func(h *harness) {
		r := h.replica(nil)
		for _, requests := range [][]cards.Request{nil, requests(501), {{Type: "VIRTUAL"}}} {
			_, err := r.Submit(h.t.Context(), acme, requests, cards.Once{})
			if _, ok := errors.AsType[*invalid.Error](err); !ok {
				h.t.Errorf("error = %v", err)
			}
		}
		h.wantItems(0)
	})
}

func TestContractEventsOfCards(t *testing.T) {
	t.Parallel()
	id := func(n byte) uuid.UUID { return uuid.UUID{15: n} }
	at, card := time.UnixMilli(1_780_000_000_123), id(3)
	item := cards.Item{
		JobUUID: id(1), CompanyUUID: id(2), Index: 7, RequestUUID: id(4), Alias: "<Ann & co>", UserUUID: id(5), FinishedAt: &at,
	}
	const head = `{"id":"spendhook-card-request-00000000-0000-0000-0000-000000000004","companyUuid":"00000000-0000-0000-0000-000000000002","event":"`
	const metadata = `"index":7,"jobUuid":"00000000-0000-0000-0000-000000000001","requestUuid":"00000000-0000-0000-0000-000000000004","userUuid":"00000000-0000-0000-0000-000000000005"}`
	created, failed := item, item
	created.Status, created.CardUUID = cards.ItemCreated, &card
	failed.Status, failed.ErrorCode, failed.ErrorMessage = cards.ItemError, "USER_NOT_FOUND", "no such user"
	for want, item := range map[string]cards.Item{
		head + `CARD_CREATION_REQUEST_CREATED","timestamp":"2026-05-28T20:26:40.123Z","metadata":{"alias":"<Ann & co>","cardUuid":"00000000-0000-0000-0000-000000000003",` + metadata + `}`:        created,
		head + `CARD_CREATION_REQUEST_ERROR","timestamp":"2026-05-28T20:26:40.123Z","metadata":{"alias":"<Ann & co>",` + metadata + `,"errorCode":"USER_NOT_FOUND","errorMessage":"no such user"}`: failed,
	} {
		e := storagetest.Must(event(&item))(t)
		if got := string(storagetest.Must(e.Body())(t)); got != want {
			t.Errorf("body = %s\nwant   %s", got, want)
		}
		if err := e.Validate(at, 0, nil); err != nil {
			t.Error(err)
		}
	}
}

func TestThePublishersErrorDecidesWhetherAnOutcomeIsSettled(t *testing.T) {
	t.Parallel()
	with := func(code string) error {
		e := &invalid.Error{}
		e.Add("timestamp", code, "is wrong")
		return e
	}
	for _, c := range []struct {
		err  error
		want bool
	}{
		{nil, true},
		{publish.ErrConflict, true},
		{with("EVENT_TOO_OLD"), true},
		{with("EVENT_IN_FUTURE"), false},
		{with("TOO_LONG"), true},
		{events.ErrUnavailable, false},
		{publish.ErrBacklogFull, false},
	} {
		if got := settled(c.err); got != c.want {
			t.Errorf("%v: settled %v, want %v", c.err, got, c.want)
		}
	}
}

// finish processes the first items of a new job at the given times, without publishing.
func (h *harness) finish(at ...time.Time) cards.Job {
	h.t.Helper()
	job := storagetest.Must(h.store.CreateCardJob(h.t.Context(), acme, requests(len(at)), cards.Once{}))(h.t)
	for _, now := range at {
		h.create(now)
	}
	return job
}

// create works on the next item without publishing.
func (h *harness) create(now time.Time) cards.Item {
	h.t.Helper()
	item, found, err := cards.New(h.db, func() time.Time { return now }).CreateNextCard(h.t.Context())
	if err != nil || !found {
		h.t.Fatalf("found %v, %v", found, err)
	}
	return item
}

func TestOutcomesTooOldToPublishAreDropped(t *testing.T) {
	t.Parallel()
	onBoth(t, func(h *harness) {
		now := time.Now()
		h.finish(now.Add(-retention-time.Minute), now.Add(-retention+time.Minute))
		r := h.replica(nil)
		if err := r.publishPending(h.t.Context()); err != nil {
			h.t.Error(err)
		}
		if r.items(itemRefused) != 1 || r.items(itemCreated) != 1 || len(h.published()) != 1 {
			h.t.Errorf("%v too old, %d events", r.items(itemRefused), len(h.published()))
		}
		h.wantPending(0)
	})
}

func (h *harness) wantPending(n int) {
	h.t.Helper()
	if out := storagetest.Must(h.store.NextOutcomes(h.t.Context(), uuid.Nil, 1000))(h.t); len(out) != n {
		h.t.Errorf("%d outcomes pending, want %d", len(out), n)
	}
}

// An outcome of a replica with a clock that is ahead waits. It does not delay other outcomes.
func TestOutcomesOfTheFutureWait(t *testing.T) {
	t.Parallel()
	onBoth(t, func(h *harness) {
		now := time.Now()
		h.finish(now.Add(time.Hour), now)
		r := h.replica(nil)
		if err := r.publishPending(h.t.Context()); err == nil {
			h.t.Error("no error, so that it would be tried without a backoff")
		}
		h.wantPending(1)
		later := publish.New(publish.Options{
			Client: h.client, Retention: retention, Now: func() time.Time { return now.Add(time.Hour) },
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

func TestOutcomeWithATakenEventIDIsDropped(t *testing.T) {
	t.Parallel()
	onBoth(t, func(h *harness) {
		job := h.finish(time.Now(), time.Now())
		e := storagetest.Must(event(&storagetest.Must(h.store.CardJob(h.t.Context(), acme, job.UUID))(h.t).Items[0]))(h.t)
		e.Metadata = nil
		storagetest.Must(h.publish(h.t.Context(), []events.Event{e}))(h.t)
		r := h.replica(nil)
		if err := r.publishPending(h.t.Context()); err != nil {
			h.t.Error(err)
		}
		if r.items(itemRefused) != 1 || r.items(itemCreated) != 1 {
			h.t.Errorf("%v conflicts, %v created", r.items(itemRefused), r.items(itemCreated))
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
			o.Publish = func(ctx context.Context, batch []events.Event) ([]publish.Result, error) {
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

// A company whose outcomes are refused, and are the oldest ones, delays those of no other company.
func TestRefusedOutcomesDelayNoOtherCompany(t *testing.T) {
	t.Parallel()
	onBoth(t, func(h *harness) {
		h.finish(slices.Repeat([]time.Time{time.Now()}, outboxBatch+1)...)
		storagetest.Must(h.store.CreateCardJob(h.t.Context(), bolt, requests(1), cards.Once{}))(h.t)
		h.create(time.Now())
		calls := 0
		r := h.replica(func(o *Options) {
			o.Publish = func(ctx context.Context, batch []events.Event) ([]publish.Result, error) {
				calls++
				if batch[0].CompanyUUID == acme {
					return slices.Repeat([]publish.Result{{Err: publish.ErrBacklogFull}}, len(batch)), nil
				}
				return h.publish(ctx, batch)
			}
		})
		if err := r.publishPending(h.t.Context()); !errors.Is(err, publish.ErrBacklogFull) {
			h.t.Errorf("error = %v", err)
		}
		h.wantPending(outboxBatch + 1)
		if left := storagetest.Must(h.store.NextOutcomes(h.t.Context(), acme, 1))(h.t); len(left) > 0 || calls != 2 {
			h.t.Errorf("%d calls, outcomes of another company are left: %v", calls, left)
		}
	})
}

// ago is a store on the same database with a clock that is d behind.
func (h *harness) ago(d time.Duration) *cards.Store {
	return cards.New(h.db, func() time.Time { return time.Now().Add(-d) })
}

func TestOldJobsAreDeletedOnceTheyHaveEnded(t *testing.T) {
	t.Parallel()
	onBoth(t, func(h *harness) {
		past := h.ago(31 * 24 * time.Hour)
		jobs := map[string]cards.Job{}
		for i, name := range []string{"old", "old, unpublished", "young", "old, unfinished"} {
			s := past
			if name == "young" {
				s = h.store
			}
			jobs[name] = storagetest.Must(s.CreateCardJob(h.t.Context(), acme, requests(2), cards.Once{}))(h.t)
			for range 2 {
				if i == 3 {
					break
				}
				if item := h.create(time.Now()); name != "old, unpublished" {
					storagetest.Must(h.store.MarkPublished(h.t.Context(), item.RequestUUID))(h.t)
				}
			}
		}
		r := h.replica(nil)
		if err := r.purge(h.t.Context()); err != nil {
			h.t.Fatal(err)
		}
		for name, job := range jobs {
			if _, err := h.store.CardJob(h.t.Context(), acme, job.UUID); errors.Is(err, storage.ErrNotFound) != (name == "old") {
				h.t.Errorf("%s: %v", name, err)
			}
		}
	})
}

func TestJobThatHasOnlyBegunIsNotCountedYet(t *testing.T) {
	t.Parallel()
	onBoth(t, func(h *harness) {
		r := h.replica(nil)
		r.submit(requests(2))
		for i, want := range []uint64{0, 1, 1} {
			if found, err := r.next(h.t.Context()); found != (i < 2) || err != nil {
				h.t.Errorf("found %v, %v", found, err)
			}
			if n := r.jobs(); n != want {
				h.t.Errorf("%v jobs counted after item %d", n, i)
			}
		}
	})
}

// A replica finds items that another replica stored but did not process, without a wake-up.
// Every item and job is counted.
func TestItemsOfOtherReplicasAreFound(t *testing.T) {
	t.Parallel()
	onBoth(t, func(h *harness) {
		const jobs = 40
		for range jobs {
			storagetest.Must(h.store.CreateCardJob(h.t.Context(), acme, requests(2), cards.Once{}))(h.t)
		}
		r := h.replica(nil)
		if err := r.countPending(h.t.Context()); err != nil {
			h.t.Fatal(err)
		}
		if n := r.metrics.unfinished.Load(); n != 2*jobs {
			h.t.Errorf("%d unfinished items", n)
		}
		r.start()
		items := func() float64 { return r.items(itemCreated) + r.items(itemError) }
		waittest.Until(h.t, "nothing is unfinished and all is counted", func() bool {
			return r.metrics.unfinished.Load() == 0 && r.jobs() >= jobs && items() >= 2*jobs
		})
		r.stop(patience)
		if r.jobs() != jobs || items() != 2*jobs {
			h.t.Errorf("%v jobs and %v items counted", r.jobs(), items())
		}
	})
}

// While one company's jobs keep all workers busy, another's only item is the
// next that a worker takes.
func TestAnotherCompanyDoesNotWaitForABulk(t *testing.T) {
	t.Parallel()
	onBoth(t, func(h *harness) {
		begun, goOn := make(chan uuid.UUID, 1000), make(chan struct{})
		r := h.replica(func(o *Options) {
			o.Publish = func(ctx context.Context, batch []events.Event) ([]publish.Result, error) {
				if _, worker := ctx.Deadline(); !worker {
					return nil, events.ErrUnavailable // the outbox loop must not publish before the worker
				}
				begun <- batch[0].CompanyUUID
				<-goOn
				return h.publish(ctx, batch)
			}
		})
		for range 3 {
			r.submit(requests(200))
		}
		r.start()
		for range workers {
			<-begun
		}
		storagetest.Must(r.Submit(h.t.Context(), bolt, requests(1), cards.Once{}))(h.t)
		goOn <- struct{}{}
		if company := <-begun; company != bolt {
			h.t.Errorf("the next item is of %s", company)
		}
		close(goOn)
		waittest.Until(h.t, "all is done", func() bool { return r.jobs() == 4 })
	})
}

func TestDatabaseIsDownWhileItWorks(t *testing.T) {
	t.Parallel()
	server := pgtest.Start(t)
	h := build(t, storage.Options{URL: server.URL()})
	r := h.replica(nil).start()
	job := r.submit(requests(500))
	h.wantFinished(job.UUID, 20)
	server.Stop()
	waittest.Until(t, "an item fails", func() bool { return testutil.ToFloat64(r.metrics.failures) > 0 })
	server.Restart()
	h.wantDone(job.UUID)
}

func TestStopWhileTheDatabaseIsDown(t *testing.T) {
	t.Parallel()
	server := pgtest.Start(t)
	h := build(t, storage.Options{URL: server.URL()})
	r := h.replica(nil).start()
	job := r.submit(requests(200))
	h.wantFinished(job.UUID, 5)
	server.Stop()
	waittest.Until(t, "items fail", func() bool { return testutil.ToFloat64(r.metrics.failures) > 0 })
	start := time.Now()
	r.stop(patience)
	if took := time.Since(start); took > itemTimeout*9/10 {
		t.Errorf("took %s", took)
	}
	server.Restart()
	h.replica(nil).start()
	h.wantDone(job.UUID)
}

// A publisher that hangs delays Stop at most until its context ends, and only when a worker
// waits for it.
func TestHangingPublisherDoesNotBlockStop(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		begin func(*harness, *replica)
		drain time.Duration
	}{
		"in a worker":   {func(_ *harness, r *replica) { r.submit(requests(1)) }, 10 * time.Millisecond},
		"in the outbox": {func(h *harness, _ *replica) { h.finish(time.Now()) }, patience},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onBoth(t, func(h *harness) {
				called := make(chan struct{}, 100)
				r := h.replica(func(o *Options) {
					o.Every = time.Hour
					o.Publish = func(ctx context.Context, _ []events.Event) ([]publish.Result, error) {
						called <- struct{}{}
						<-ctx.Done()
						return nil, ctx.Err()
					}
				})
				c.begin(h, r)
				r.start()
				<-called
				start := time.Now()
				r.stop(c.drain)
				if took := time.Since(start); took > itemTimeout*9/10 {
					h.t.Errorf("took %s", took)
				}
				h.wantPending(1)
			})
		})
	}
}

// A pass that fails is tried again at the usual interval.
func TestAFailedPassIsTriedAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := New(Options{})
		ctx, cancel := context.WithCancel(t.Context())
		start, passes := time.Now(), 0
		r.loop(ctx, "fail", time.Second, func(context.Context) error {
			if passes++; passes == 4 {
				cancel()
			}
			return events.ErrUnavailable
		})
		if took := time.Since(start); took != 3*time.Second {
			t.Errorf("four passes took %v", took)
		}
	})
}

func TestMetricsStandAtZeroFromTheStart(t *testing.T) {
	t.Parallel()
	h := build(t, storage.Options{DataDir: t.TempDir()})
	r := h.replica(nil)
	got := map[string]int{}
	for _, f := range storagetest.Must(r.registry.Gather())(t) {
		got[f.GetName()] = len(f.GetMetric())
	}
	want := map[string]int{
		"spendhook_card_items_total": 3, "spendhook_card_item_failures_total": 1,
		"spendhook_card_item_seconds": 1, "spendhook_card_job_seconds": 1, "spendhook_card_items_unfinished": 1,
	}
	if !maps.Equal(got, want) {
		t.Errorf("series = %v, want %v", got, want)
	}
	job := h.replica(nil).submit(requests(60))
	r.start()
	h.wantDone(job.UUID)
	waittest.Until(t, "the job is counted", func() bool { return r.jobs() == 1 })
	for _, f := range storagetest.Must(r.registry.Gather())(t) {
		if n := len(f.GetMetric()); n != want[f.GetName()] {
			t.Errorf("%s has %d series now", f.GetName(), n)
		}
		if h := f.GetMetric()[0].GetHistogram(); h != nil && h.GetSampleCount() == 0 {
			t.Errorf("%s is empty", f.GetName())
		}
	}
}
