package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/dispatcher/delivery"
	"spendhook/dispatcher/delivery/store"
	"spendhook/dispatcher/redelivery"
	"spendhook/events"
	"spendhook/internal/partition"
	"spendhook/internal/redistest"
	"spendhook/subscribers"
)

// write stores deliveries with one creation time, as if their events had been matched.
func (h *harness) write(sub uuid.UUID, ids []string, at time.Time, as func(*delivery.Record)) {
	h.t.Helper()
	for chunk := range slices.Chunk(ids, 500) {
		var writes []store.Write
		for _, id := range chunk {
			r := delivery.Ref{Ref: events.Ref{Company: h.company, ID: id}, Subscriber: sub}
			next := &delivery.Record{Status: delivery.StatusPending, EventType: "PAYMENT_PAID", Created: at.UnixMilli()}
			as(next)
			writes = append(writes, store.Write{
				Event: r.Ref, Matched: true,
				Changes: []store.Change{{Ref: r, Base: &delivery.Record{}, Next: next}},
			})
		}
		recorded, _, err := h.Deliveries.Record(h.t.Context(), at, writes)
		if err != nil {
			h.t.Fatal(err)
		}
		for _, r := range recorded {
			if r.Err != nil || r.Found[0] != nil {
				h.t.Fatalf("not written: %+v", r)
			}
		}
	}
}

func dead(r *delivery.Record) { r.Status, r.Reason = delivery.StatusDead, delivery.ReasonExhausted }

func due(r *delivery.Record) { r.Due = time.Now().UnixMilli() }

// all reads every page and returns the delivery ids, failing on a repeat.
func (h *harness) all(f store.Filter) []string {
	h.t.Helper()
	var ids []string
	seen := map[string]bool{}
	for {
		page, err := h.Deliveries.List(h.t.Context(), f)
		if err != nil {
			h.t.Fatal(err)
		}
		for _, d := range page.Items {
			if seen[d.PublicID()] {
				h.t.Fatalf("%s came twice", d.PublicID())
			}
			seen[d.PublicID()] = true
			ids = append(ids, d.PublicID())
		}
		if f.Cursor = page.Next; f.Cursor == "" {
			return ids
		}
	}
}

// completes waits until a job has completed.
func (h *harness) completes(id uuid.UUID) redelivery.Job {
	h.t.Helper()
	var j redelivery.Job
	eventually(h.t, func() bool {
		var err error
		if j, err = h.Redelivery.Job(h.t.Context(), h.company, id); err != nil {
			h.t.Fatal(err)
		}
		return j.Status == redelivery.JobCompleted
	}, "the job completes")
	return j
}

func (h *harness) recover(r redelivery.RecoverRequest) redelivery.Job {
	h.t.Helper()
	j, err := h.Redelivery.Recover(h.t.Context(), r)
	if err != nil {
		h.t.Fatal(err)
	}
	return h.completes(j.UUID)
}

func TestReplaySendsTheSameIDAgain(t *testing.T) {
	t.Parallel()
	h := setup(t)
	rc := receive(t, nil)
	sub := h.subscribe(rc.URL)
	id := h.emit(1)[0]
	h.reaches(id, sub, delivery.StatusDelivered)
	late := h.subscribe(receive(t, nil).URL)
	got, err := h.Redelivery.Replay(t.Context(), events.Ref{Company: h.company, ID: id}, nil)
	if err != nil || len(got) != 2 {
		t.Fatalf("replay = %+v, %v", got, err)
	}
	h.reaches(id, late, delivery.StatusDelivered)
	h.becomes(id, sub, "attempted twice", func(d delivery.Delivery) bool { return d.Count == 2 })
	if n := rc.ids()[id]; n != 2 {
		t.Errorf("received %d times", n)
	}
	if _, err := h.Redelivery.Replay(t.Context(), events.Ref{Company: h.company, ID: "unknown"}, nil); !errors.Is(err, events.ErrNotFound) {
		t.Errorf("replay of an unknown event: %v", err)
	}
	h.settled()
}

// A replay takes as many round trips for many subscribers as for one.
func TestReplayToManySubscribersIsOneBatch(t *testing.T) {
	t.Parallel()
	type counted struct{}
	var trips atomic.Int64
	count := func(ctx context.Context) {
		if ctx.Value(counted{}) != nil {
			trips.Add(1)
		}
	}
	client := redistest.New(t)
	client.AddHook(redistest.Hook{
		Command: func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
			count(ctx)
			return next(ctx, cmd)
		},
		Pipeline: func(ctx context.Context, cmds []redis.Cmder, next redis.ProcessPipelineHook) error {
			count(ctx)
			return next(ctx, cmds)
		},
	})
	h := build(t, client, nil)
	h.start()
	rc := receive(t, nil)
	const many = 150
	for n := range many {
		h.subscribe(fmt.Sprintf("%s/%d", rc.URL, n))
	}
	id := h.emit(1)[0]
	h.settled()
	got, err := h.Redelivery.Replay(context.WithValue(t.Context(), counted{}, true), events.Ref{Company: h.company, ID: id}, nil)
	if err != nil || len(got) != many {
		t.Fatalf("replay: %d deliveries, %v", len(got), err)
	}
	if n := trips.Load(); n == 0 || n > 10 {
		t.Errorf("%d round trips to Redis", n)
	}
	h.settled()
	if n := rc.ids()[id]; n != 2*many {
		t.Errorf("received %d times, want twice by each", n)
	}
}

