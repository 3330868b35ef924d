package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"spendhook/dispatcher/webhook"
	"spendhook/events"
	"spendhook/internal/redistest"
	"spendhook/subscribers"
)

func TestEventReachesEveryMatchingSubscriber(t *testing.T) {
	t.Parallel()
	h := setup(t)
	a, b := receive(t, nil), receive(t, nil)
	subA, subB := h.subscribe(a.URL), h.subscribe(b.URL)
	other, err := h.Subscribers.Create(t.Context(), subscribers.Create{
		CompanyUUID: h.company, Name: "other", CallbackURL: a.URL + "/other", Events: []string{"SOMETHING_ELSE"},
	})
	if err != nil {
		t.Fatal(err)
	}
	id := h.emit(1)[0]
	for _, s := range []subscribers.Subscriber{subA, subB} {
		d := h.reaches(id, s, StatusDelivered)
		if d.AttemptCount != 1 || len(d.Attempts) != 1 || d.Attempts[0].StatusCode != http.StatusOK || d.EventType != "PAYMENT_PAID" {
			t.Errorf("delivery = %+v", d)
		}
	}
	if _, err := h.Delivery(t.Context(), h.company, id+"."+other.UUID.String()); !errors.Is(err, ErrNotFound) {
		t.Errorf("delivery to a subscriber of other events: %v", err)
	}
	wh, err := standardwebhooks.NewWebhook(subA.Secrets[0].Key.Reveal())
	if err != nil {
		t.Fatal(err)
	}
	if err := wh.Verify(a.got[0].body, a.got[0].header); err != nil {
		t.Error(err)
	}
	h.settled()
}

// settled waits until nothing of any event is open, delayed or in flight.
func (h *house) settled() {
	h.t.Helper()
	var g gauges
	eventually(h.t, func() bool {
		var err error
		g, err = h.Store.gauges(h.t.Context())
		if err != nil {
			h.t.Fatal(err)
		}
		n, err := h.client.HLen(h.t.Context(), inFlightKey(h.Replica)).Result()
		return err == nil && n == 0 && g.open == 0 && g.delayed == 0
	}, "nothing is pending")
}

func TestFailedDeliveryIsRetriedUntilDelivered(t *testing.T) {
	t.Parallel()
	h := setup(t)
	rc := receive(t, func(n int, w http.ResponseWriter, _ *http.Request) {
		if n < 3 {
			w.WriteHeader(http.StatusInternalServerError)
			_, _ = w.Write([]byte("no"))
		}
	})
	sub := h.subscribe(rc.URL)
	id := h.emit(1)[0]
	d := h.reaches(id, sub, StatusDelivered)
	if d.AttemptCount != 3 || d.Attempts[0].Error != webhook.ClassHTTP5xx || string(d.Attempts[1].ResponseBody) != "no" || d.Attempts[2].Error != webhook.ClassNone {
		t.Errorf("delivery = %+v", d)
	}
	for i, g := range rc.got {
		if g.header.Get(webhook.HeaderID) != id || string(g.body) != string(rc.got[0].body) {
			t.Errorf("attempt %d sent another id or body", i+1)
		}
	}
	h.settled()
}

func TestExhaustedDeliveryIsADeadLetterUntilRetried(t *testing.T) {
	t.Parallel()
	h := setup(t)
	var healed atomic.Bool
	rc := receive(t, func(_ int, w http.ResponseWriter, _ *http.Request) {
		if !healed.Load() {
			w.WriteHeader(http.StatusBadGateway)
		}
	})
	sub := h.subscribe(rc.URL)
	id := h.emit(1)[0]
	d := h.reaches(id, sub, StatusDead)
	if d.AttemptCount != 4 || d.Reason != ReasonExhausted || d.NextAttemptAt != nil {
		t.Errorf("dead letter = %+v", d)
	}
	page, err := h.Deliveries(t.Context(), DeliveryFilter{Company: &h.company, Status: StatusDead})
	if err != nil || len(page.Items) != 1 || page.Items[0].ID() != d.ID() {
		t.Fatalf("dead letters = %+v, %v", page, err)
	}
	if g, err := h.Store.gauges(t.Context()); err != nil || g.dead != 1 {
		t.Errorf("%d dead letters counted, %v", g.dead, err)
	}
	healed.Store(true)
	if _, err := h.Retry(t.Context(), h.company, d.ID()); err != nil {
		t.Fatal(err)
	}
	if d = h.reaches(id, sub, StatusDelivered); d.AttemptCount != 5 {
		t.Errorf("delivered after %d attempts, want 5", d.AttemptCount)
	}
	if g, err := h.Store.gauges(t.Context()); err != nil || g.dead != 0 {
		t.Errorf("%d dead letters counted after the retry, %v", g.dead, err)
	}
	h.settled()
}

