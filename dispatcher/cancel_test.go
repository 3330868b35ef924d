package dispatcher

import (
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/dispatcher/delivery"
	"spendhook/dispatcher/delivery/store"
	"spendhook/dispatcher/redelivery"
	"spendhook/internal/redistest"
	"spendhook/subscribers"
)

// Bad events are out of the way in one command: what waits is cancelled, and what is under way, once it has failed.
func TestDeliveriesThatMatchAreCancelled(t *testing.T) {
	t.Parallel()
	cancelWhatMatches(t, redistest.New(t))
}

func TestDeliveriesThatMatchAreCancelledInACluster(t *testing.T) {
	t.Parallel()
	cancelWhatMatches(t, redistest.Cluster(t, 3)[0].ClusterClient())
}

func cancelWhatMatches(t *testing.T, client redis.UniversalClient) {
	t.Helper()
	h := build(t, client, func(o *Options) {
		o.Sender = testSender(2 * time.Second)
		o.Policy.Schedule = []time.Duration{time.Hour}
	})
	h.start()
	silent := receive(t, func(_ int, _ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	failing, paused := h.subscribeTo(h.company, silent.URL, "BAD", "GOOD"), h.subscribeTo(h.company, receive(t, nil).URL, "BAD", "GOOD")
	if err := h.opts.Subscribers.Pause(t.Context(), h.company, paused.UUID); err != nil {
		t.Fatal(err)
	}
	bad, good := h.emitType("BAD", 3), h.emitType("GOOD", 2)
	h.reachAll(append(bad, good...), paused, delivery.StatusPending)
	eventually(t, func() bool { return silent.count() == 5 }, "all attempts are under way")

	request := redelivery.BulkRequest{Kind: redelivery.JobCancel, Company: h.company, Filter: store.Filter{EventTypes: []string{"BAD"}}}
	job, err := h.Redelivery.Bulk(t.Context(), request)
	if err != nil {
		t.Fatal(err)
	}
	h.reachAll(bad, paused, delivery.StatusCancelled)
	h.reachAll(bad, failing, delivery.StatusCancelled)
	if job = h.completes(job.UUID); job.Changed != 6 {
		t.Errorf("%+v", job)
	}
	if d := h.deliveryOf(bad[0], failing); d.Reason != delivery.ReasonDropped || d.Count != 1 {
		t.Errorf("%+v", d.Record)
	}
	h.reachAll(good, failing, delivery.StatusRetrying)
	h.reachAll(good, paused, delivery.StatusPending)

	for status, want := range map[delivery.Status]int64{delivery.StatusPending: 2, delivery.StatusRetrying: 2, "": 4} {
		request := redelivery.BulkRequest{Kind: redelivery.JobCancel, Company: h.company, DryRun: true}
		if status != "" {
			request.Filter.Statuses = []delivery.Status{status}
		}
		if counted, err := h.Redelivery.Bulk(t.Context(), request); err != nil || counted.Changed != want || counted.Status != redelivery.JobCompleted {
			t.Errorf("%s: %+v, %v", status, counted, err)
		}
	}
	request.Filter.Statuses = []delivery.Status{delivery.StatusPending, delivery.StatusDelivering}
	if _, err := h.Redelivery.Bulk(t.Context(), request); !errors.Is(err, redelivery.ErrNotWaiting) {
		t.Errorf("of what is under way: %v", err)
	}
	h.enable(paused, false)
	request.Filter = store.Filter{Subscriber: &paused.UUID}
	if _, err = h.Redelivery.Bulk(t.Context(), request); err != nil {
		t.Errorf("of a disabled subscriber: %v", err)
	}
	h.reachAll(good, paused, delivery.StatusCancelled)
	if _, err := h.Redelivery.Retry(t.Context(), h.company, bad[0]+"."+failing.UUID.String()); err != nil {
		t.Errorf("sent after all: %v", err)
	}
}

// While a receiver is busy, most events wait in the log or in memory, and have no deliveries. They are cancelled, too.
func TestEventsThatWaitInTheLogAreCancelled(t *testing.T) {
	t.Parallel()
	for name, receivers := range map[string]int{"one receiver": 1, "two": 2} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := build(t, redistest.New(t), func(o *Options) {
				o.Sender = testSender(time.Minute)
				o.Concurrency = 64
			})
			h.start()
			release := make(chan struct{})
			done := sync.OnceFunc(func() { close(release) })
			t.Cleanup(done)
			busy := receive(t, func(_ int, w http.ResponseWriter, _ *http.Request) {
				<-release
				w.WriteHeader(http.StatusNoContent)
			})
			var subs []subscribers.Subscriber
			for i := range receivers {
				subs = append(subs, h.subscribeTo(h.company, fmt.Sprintf("%s/%d", busy.URL, i), "BAD", "GOOD"))
			}
			first := h.emitType("BAD", 1)
			eventually(t, func() bool { return busy.count() == receivers }, "the first attempts are under way")
			bad, good := h.emitType("BAD", 300), h.emitType("GOOD", 3)
			if _, err := h.Redelivery.Bulk(t.Context(), redelivery.BulkRequest{
				Kind: redelivery.JobCancel, Company: h.company, Filter: store.Filter{EventTypes: []string{"BAD"}},
			}); err != nil {
				t.Fatal(err)
			}
			for _, sub := range subs {
				h.reachAll(bad[150:], sub, delivery.StatusCancelled)
			}
			done()
			h.reachAll(append(good, first...), subs[0], delivery.StatusDelivered)
			for _, sub := range subs {
				sent := 0
				for _, id := range bad {
					switch d := h.deliveryOf(id, sub); d.Status {
					case delivery.StatusDelivered:
						sent++
					case delivery.StatusCancelled:
					default:
						t.Errorf("%s: %+v", id, d.Record)
					}
				}
				if sent > 100 {
					t.Errorf("%d of 300 were sent", sent)
				}
			}
		})
	}
}

