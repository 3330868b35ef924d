package dispatcher

import (
	"errors"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"spendhook/dispatcher/delivery"
	"spendhook/dispatcher/delivery/store"
	"spendhook/dispatcher/redelivery"
	"spendhook/internal/partition"
	"spendhook/internal/redistest"
	"spendhook/subscribers"
)

func (h *harness) retryAll(r redelivery.BulkRequest) redelivery.Job {
	h.t.Helper()
	r.Company = h.company
	j, err := h.Redelivery.Bulk(h.t.Context(), r)
	if err != nil {
		h.t.Fatal(err)
	}
	return h.completes(j.UUID)
}

// A retry covers the deliveries that the list shows under the same filter, except those of
// disabled or deleted subscribers and those created later.
func TestRetryOfAllThatMatches(t *testing.T) {
	t.Parallel()
	h := setup(t)
	var healed atomic.Bool
	answer := func(status int) func(int, http.ResponseWriter, *http.Request) {
		return func(_ int, w http.ResponseWriter, _ *http.Request) {
			if !healed.Load() {
				w.WriteHeader(status)
			}
		}
	}
	boxes := []*inbox{receive(t, answer(http.StatusInternalServerError)), receive(t, answer(http.StatusNotFound)), receive(t, answer(http.StatusNotFound)), receive(t, nil)}
	var subs []subscribers.Subscriber
	for _, box := range boxes {
		subs = append(subs, h.subscribe(box.URL))
	}
	ids := h.emit(5)
	for _, sub := range subs[:3] {
		h.reachAll(ids, sub, delivery.StatusDead)
	}
	h.reachAll(ids, subs[3], delivery.StatusDelivered)
	h.enable(subs[2], false)
	h.settled()
	healed.Store(true)
	future := time.Now().Add(time.Hour)

	for name, c := range map[string]struct {
		filter store.Filter
		want   int64
	}{
		"all that is dead":    {store.Filter{}, 10},
		"of an error":         {store.Filter{ErrorClasses: []string{"http_4xx"}}, 5},
		"of a disabled one":   {store.Filter{Statuses: []delivery.Status{delivery.StatusDead, delivery.StatusDelivered}, CodeFrom: 404, CodeTo: 404}, 5},
		"of another type":     {store.Filter{EventTypes: []string{"NONE"}}, 0},
		"what was delivered":  {store.Filter{Statuses: []delivery.Status{delivery.StatusDelivered}}, 5},
		"what will be":        {store.Filter{To: &future}, 10},
		"nothing that is new": {store.Filter{From: &future}, 0},
	} {
		if dry := h.retryAll(redelivery.BulkRequest{Kind: redelivery.JobRetry, Filter: c.filter, DryRun: true}); dry.Changed != c.want || dry.Kind != redelivery.JobRetry {
			t.Errorf("%s: %d, want %d", name, dry.Changed, c.want)
		}
	}
	if n := boxes[0].count() + boxes[3].count(); n != 5*4+5 {
		t.Errorf("the dry runs sent: %d received", n)
	}
	if job := h.retryAll(redelivery.BulkRequest{Kind: redelivery.JobRetry, Filter: store.Filter{Subscriber: &subs[0].UUID}}); job.Changed != 5 || job.Status != redelivery.JobCompleted {
		t.Errorf("%+v", job)
	}
	h.reachAll(ids, subs[0], delivery.StatusDelivered)
	if job := h.retryAll(redelivery.BulkRequest{Kind: redelivery.JobRetry}); job.Changed != 5 || job.Examined != 10 {
		t.Errorf("the others: %+v", job)
	}
	h.reachAll(ids, subs[1], delivery.StatusDelivered)
	h.settled()
	boxes[3].once(t, ids)

	_, err := h.Redelivery.Bulk(t.Context(), redelivery.BulkRequest{Kind: redelivery.JobRetry, Company: h.company, Filter: store.Filter{Subscriber: &subs[2].UUID}})
	if !errors.Is(err, delivery.ErrSubscriberDisabled) {
		t.Errorf("of a disabled subscriber: %v", err)
	}
	stranger := uuid.New()
	_, err = h.Redelivery.Bulk(t.Context(), redelivery.BulkRequest{Kind: redelivery.JobRetry, Company: h.company, Filter: store.Filter{Subscriber: &stranger}})
	if !errors.Is(err, subscribers.ErrNotFound) {
		t.Errorf("of an unknown subscriber: %v", err)
	}
	h.enable(subs[2], true)
	if job := h.retryAll(redelivery.BulkRequest{Kind: redelivery.JobRetry}); job.Changed != 5 {
		t.Errorf("once it is enabled: %+v", job)
	}
	h.reachAll(ids, subs[2], delivery.StatusDelivered)
	h.settled()
}