func TestGoneEndpointIsDisabledAndItsDeliveriesHeld(t *testing.T) {
	t.Parallel()
	h := setup(t)
	var code atomic.Int32
	code.Store(http.StatusInternalServerError)
	rc := receive(t, func(_ int, w http.ResponseWriter, _ *http.Request) { w.WriteHeader(int(code.Load())) })
	sub := h.subscribe(rc.URL)
	watcher := receive(t, nil)
	watch, err := h.Subscribers.Create(t.Context(), subscribers.Create{
		CompanyUUID: h.company, Name: "watcher", CallbackURL: watcher.URL, Events: []string{events.SubscriberDisabled, events.DeliveryDead},
	})
	if err != nil {
		t.Fatal(err)
	}
	held := h.emit(1)[0]
	h.reaches(held, sub, StatusRetrying)
	disabled := false
	if _, err := h.Subscribers.Update(t.Context(), h.company, sub.UUID, subscribers.Update{Enabled: &disabled}); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool {
		d := h.delivery(held, sub)
		return d.Reason == ReasonSubscriberDisabled && d.Status.Live() && d.NextAttemptAt == nil
	}, "the delivery is held")
	h.settled()

	enabled := true
	if _, err := h.Subscribers.Update(t.Context(), h.company, sub.UUID, subscribers.Update{Enabled: &enabled}); err != nil {
		t.Fatal(err)
	}
	code.Store(http.StatusGone)
	if err := h.SubscriberEnabled(t.Context(), h.company, sub.UUID); err != nil {
		t.Fatal(err)
	}
	if d := h.reaches(held, sub, StatusDead); d.Reason != ReasonGone {
		t.Errorf("reason = %s", d.Reason)
	}
	eventually(t, func() bool {
		s, err := h.Subscribers.Get(t.Context(), h.company, sub.UUID)
		return err == nil && !s.Enabled && s.DisabledReason == subscribers.ReasonGone
	}, "the subscriber is disabled")
	eventually(t, func() bool { return watcher.count() == 2 }, "the watcher is told of both")
	_ = watch
	h.settled()
}

func TestDeletedSubscribersDeliveriesAreCancelled(t *testing.T) {
	t.Parallel()
	h := build(t, redistest.New(t), func(o *Options) { o.Policy.Schedule = []time.Duration{time.Hour} })
	h.start()
	rc := receive(t, status(http.StatusInternalServerError))
	sub := h.subscribe(rc.URL)
	ids := h.emit(3)
	for _, id := range ids {
		h.reaches(id, sub, StatusRetrying)
	}
	if err := h.SubscriberDeleting(t.Context(), h.company, sub.UUID); err != nil {
		t.Fatal(err)
	}
	if err := h.Subscribers.Delete(t.Context(), h.company, sub.UUID); err != nil {
		t.Fatal(err)
	}
	for _, id := range ids {
		if d := h.reaches(id, sub, StatusCancelled); d.Reason != ReasonSubscriberDeleted {
			t.Errorf("reason = %s", d.Reason)
		}
	}
	h.settled()
	if _, err := h.Retry(t.Context(), h.company, ids[0]+"."+sub.UUID.String()); !errors.Is(err, ErrSubscriberGone) {
		t.Errorf("retry for a deleted subscriber: %v", err)
	}
}

// What the cancelling job did not see ends when it comes up.
func TestDeliveryOfADeletedSubscriberEndsWhenItIsDue(t *testing.T) {
	t.Parallel()
	h := build(t, redistest.New(t), nil)
	rc := receive(t, nil)
	sub := h.subscribe(rc.URL)
	id := h.emit(1)[0]
	h.write(sub.UUID, []string{id}, time.Now(), func(r *record) { r.Due = time.Now().UnixMilli() })
	if err := h.Subscribers.Delete(t.Context(), h.company, sub.UUID); err != nil {
		t.Fatal(err)
	}
	h.start()
	h.reaches(id, sub, StatusCancelled)
	h.settled()
	if rc.count() != 0 {
		t.Error("a deleted subscriber was sent to")
	}
}

