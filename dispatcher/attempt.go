package dispatcher

import (
	"errors"
	"net/http"
	"slices"
	"time"

	"spendhook/dispatcher/delivery"
	"spendhook/dispatcher/delivery/attempt"
	"spendhook/dispatcher/delivery/store"
	"spendhook/dispatcher/endpoint"
	"spendhook/dispatcher/requests"
	"spendhook/dispatcher/workqueue"
	"spendhook/subscribers"
)

// admit asks for a place in memory for a delivery.
func (d *Dispatcher) admit(w *work) {
	w.entered = d.opts.Now()
	w.place = endpoint.Delivery{
		Company: w.ref.Company, Endpoint: w.ref.Subscriber, Host: w.to.Address(), URL: w.to.Subscriber.URLVersion,
		Alone: w.event != nil && w.event.alone, Queued: w.event == nil, Backlogged: w.backlogged,
		Decided: func(decision endpoint.Decision) { d.decided(w, decision) },
	}
	if decision := d.admission.Enter(&w.place); decision != endpoint.Wait {
		d.decided(w, decision)
	}
}

// decided starts a delivery, or has it wait in the retry set of its endpoint.
func (d *Dispatcher) decided(w *work, decision endpoint.Decision) {
	switch decision {
	case endpoint.Start:
		d.starts.add(&d.working, w)
	case endpoint.OverflowQueue, endpoint.OverflowBreaker, endpoint.OverflowPause, endpoint.OverflowHost, endpoint.OverflowShare:
		d.metrics.queued.Inc()
		o := &outcome{work: w}
		reason := w.queueReason(decision)
		o.apply = func(r delivery.Record, now time.Time) delivery.Record { return delivery.Queue(r, reason, now) }
		d.record(o)
	case endpoint.Stopped: // Stop requeues the delivery with all other work in flight
	case endpoint.Wait:
	}
}

// queueReason is the reason for which a delivery goes to its retry set.
func (w *work) queueReason(decision endpoint.Decision) string {
	switch {
	case decision == endpoint.OverflowBreaker:
		return delivery.ReasonUnreachable
	case decision == endpoint.OverflowPause:
		return delivery.ReasonRetryAfter
	case decision == endpoint.OverflowHost:
		return delivery.ReasonHostBusy
	case slices.Contains(w.event.paused, w.ref.Subscriber):
		return delivery.ReasonPaused
	case w.to.Subscriber.Rate() != nil:
		return delivery.ReasonRateLimit
	case w.inOrder():
		return delivery.ReasonOrder
	}
	return delivery.ReasonBusy
}

// maxEndpointPause bounds how long a Retry-After keeps all deliveries from an
// endpoint. The delivery that got this answer may wait longer, see delivery.Policy.
const maxEndpointPause = 15 * time.Minute

// attempt POSTs one delivery and queues the outcome for the recorder. The outcome has a place in
// memory until it is recorded. A crash repeats the attempts without a recorded outcome, so the
// places bound the number of repeats.
func (d *Dispatcher) attempt(w *work) {
	waited := d.metrics.waited(w, d.opts.Now())
	res := attempt.Result{Class: attempt.ClassAborted}
	if !d.isLate(w) {
		res = d.post(w)
	}
	res.Waited = waited
	result := endpoint.Result{
		Latency: res.Duration, Unreachable: res.Class.Unreachable(), NotCounted: res.NothingSent(),
		TooMany: res.StatusCode == http.StatusTooManyRequests, Pause: min(res.RetryAfter, maxEndpointPause),
	}
	o := &outcome{work: w, result: &res, apply: func(r delivery.Record, now time.Time) delivery.Record {
		return delivery.Decide(r, res, d.policyOf(w), now, d.opts.Jitter)
	}}
	if failures, wait, news := d.admission.Learn(&w.place, result); news {
		o.learned = &store.Learned{Failures: failures, Wait: wait}
	}
	d.record(o)
	d.Queue.Again(d.admission.Leave(&w.place, result))
	d.Queue.Left(w.ref.Company, w.ref.Subscriber)
}

// policyOf is the policy with the schedule of the subscriber, if it has one.
func (d *Dispatcher) policyOf(w *work) delivery.Policy {
	policy := d.opts.Policy
	if waits := w.to.Subscriber.Retries(); waits != nil {
		policy.Schedule = waits
	}
	return policy
}

// inOrder reports whether the delivery must not overtake others.
func (w *work) inOrder() bool { return w.to.Subscriber.Ordered || w.base.OrderKey != "" }

// isLate reports whether another replica may have taken over a delivery that must not overtake others: it waited for longer
// than workqueue.BeginWithin, as at a host that is full, and this replica does not hold it any more.
func (d *Dispatcher) isLate(w *work) bool {
	if !w.inOrder() || time.Since(w.asked) <= workqueue.BeginWithin { //nolint:forbidigo // as in package workqueue
		return false
	}
	asked := time.Now() //nolint:forbidigo // likewise
	if !d.Queue.Holds(d.sending, w.token, w.ref.Company, w.ref.Subscriber, w.ref.ID) {
		return true
	}
	w.asked = asked
	return time.Since(asked) > workqueue.BeginWithin //nolint:forbidigo // likewise
}

// notSent is the result of an attempt that was not made, since there is no payload or, without an error, no time left.
func notSent(err error) attempt.Result {
	if failed, ok := errors.AsType[*requests.TransformError](err); ok {
		return attempt.Result{Class: attempt.ClassTransform, Err: failed.Why}
	}
	if errors.Is(err, subscribers.ErrLocked) {
		return attempt.Result{Class: attempt.ClassLocked, Err: err}
	}
	return attempt.Result{Class: attempt.ClassAborted, Err: err}
}

// post POSTs one delivery. A panic counts as a failed attempt: otherwise it would end this
// replica, and then each replica that takes the delivery over.
func (d *Dispatcher) post(w *work) (res attempt.Result) {
	started, span := d.opts.Now(), d.attemptSpan(w)
	err := d.contain("delivery attempt", w.ref, func() {
		payload := w.payload
		if w.source != nil && w.to.Locked == nil {
			var err error
			if payload, err = d.opts.Requests.Payload(d.sending, w.source, w.to.Subscriber); err != nil || d.isLate(w) {
				res = notSent(err)
				res.StartedAt, res.Duration, res.URLVersion = started, d.opts.Now().Sub(started), w.to.Subscriber.URLVersion
				return
			}
		}
		request := w.to.Request(w.ref.ID, w.sequence, payload)
		request.Previous = w.base.Previous
		request.Traceparent = partOf(span, w.trace).Traceparent()
		res = d.send(d.sending, request)
	})
	if err != nil {
		res = attempt.Result{StartedAt: started, Duration: d.opts.Now().Sub(started), Class: attempt.ClassPanic, Err: err, URLVersion: w.to.Subscriber.URLVersion}
	}
	endAttempt(span, &res)
	return res
}