// A retry job makes a bounded number of deliveries due at a time. After it is cancelled, the
// deliveries that it made due are delivered; the others do not change.
func TestRetryIsPacedAndCancelled(t *testing.T) {
	t.Parallel()
	h := build(t, redistest.New(t), func(o *Options) { o.Sender = testSender(10 * time.Minute) }) // no attempt times out
	gate := make(chan struct{})
	rc := receive(t, func(int, http.ResponseWriter, *http.Request) { <-gate })
	sub := h.subscribe(rc.URL)
	const n = 3000
	var ids []string
	for range n / 100 {
		ids = append(ids, h.emit(100)...)
	}
	h.write(sub.UUID, ids, time.Now(), dead)
	h.start()
	job, err := h.Redelivery.Bulk(t.Context(), redelivery.BulkRequest{Kind: redelivery.JobRetry, Company: h.company, Filter: store.Filter{Subscriber: &sub.UUID}})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool {
		due := h.client.ZScore(t.Context(), partition.Key(h.company, "due"), "j:"+h.company.String()+"/"+job.UUID.String()).Val()
		return due > float64(time.Now().Add(100*time.Millisecond).UnixMilli())
	}, "the job waits")
	if job, err = h.Redelivery.Job(t.Context(), h.company, job.UUID); err != nil {
		t.Fatal(err)
	}
	if testutil.ToFloat64(h.metrics.jobSteps.WithLabelValues(stepContinued)) == 0 {
		t.Error("no step is counted")
	}
	if job.Status != redelivery.JobRunning || job.Changed <= 1000 || job.Changed > 2000 { // 1,000 due, 64 in flight, and a page
		t.Errorf("%+v", job)
	}
	for range 2 { // the second finds it cancelled
		if job, err = h.Redelivery.Cancel(t.Context(), h.company, job.UUID); err != nil || job.Status != redelivery.JobCancelled || job.FinishedAt == nil {
			t.Fatalf("%+v, %v", job, err)
		}
	}
	close(gate)
	h.settled()
	job, err = h.Redelivery.Job(t.Context(), h.company, job.UUID)
	if err != nil || job.Status != redelivery.JobCancelled {
		t.Errorf("%+v, %v", job, err)
	}
	if got := int64(rc.count()); got != job.Changed {
		t.Errorf("%d delivered, %d were made due", got, job.Changed)
	}
	if got := h.deadLetters(); got != n-job.Changed {
		t.Errorf("%d dead letters are left of %d, %d were made due", got, n, job.Changed)
	}
	eventually(t, func() bool { return testutil.ToFloat64(h.metrics.jobSteps.WithLabelValues(stepCompleted)) >= 1 }, "the last step is counted")
	if _, err := h.Redelivery.Cancel(t.Context(), uuid.New(), job.UUID); !errors.Is(err, delivery.ErrNotFound) {
		t.Errorf("another company's: %v", err)
	}
	done := h.retryAll(redelivery.BulkRequest{Kind: redelivery.JobRetry, DryRun: true, Filter: store.Filter{From: &time.Time{}}})
	if _, err := h.Redelivery.Cancel(t.Context(), h.company, done.UUID); !errors.Is(err, redelivery.ErrFinished) {
		t.Errorf("a completed one: %v", err)
	}
}

