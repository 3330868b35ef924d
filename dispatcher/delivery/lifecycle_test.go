package delivery

import (
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"spendhook/dispatcher/delivery/attempt"
)

var testPolicy = Policy{Schedule: []time.Duration{time.Second, time.Minute}, Jitter: 0.2, RetryAfterMax: 24 * time.Hour}

func middle() float64 { return 0.5 }

func TestDecide(t *testing.T) {
	t.Parallel()
	now := time.UnixMilli(1_000_000)
	failed := attempt.Result{StatusCode: http.StatusServiceUnavailable, Class: "http_5xx", StartedAt: now}
	asked := failed
	asked.RetryAfter = time.Hour
	absurd := failed
	absurd.RetryAfter = 1000 * time.Hour
	cases := map[string]struct {
		before Record
		res    attempt.Result
		status Status
		due    time.Duration
		reason string
		count  int
	}{
		"2xx delivers":                       {Record{Status: StatusPending}, attempt.Result{StatusCode: 204}, StatusDelivered, 0, "", 1},
		"first failure follows the schedule": {Record{Status: StatusPending}, failed, StatusRetrying, time.Second, "", 1},
		"second failure too":                 {Record{Status: StatusDelivering, Step: 1, Count: 1}, failed, StatusRetrying, time.Minute, "", 2},
		"the last failure is death":          {Record{Status: StatusDelivering, Step: 2, Count: 2}, failed, StatusDead, 0, ReasonExhausted, 3},
		"Retry-After is obeyed":              {Record{Status: StatusPending}, asked, StatusRetrying, time.Hour, "", 1},
		"Retry-After is clamped":             {Record{Status: StatusPending}, absurd, StatusRetrying, 24 * time.Hour, "", 1},
		"410 is death":                       {Record{Status: StatusPending}, attempt.Result{Class: attempt.ClassGone, StatusCode: http.StatusGone}, StatusDead, 0, ReasonGone, 1},
		"a receiver ends the attempts":       {Record{Status: StatusPending}, attempt.Result{Class: attempt.ClassStopped, RetryAfter: time.Hour}, StatusDead, 0, ReasonStopped, 1},
		"a transform fails":                  {Record{Status: StatusPending}, attempt.Result{Class: attempt.ClassTransform, Err: errors.New("no such key: n")}, StatusDead, 0, ReasonTransform, 1},
		"an interrupted attempt never was":   {Record{Status: StatusDelivering, Step: 1, Count: 1}, attempt.Result{Class: attempt.ClassAborted}, StatusRetrying, 1, ReasonInterrupted, 1},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := Decide(c.before, c.res, testPolicy, now, middle)
			want := int64(0)
			if c.due > 0 {
				want = now.Add(c.due).UnixMilli()
			}
			if got.Status != c.status || got.Due != want || got.Reason != c.reason || got.Count != c.count {
				t.Errorf("got %+v", got)
			}
		})
	}
}

// TestStateMachine makes random transitions of a delivery and checks each against the rules
// of docs/delivery-states.md.
func TestStateMachine(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		now := time.UnixMilli(1_000_000)
		r := Record{Status: StatusPending}
		t.Repeat(map[string]func(*rapid.T){
			"attempt": func(t *rapid.T) {
				if !r.Status.Live() {
					t.Skip("no attempt of what has ended")
				}
				res := rapid.SampledFrom([]attempt.Result{
					{StatusCode: 200},
					{StatusCode: 500, Class: "http_5xx"},
					{Class: "timeout"},
					{Class: attempt.ClassGone, StatusCode: 410},
					{Class: attempt.ClassStopped, StatusCode: 422},
					{Class: attempt.ClassAborted},
					{Class: attempt.ClassLocked},
					{Class: attempt.ClassTransform, Err: errors.New("no such key: n")},
				}).Draw(t, "result")
				before := r
				r = Decide(r, res, testPolicy, now, func() float64 { return rapid.Float64Range(0, 0.999).Draw(t, "jitter") })
				switch {
				case res.Aborted() && (r.Count != before.Count || r.Step != before.Step):
					t.Fatal("an attempt that was not made was counted")
				case !res.Aborted() && r.Count != before.Count+1:
					t.Fatal("an attempt was not counted")
				}
			},
			"late attempt": func(t *rapid.T) {
				if r.Status != StatusDead {
					t.Skip("only a dead letter takes a late attempt")
				}
				res := rapid.SampledFrom([]attempt.Result{{StatusCode: 200}, {Class: "timeout"}, {Class: attempt.ClassGone, StatusCode: 410}}).Draw(t, "result")
				before := r
				r = Decide(r, res, testPolicy, now, func() float64 { return 0 })
				if r.Count != before.Count+1 || !res.Success() && (r.Status != before.Status || r.Reason != before.Reason || r.Step != before.Step) {
					t.Fatalf("%+v became %+v", before, r)
				}
			},
			"queue": func(t *rapid.T) {
				if !r.Status.Live() {
					t.Skip("nothing to queue")
				}
				before := r
				if r = Queue(r, ReasonBusy, now); r.Count != before.Count || r.Step != before.Step {
					t.Fatal("queueing was counted")
				}
			},
			"requeue": func(t *rapid.T) {
				if !r.Status.Live() {
					t.Skip("nothing to requeue")
				}
				r = Requeue(r, now)
			},
			"cancel": func(t *rapid.T) {
				if !r.Status.Live() {
					t.Skip("nothing to cancel")
				}
				r = Cancel(r, ReasonSubscriberDeleted, now)
			},
			"replay": func(*rapid.T) { r = Restart(r, ReasonReplay, now) },
			"":       func(t *rapid.T) { checkRecord(t, &r, now) },
		})
	})
}