func TestReplaySendsTheSameIDAgain(t *testing.T) {
	t.Parallel()
	h := setup(t)
	rc := receive(t, nil)
	sub := h.subscribe(rc.URL)
	id := h.emit(1)[0]
	h.reaches(id, sub, StatusDelivered)
	late := receive(t, nil)
	lateSub := h.subscribe(late.URL)
	got, err := h.Replay(t.Context(), events.Ref{Company: h.company, ID: id}, nil)
	if err != nil || len(got) != 2 {
		t.Fatalf("replay = %+v, %v", got, err)
	}
	h.reaches(id, lateSub, StatusDelivered)
	eventually(t, func() bool { return h.delivery(id, sub).AttemptCount == 2 }, "the second attempt is recorded")
	if n := rc.ids()[id]; n != 2 {
		t.Errorf("received %d times", n)
	}
	if _, err := h.Replay(t.Context(), events.Ref{Company: h.company, ID: "unknown"}, nil); !errors.Is(err, events.ErrNotFound) {
		t.Errorf("replay of an unknown event: %v", err)
	}
	h.settled()
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
	for _, id := range failed {
		h.reaches(id, sub, StatusDead)
	}
	off, on := false, true
	h.update(sub, subscribers.Update{Enabled: &off})
	missed := h.emit(700)
	h.settled()
	if _, err := h.Recover(t.Context(), RecoverRequest{Company: h.company, Subscriber: sub.UUID, Since: since}); !errors.Is(err, ErrSubscriberDisabled) {
		t.Errorf("recover of a disabled subscriber: %v", err)
	}
	healed.Store(true)
	h.update(sub, subscribers.Update{Enabled: &on})

	dry := h.recover(RecoverRequest{Company: h.company, Subscriber: sub.UUID, Since: since, DryRun: true})
	if dry.Redelivered != 703 || rc.count() != 12 {
		t.Errorf("dry run would redeliver %d, %d received", dry.Redelivered, rc.count())
	}
	job := h.recover(RecoverRequest{Company: h.company, Subscriber: sub.UUID, Since: since})
	if job.Redelivered != 703 {
		t.Errorf("redelivered %d", job.Redelivered)
	}
	for _, id := range append(failed, missed...) {
		h.reaches(id, sub, StatusDelivered)
	}
	h.settled()
	if again := h.recover(RecoverRequest{Company: h.company, Subscriber: sub.UUID, Since: since}); again.Redelivered != 0 {
		t.Errorf("a second recover redelivers %d", again.Redelivered)
	}
}

func TestJobsLeaveRoomForRetries(t *testing.T) {
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
	jobs := make([]Job, 2*32) // as many as a queue has workers, twice
	for i := range jobs {
		j, err := h.Recover(t.Context(), RecoverRequest{Company: h.company, Subscriber: sub.UUID, Since: time.Now().Add(-time.Minute)})
		if err != nil {
			t.Fatal(err)
		}
		jobs[i] = j
	}
	h.reaches(h.emit(1)[0], sub, StatusDelivered)
	for _, j := range jobs {
		if got, err := h.Job(t.Context(), h.company, j.UUID); err != nil || got.Status != JobQueued {
			t.Fatalf("a job has begun: %+v, %v", got, err)
		}
	}
	for range maxJobs {
		<-h.jobs
	}
	for _, j := range jobs {
		eventually(t, func() bool {
			got, err := h.Job(t.Context(), h.company, j.UUID)
			return err == nil && got.Status == JobCompleted
		}, "the job completes")
	}
}

func (h *house) update(s subscribers.Subscriber, u subscribers.Update) {
	h.t.Helper()
	if _, err := h.Subscribers.Update(h.t.Context(), h.company, s.UUID, u); err != nil {
		h.t.Fatal(err)
	}
}

func (h *house) recover(r RecoverRequest) Job {
	h.t.Helper()
	j, err := h.Recover(h.t.Context(), r)
	if err != nil {
		h.t.Fatal(err)
	}
	eventually(h.t, func() bool {
		if j, err = h.Job(h.t.Context(), h.company, j.UUID); err != nil {
			h.t.Fatal(err)
		}
		return j.Status == JobCompleted
	}, "the job completes")
	return j
}