// A company has a bounded number of unfinished jobs. A refused job changes nothing.
func TestUnfinishedJobsAreBounded(t *testing.T) {
	t.Parallel()
	h := build(t, redistest.New(t), func(o *Options) { o.UnfinishedJobs = 20 })
	h.start()
	for range maxJobs { // nothing is done
		h.jobs <- struct{}{}
	}
	sub := h.subscribe(receive(t, nil).URL)
	recovers := redelivery.RecoverRequest{Company: h.company, Subscriber: sub.UUID, Since: time.Now().Add(-time.Minute), DryRun: true}
	var last redelivery.Job
	for range 20 {
		var err error
		if last, err = h.Redelivery.Recover(t.Context(), recovers); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := h.Redelivery.Recover(t.Context(), recovers); !errors.Is(err, redelivery.ErrTooManyJobs) {
		t.Errorf("one too many: %v", err)
	}
	if _, err := h.Redelivery.Bulk(t.Context(), redelivery.BulkRequest{Kind: redelivery.JobRetry, Company: h.company}); !errors.Is(err, redelivery.ErrTooManyJobs) {
		t.Errorf("a retry: %v", err)
	}
	if _, err := h.Redelivery.Drop(t.Context(), h.company, sub.UUID); !errors.Is(err, redelivery.ErrTooManyJobs) {
		t.Errorf("a drop: %v", err)
	}
	if state, err := h.opts.Health.Of(t.Context(), h.company, sub.UUID); err != nil || state[sub.UUID].PausedAt != nil {
		t.Errorf("after a refused drop the subscriber is %+v, %v", state[sub.UUID], err)
	}
	if _, err := h.Redelivery.Drop(t.Context(), h.company, uuid.New()); !errors.Is(err, subscribers.ErrNotFound) {
		t.Errorf("a drop of an unknown subscriber: %v", err)
	}
	if _, err := h.Redelivery.Cancel(t.Context(), h.company, last.UUID); err != nil {
		t.Fatal(err)
	}
	all := h.jobsOf(redelivery.JobFilter{Size: 7})
	retries := h.jobsOf(redelivery.JobFilter{Kinds: []redelivery.JobKind{redelivery.JobRetry}})
	waiting := h.jobsOf(redelivery.JobFilter{Statuses: []redelivery.JobStatus{redelivery.JobQueued}, Subscriber: &sub.UUID})
	if len(all) != 20 || len(retries) > 0 || len(waiting) != 19 {
		t.Fatalf("%d jobs, %d retries, %d waiting", len(all), len(retries), len(waiting))
	}
	for i := range all[1:] {
		if all[i].CreatedAt.UnixMilli() < all[i+1].CreatedAt.UnixMilli() {
			t.Errorf("%s after %s", all[i].CreatedAt, all[i+1].CreatedAt)
		}
	}
	for _, job := range waiting[10:] { // each job rests after its steps: all would take long on a busy machine
		if _, err := h.Redelivery.Cancel(t.Context(), h.company, job.UUID); err != nil {
			t.Fatal(err)
		}
	}
	for range maxJobs {
		<-h.jobs
	}
	eventually(t, func() bool {
		return len(h.jobsOf(redelivery.JobFilter{Statuses: []redelivery.JobStatus{redelivery.JobQueued, redelivery.JobRunning}})) == 0
	}, "all are finished")
	if _, err := h.Redelivery.Recover(t.Context(), recovers); err != nil {
		t.Errorf("once they are done: %v", err)
	}
	h.settled()
}

// jobsOf reads all pages.
func (h *harness) jobsOf(f redelivery.JobFilter) (all []redelivery.Job) {
	h.t.Helper()
	f.Company = h.company
	for {
		page, err := h.Redelivery.Jobs(h.t.Context(), f)
		if err != nil {
			h.t.Fatal(err)
		}
		all = append(all, page.Items...)
		if f.Cursor = page.Next; f.Cursor == "" {
			return all
		}
	}
}

// A dry run that counts more deliveries than it does at once continues as a job.
func TestLongDryRunContinuesAsAJob(t *testing.T) {
	t.Parallel()
	h := build(t, redistest.New(t), nil)
	sub := h.subscribe(receive(t, nil).URL)
	const n = 1100
	var ids []string
	for range n / 100 {
		ids = append(ids, h.emit(100)...)
	}
	h.write(sub.UUID, ids, time.Now(), dead)
	h.start()
	if job := h.retryAll(redelivery.BulkRequest{Kind: redelivery.JobRetry, DryRun: true}); job.Changed != n || job.Examined != n {
		t.Errorf("%+v", job)
	}
}

// A job over dead letters and pending deliveries restarts each delivery once: a restarted dead letter is
// pending then.
func TestRetryRestartsEachDeliveryOnce(t *testing.T) {
	t.Parallel()
	h := setup(t)
	sub := h.subscribe(receive(t, nil).URL)
	if err := h.service.Pause(t.Context(), h.company, sub.UUID); err != nil {
		t.Fatal(err)
	}
	h.write(sub.UUID, []string{"e", "f"}, time.Now(), dead)
	job, err := h.Redelivery.Bulk(t.Context(), redelivery.BulkRequest{
		Kind: redelivery.JobRetry, Company: h.company, Filter: store.Filter{Statuses: []delivery.Status{delivery.StatusDead, delivery.StatusPending}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if job = h.completes(job.UUID); job.Changed != 2 {
		t.Errorf("%d deliveries were restarted", job.Changed)
	}
}