// When the replica of the job is lost, another one cancels the rest, and nothing else.
func TestCancellationContinuesAfterALostReplica(t *testing.T) {
	t.Parallel()
	client := redistest.New(t)
	quick := func(o *Options) {
		quickHeartbeats(o)
		o.Sender = testSender(time.Second) // the job waits for as long before it ends
	}
	h := build(t, client, quick)
	h.start()
	rc := receive(t, nil)
	sub := h.subscribeTo(h.company, rc.URL, "BAD", "GOOD")
	if err := h.opts.Subscribers.Pause(t.Context(), h.company, sub.UUID); err != nil {
		t.Fatal(err)
	}
	const bad = 3000
	good := h.emitType("GOOD", 1)
	h.emitType("BAD", bad)
	waiting := func(h *harness) int64 {
		counts, err := h.Deliveries.CompanyStats(t.Context(), h.company)
		if err != nil {
			t.Fatal(err)
		}
		return counts.Live
	}
	eventually(t, func() bool { return waiting(h) == bad+1 }, "all wait")
	job, err := h.Redelivery.Bulk(t.Context(), redelivery.BulkRequest{
		Kind: redelivery.JobCancel, Company: h.company, Filter: store.Filter{EventTypes: []string{"BAD"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return waiting(h) <= bad }, "some are cancelled")
	next := build(t, client, quick)
	next.company = h.company
	h.stop(time.Millisecond)
	next.start()
	next.completes(job.UUID) // what the lost step has cancelled may be missing in its count
	if n := waiting(next); n != 1 {
		t.Errorf("%d wait", n)
	}
	if err := next.opts.Subscribers.Resume(t.Context(), h.company, sub.UUID); err != nil {
		t.Fatal(err)
	}
	next.reachAll(good, sub, delivery.StatusDelivered)
	next.settled()
	if got := rc.ids(); len(got) != 1 || got[good[0]] == 0 { // it may come twice if the receiver was slower than an attempt
		t.Errorf("received %v", got)
	}
}

// The next replica of a cancellation also has matched what waits in the log for a busy receiver.
func TestTheNextReplicaOfACancellationMatchesWhatWaits(t *testing.T) {
	t.Parallel()
	client := redistest.New(t)
	options := func(o *Options) {
		quickHeartbeats(o)
		o.Sender = testSender(time.Minute)
		o.Concurrency = 64
	}
	h := build(t, client, options)
	var began atomic.Bool
	h.Redelivery.Spill = func(uuid.UUID) { began.Store(true) } // the lost replica comes no further
	h.start()
	release := make(chan struct{})
	busy := receive(t, func(_ int, w http.ResponseWriter, _ *http.Request) {
		<-release
		w.WriteHeader(http.StatusNoContent)
	})
	t.Cleanup(func() { close(release) })
	sub := h.subscribeTo(h.company, busy.URL, "BAD")
	h.emitType("BAD", 1)
	eventually(t, func() bool { return busy.count() == 1 }, "the first attempt is under way")
	bad := h.emitType("BAD", 300)
	if _, err := h.Redelivery.Bulk(t.Context(), redelivery.BulkRequest{
		Kind: redelivery.JobCancel, Company: h.company, Filter: store.Filter{EventTypes: []string{"BAD"}},
	}); err != nil {
		t.Fatal(err)
	}
	eventually(t, began.Load, "the job has begun")
	next := build(t, client, options)
	next.company = h.company
	h.stop(time.Millisecond)
	next.start()
	next.reachAll(bad[150:], sub, delivery.StatusCancelled)
}

// A cancellation has events matched only if it cancels their deliveries, and while Redis has memory for their records.
func TestWhatACancellationSpills(t *testing.T) {
	t.Parallel()
	h := build(t, redistest.New(t), func(*Options) {}) // not started: nothing is matched
	h.subscribe("https://hooks.example.com/")
	h.emit(3)
	for name, tt := range map[string]struct {
		statuses []delivery.Status
		free     int64
		spills   bool
	}{
		"all":                   {nil, 1, true},
		"pending":               {[]delivery.Status{delivery.StatusPending}, 1, true},
		"above the mark":        {nil, 0, false},
		"what is to be retried": {[]delivery.Status{delivery.StatusRetrying}, 1, false},
	} {
		spills := 0
		h.Redelivery.Spill = func(uuid.UUID) { spills++ }
		h.Redelivery.Free = func(uuid.UUID) int64 { return tt.free }
		job, err := h.Redelivery.Bulk(t.Context(), redelivery.BulkRequest{Kind: redelivery.JobCancel, Company: h.company, Filter: store.Filter{Statuses: tt.statuses}})
		if err != nil {
			t.Fatal(name, err)
		}
		again, err := h.Redelivery.Step(t.Context(), h.company, job.UUID)
		if err != nil || (spills > 0) != tt.spills || (again > 0) != (name != "what is to be retried") {
			t.Errorf("%s: %d spills, the next step after %s, %v", name, spills, again, err)
		}
	}
}