func TestWorkOfADeadReplicaIsTakenOver(t *testing.T) {
	t.Parallel()
	client := redistest.New(t)
	dead := build(t, client, nil) // accepts, but never works: as if killed right after it took the task
	rc := receive(t, nil)
	sub := dead.subscribe(rc.URL)
	id := dead.emit(1)[0]
	ref := events.Ref{Company: dead.company, ID: id}
	if _, _, err := dead.Store.load(t.Context(), dead.Replica, "task", []events.Ref{ref}, make([]*content, 1)); err != nil {
		t.Fatal(err)
	}
	if _, err := dead.Store.beat(t.Context(), dead.Replica, time.Hour); err != nil {
		t.Fatal(err)
	}
	deleteQueue(t, client)
	killed := time.Now()

	h := build(t, client, func(o *Options) { o.BeatEvery = time.Second })
	h.company = dead.company
	h.start()
	h.reaches(id, sub, StatusDelivered)
	if took := time.Since(killed); took > 20*time.Second { // 3.5 s if nothing else holds this machine up; asynq's own recovery takes 55
		t.Errorf("taken over after %s", took)
	}
	if n := client.Exists(t.Context(), inFlightKey(dead.Replica)).Val(); n != 0 {
		t.Error("the dead replica is not forgotten")
	}
	h.settled()
}

func TestRestartedReplicaTakesItsOwnWorkAtOnce(t *testing.T) {
	t.Parallel()
	client := redistest.New(t)
	h := build(t, client, func(o *Options) { o.BeatEvery, o.SweepEvery = time.Hour, time.Hour }) // but for the first of each
	rc := receive(t, nil)
	sub := h.subscribe(rc.URL)
	id := h.emit(1)[0]
	if _, _, err := h.Store.load(t.Context(), h.Replica, "task", []events.Ref{{Company: h.company, ID: id}}, make([]*content, 1)); err != nil {
		t.Fatal(err)
	}
	deleteQueue(t, client)
	h.start()
	h.reaches(id, sub, StatusDelivered)
}

// deleteQueue loses every task of asynq.
func deleteQueue(t *testing.T, client redis.UniversalClient) {
	t.Helper()
	keys, err := client.Keys(t.Context(), "asynq:*").Result()
	if err != nil || len(keys) == 0 {
		t.Fatalf("asynq keys: %v, %v", keys, err)
	}
	if err := client.Del(t.Context(), keys...).Err(); err != nil {
		t.Fatal(err)
	}
}

func TestLostQueueIsRebuilt(t *testing.T) {
	t.Parallel()
	client := redistest.New(t)
	h := build(t, client, nil)
	rc := receive(t, nil)
	sub := h.subscribe(rc.URL)
	ids := h.emit(250)
	deleteQueue(t, client)
	h.start()
	for _, id := range ids {
		h.reaches(id, sub, StatusDelivered)
	}
	h.settled()
}

func TestStopCountsNoAttemptThatItCutShort(t *testing.T) {
	t.Parallel()
	client := redistest.New(t)
	h := build(t, client, func(o *Options) { o.Sender = testSender(time.Minute) })
	entered := make(chan struct{}, 10)
	var hang atomic.Bool
	hang.Store(true)
	rc := receive(t, func(_ int, _ http.ResponseWriter, r *http.Request) {
		entered <- struct{}{}
		if hang.Load() {
			<-r.Context().Done()
		}
	})
	sub := h.subscribe(rc.URL)
	h.start()
	id := h.emit(1)[0]
	<-entered
	h.stop(50 * time.Millisecond)
	d := h.delivery(id, sub)
	if d.Status != StatusPending || d.AttemptCount != 0 || d.Reason != ReasonInterrupted {
		t.Errorf("after the stop: %+v", d)
	}
	hang.Store(false)
	next := build(t, client, nil)
	next.company = h.company
	next.start()
	if d := next.reaches(id, sub, StatusDelivered); d.AttemptCount != 1 {
		t.Errorf("delivered with %d attempts", d.AttemptCount)
	}
}

func TestHungEndpointDoesNotSlowOthers(t *testing.T) {
	t.Parallel()
	h := build(t, redistest.New(t), func(o *Options) { o.Sender = testSender(time.Hour) })
	h.start()
	release := make(chan struct{})
	hung := receive(t, func(_ int, _ http.ResponseWriter, r *http.Request) {
		select {
		case <-release:
		case <-r.Context().Done():
		}
	})
	defer close(release)
	well := receive(t, nil)
	h.subscribe(hung.URL)
	sub := h.subscribe(well.URL)
	ids := h.emit(500)
	eventually(t, func() bool { return well.count() == len(ids) }, "the healthy endpoint has everything")
	h.reaches(ids[len(ids)-1], sub, StatusDelivered)
}