func TestDeliveryInFlightIsNotRetried(t *testing.T) {
	t.Parallel()
	h := setup(t)
	gate := make(chan struct{})
	rc := receive(t, func(n int, w http.ResponseWriter, _ *http.Request) {
		if n == 1 {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		<-gate
	})
	sub := h.subscribe(rc.URL)
	id := h.emit(1)[0]
	d := h.reaches(id, sub, delivery.StatusDelivering) // the second attempt, of the retry set
	if _, err := h.Redelivery.Retry(t.Context(), h.company, d.PublicID()); !errors.Is(err, delivery.ErrInFlight) {
		t.Errorf("retry: %v", err)
	}
	if got, err := h.Redelivery.Replay(t.Context(), events.Ref{Company: h.company, ID: id}, nil); err != nil || len(got) != 1 {
		t.Errorf("replay = %+v, %v", got, err)
	}
	close(gate)
	h.reaches(id, sub, delivery.StatusDelivered)
	h.settled()
	if n := rc.count(); n != 2 {
		t.Errorf("received %d times", n)
	}
}

func TestRecoverDeliversWhatFailedAndWhatWasMissed(t *testing.T) {
	t.Parallel()
	h := setup(t)
	var healed atomic.Bool
	rc := receive(t, func(_ int, w http.ResponseWriter, _ *http.Request) {
		if !healed.Load() {
			w.WriteHeader(http.StatusInternalServerError)
		}
	})
	sub := h.subscribe(rc.URL)
	since := time.Now().Add(-time.Minute)
	failed := h.emit(3)
	h.reachAll(failed, sub, delivery.StatusDead)
	h.enable(sub, false)
	missed := h.emit(700)
	h.settled()
	request := redelivery.RecoverRequest{Company: h.company, Subscriber: sub.UUID, Since: since}
	if _, err := h.Redelivery.Recover(t.Context(), request); !errors.Is(err, delivery.ErrSubscriberDisabled) {
		t.Errorf("recover of a disabled subscriber: %v", err)
	}
	healed.Store(true)
	h.enable(sub, true)

	request.DryRun = true
	if dry := h.recover(request); dry.Changed != 703 || rc.count() != 12 {
		t.Errorf("dry run would redeliver %d, %d received", dry.Changed, rc.count())
	}
	request.DryRun = false
	if job := h.recover(request); job.Changed != 703 {
		t.Errorf("changed %d", job.Changed)
	}
	h.reachAll(append(failed, missed...), sub, delivery.StatusDelivered)
	h.settled()
	if again := h.recover(request); again.Changed != 0 {
		t.Errorf("a second recover redelivers %d", again.Changed)
	}
}

// Many jobs do not delay deliveries and retries.
func TestJobsDoNotDelayDeliveries(t *testing.T) {
	t.Parallel()
	h := setup(t)
	for range maxJobs {
		h.jobs <- struct{}{}
	}
	var healed atomic.Bool
	sub := h.subscribe(receive(t, func(_ int, w http.ResponseWriter, _ *http.Request) {
		if !healed.Swap(true) {
			w.WriteHeader(http.StatusInternalServerError)
		}
	}).URL)
	jobs := make([]redelivery.Job, 20)
	for i := range jobs {
		var err error
		jobs[i], err = h.Redelivery.Recover(t.Context(), redelivery.RecoverRequest{Company: h.company, Subscriber: sub.UUID, Since: time.Now().Add(-time.Minute)})
		if err != nil {
			t.Fatal(err)
		}
	}
	h.reaches(h.emit(1)[0], sub, delivery.StatusDelivered)
	for _, j := range jobs {
		if got, err := h.Redelivery.Job(t.Context(), h.company, j.UUID); err != nil || got.Status != redelivery.JobQueued {
			t.Fatalf("a job has begun: %+v, %v", got, err)
		}
	}
	for range maxJobs {
		<-h.jobs
	}
	for _, j := range jobs {
		h.completes(j.UUID)
	}
	h.settled()
}

func TestDeadLettersAreListedAndRecovered(t *testing.T) {
	t.Parallel()
	deadLettersAreListedAndRecovered(t, 501) // some pages of each list
}

func deadLettersAreListedAndRecovered(t *testing.T, n int) {
	t.Helper()
	h := build(t, redistest.New(t), nil)
	rc := receive(t, nil)
	sub := h.subscribe(rc.URL)
	var ids []string
	for len(ids) < n {
		ids = append(ids, h.emit(min(73, n-len(ids)))...)
	}
	h.write(sub.UUID, ids, time.Now(), dead)

	for name, f := range map[string]store.Filter{
		"subscriber": {Company: &h.company, Subscriber: &sub.UUID, Statuses: []delivery.Status{delivery.StatusDead}, Size: 100},
		"company":    {Company: &h.company, Statuses: []delivery.Status{delivery.StatusDead}, Size: 100},
		"platform":   {Statuses: []delivery.Status{delivery.StatusDead}, Size: 100},
	} {
		if got := h.all(f); len(got) != n {
			t.Errorf("%s: %d listed of %d", name, len(got), n)
		}
	}
	if got := h.deadLetters(); got != int64(n) {
		t.Errorf("%d counted", got)
	}
	h.start()
	job := h.recover(redelivery.RecoverRequest{Company: h.company, Subscriber: sub.UUID, Since: time.Now().Add(-time.Hour)})
	if job.Changed != int64(n) {
		t.Errorf("%d changed", job.Changed)
	}
	h.settled()
	rc.once(t, ids)
	if got := h.all(store.Filter{Company: &h.company, Statuses: []delivery.Status{delivery.StatusDead}}); len(got) != 0 {
		t.Errorf("%d dead letters are left", len(got))
	}
}

func TestDeletingASubscriberCancelsManyDeliveries(t *testing.T) {
	t.Parallel()
	h := build(t, redistest.New(t), nil)
	sub := h.subscribe(receive(t, nil).URL)
	ids := h.emit(1200)
	later := time.Now().Add(time.Hour)
	h.write(sub.UUID, ids, time.Now(), func(r *delivery.Record) { r.Due = later.UnixMilli() })
	h.start()
	if err := h.service.Delete(t.Context(), h.company, sub.UUID); err != nil {
		t.Fatal(err)
	}
	h.settled()
	for _, id := range ids {
		if d := h.deliveryOf(id, sub); d.Status != delivery.StatusCancelled {
			t.Fatalf("%s is %s", id, d.Status)
		}
	}
}

// A subscriber is disabled after its delivery was taken, and enabled before the delivery is back
// in its queue. Then the replica is lost. Another one delivers.
func TestSubscriberIsDisabledAndEnabledDuringATurn(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{})
	fast := func(o *Options) { o.Replica, o.Queue.HeartbeatEvery = uuid.NewString(), 50*time.Millisecond }
	other := build(t, server.Client(), fast)
	rc := receive(t, nil)
	sub := other.subscribe(rc.URL)
	id := other.emit(1)[0]
	other.write(sub.UUID, []string{id}, time.Now(), due)
	enable := func(enabled bool) {
		if _, err := other.opts.Subscribers.Update(context.WithoutCancel(t.Context()), sub.CompanyUUID, sub.UUID, subscribers.Settings{Enabled: &enabled}); err != nil {
			t.Error(err)
		}
	}

	client := server.Client()
	cut := severable(client)
	var loaded atomic.Bool
	client.AddHook(redistest.Hook{Pipeline: func(ctx context.Context, cmds []redis.Cmder, next redis.ProcessPipelineHook) error {
		if cmds[0].Name() != "hlen" && sends(cmds, "}:s:"+sub.CompanyUUID.String()) && !loaded.Swap(true) { // after the turn
			enable(false)
			defer enable(true)
		}
		err := next(ctx, cmds)
		if loaded.Load() && sends(cmds, `|{"e":"PAYMENT_PAID"`) {
			cut.Store(true)
		}
		return err
	}})
	lost := build(t, client, fast)
	lost.start()
	eventually(t, cut.Load, "the delivery is written")
	if n := rc.count(); n > 0 {
		t.Errorf("%d were sent to a disabled subscriber", n)
	}
	other.start()
	other.reaches(id, sub, delivery.StatusDelivered)
	other.settled()
}

// sends reports whether an argument of the commands contains a text.
func sends(cmds []redis.Cmder, text string) bool {
	return slices.ContainsFunc(cmds, func(cmd redis.Cmder) bool {
		return strings.Contains(fmt.Sprint(cmd.Args()...), text)
	})
}

func TestASubscriberOfAnotherCompanyIsNotFound(t *testing.T) {
	t.Parallel()
	h := setup(t)
	sub := h.subscribe(receive(t, nil).URL)
	for range 11 { // more than one page looks at
		h.emit(100)
	}
	h.settled()
	spy := uuid.New()
	for partition.Of(spy) != partition.Of(h.company) {
		spy = uuid.New()
	}
	p, err := h.Deliveries.List(t.Context(), store.Filter{Company: &spy, Subscriber: &sub.UUID})
	if err != nil || len(p.Items) > 0 || p.Next != "" {
		t.Errorf("another company sees %+v, %v", p, err)
	}
}