func checkRecord(t *rapid.T, r *Record, now time.Time) {
	scheduled := r.Due > 0
	switch r.Status {
	case StatusPending, StatusRetrying:
		if r.Count > 0 && !scheduled {
			t.Fatalf("%s has no next attempt", r.Status)
		}
		if (r.Status == StatusRetrying) != (r.Step > 0) {
			t.Fatalf("%s after %d failures of the run", r.Status, r.Step)
		}
		if scheduled && r.Due < now.UnixMilli() {
			t.Fatal("due in the past")
		}
	case StatusDelivered, StatusDead, StatusCancelled:
		if scheduled {
			t.Fatalf("%s has a next attempt", r.Status)
		}
	case StatusDelivering:
		t.Fatal("only the store begins attempts")
	}
	if len(r.Attempts) > 20 || r.Step > len(testPolicy.Schedule)+1 {
		t.Fatalf("%d attempts kept, step %d", len(r.Attempts), r.Step)
	}
}

func TestRecordReadsWhatItWrote(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		r := Record{
			Status:    rapid.SampledFrom([]Status{StatusPending, StatusRetrying, StatusDelivered, StatusDead, StatusCancelled}).Draw(t, "status"),
			Version:   rapid.Int64Range(0, 1<<40).Draw(t, "version"),
			EventType: rapid.StringMatching(`[A-Z][A-Z0-9_]{0,63}`).Draw(t, "type"),
			Created:   rapid.Int64Range(0, 1<<42).Draw(t, "created"),
			Due:       rapid.Int64Range(0, 1<<42).Draw(t, "due"),
		}
		for range rapid.IntRange(0, 30).Draw(t, "attempts") {
			r.Attempts = attempt.Append(r.Attempts, len(r.Attempts)+1, attempt.Result{
				StartedAt: time.UnixMilli(rapid.Int64Range(0, 1<<42).Draw(t, "started")),
				Class:     rapid.SampledFrom([]attempt.ErrorClass{attempt.ClassNone, attempt.ClassTimeout, attempt.ClassHTTP5xx}).Draw(t, "class"),
				// What a receiver answers may be any bytes.
				ResponseBody: rapid.SliceOfN(rapid.Byte(), 1, 50).Draw(t, "body"),
			})
		}
		text, err := r.Encode()
		if err != nil {
			t.Fatal(err)
		}
		got, err := Decode(text)
		if err != nil {
			t.Fatal(err)
		}
		r.Version++
		if diff := cmp.Diff(&r, got); diff != "" {
			t.Fatal(diff)
		}
	})
}

func FuzzDecodeRecord(f *testing.F) {
	text, err := (&Record{Status: StatusRetrying, EventType: "PAYMENT_PAID", Attempts: []attempt.Attempt{{Number: 1}}}).Encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add("P1|{}")
	f.Add("|")
	f.Fuzz(func(t *testing.T, s string) {
		r, err := Decode(s)
		if err != nil {
			return
		}
		if _, err := r.Encode(); err != nil {
			t.Errorf("%q was read but cannot be written: %v", s, err)
		}
	})
}

// A subscriber with a long schedule of its own is not disabled before its deliveries have had all their retries.
func TestALongScheduleMayFailLonger(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	p := Policy{DisableAfter: 5 * day, Jitter: 0.5}
	for retries, want := range map[time.Duration]time.Duration{0: 5 * day, 3 * day: 5 * day, 4 * day: 6 * day, 20 * day: 30 * day} {
		if got := p.FailsFor(retries); got != want {
			t.Errorf("retries for %v: %v, want %v", retries, got, want)
		}
	}
}