func TestSubscriberChangeHoldsForTheNextEvent(t *testing.T) {
	t.Parallel()
	h := setup(t)
	rc := receive(t, nil)
	sub := h.subscribe(rc.URL)
	on, off := true, false
	for range 20 {
		h.update(sub, subscribers.Update{Enabled: &off})
		missed := h.emit(1)[0]
		h.settled()
		if _, err := h.Delivery(t.Context(), h.company, missed+"."+sub.UUID.String()); !errors.Is(err, ErrNotFound) {
			t.Fatalf("a disabled subscriber was sent %s: %v", missed, err)
		}
		h.update(sub, subscribers.Update{Enabled: &on})
		h.reaches(h.emit(1)[0], sub, StatusDelivered)
	}
}

func TestEventStatusAndExplain(t *testing.T) {
	t.Parallel()
	h := build(t, redistest.New(t), nil)
	rc := receive(t, nil)
	sub := h.subscribe(rc.URL)
	id := h.emit(1)[0]
	r := events.Ref{Company: h.company, ID: id}
	want := func(status EventStatus, outcome Outcome) {
		t.Helper()
		got, err := h.EventStatus(t.Context(), []events.Ref{r})
		if err != nil || got[0] != status {
			t.Errorf("event status = %v, %v, want %s", got, err, status)
		}
		why, err := h.Explain(t.Context(), r)
		if err != nil || len(why) != 1 || why[0].Outcome != outcome {
			t.Errorf("explanation = %+v, %v, want %s", why, err, outcome)
		}
	}
	want(EventPending, OutcomePending)
	h.start()
	h.reaches(id, sub, StatusDelivered)
	h.settled()
	want(EventDelivered, OutcomeDelivered)
	if _, err := h.Explain(t.Context(), events.Ref{Company: h.company, ID: "unknown"}); !errors.Is(err, events.ErrNotFound) {
		t.Errorf("explain of an unknown event: %v", err)
	}
}

func TestTestDelivery(t *testing.T) {
	t.Parallel()
	h := setup(t)
	rc := receive(t, status(http.StatusTeapot))
	sub := h.subscribe(rc.URL)
	res, err := h.Test(t.Context(), h.company, sub.UUID)
	if err != nil || res.Delivered || res.Attempt.StatusCode != http.StatusTeapot || res.Attempt.Error != webhook.ClassHTTP4xx {
		t.Errorf("test = %+v, %v", res, err)
	}
	if rc.ids()[res.EventID] != 1 {
		t.Error("the test was not received under its id")
	}
}

// A test is how to find out whether an endpoint that is given no attempts is mended.
func TestTestDeliveryAsksNoBreaker(t *testing.T) {
	t.Parallel()
	h := setup(t)
	entered, gate := make(chan struct{}), make(chan struct{})
	rc := receive(t, func(int, http.ResponseWriter, *http.Request) {
		entered <- struct{}{}
		<-gate
	})
	sub := h.subscribe(rc.URL)
	for { // as if it had failed and failed
		release, _, ok := h.endpoints.acquire(t.Context(), sub.UUID, 0)
		if !ok {
			break
		}
		release(webhook.Result{Class: webhook.ClassConnect})
	}
	done := make(chan error, 1)
	go func() {
		res, err := h.Test(t.Context(), h.company, sub.UUID)
		if err == nil && !res.Delivered {
			err = fmt.Errorf("not delivered: %+v", res)
		}
		done <- err
	}()
	<-entered
	if _, err := h.Test(t.Context(), h.company, sub.UUID); !errors.Is(err, ErrTesting) {
		t.Errorf("a second test at the same time: %v", err)
	}
	close(gate)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestGraces(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ grace, attempts, last time.Duration }{
		{30 * time.Second, 27 * time.Second, 30 * time.Second},
		{3 * time.Second, 2 * time.Second, 3 * time.Second},
		{-time.Second, -time.Second, lastRecords},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), c.grace)
		began := time.Now()
		attempts, last, release := graces(ctx)
		forAttempts, _ := attempts.Deadline()
		forAll, _ := last.Deadline()
		if a, l := forAttempts.Sub(began).Round(time.Second), forAll.Sub(began).Round(time.Second); a != c.attempts || l != c.last {
			t.Errorf("of %s, attempts have %s and all %s; want %s and %s", c.grace, a, l, c.attempts, c.last)
		}
		release()
		cancel()
	}
}
