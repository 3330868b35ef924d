package dispatcher

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/google/uuid"

	"spendhook/dispatcher/delivery"
	"spendhook/dispatcher/tail"
	"spendhook/dispatcher/traffic"
	"spendhook/subscribers"
	"spendhook/subscribers/health"
)

// maxSampled bounds the subscribers whose last sample is kept.
const maxSampled = 1 << 14

// healthQuiet is the minimum interval between two samples of a subscriber that succeeds.
const healthQuiet = time.Second

// lastSample is the last sample of a subscriber.
type lastSample struct {
	at      time.Time
	failing bool // it ended with a failure
}

// process updates metrics, logs, live tails and subscriber health after outcomes were written.
func (d *Dispatcher) process(ctx context.Context, written []*outcome) {
	for _, o := range written {
		d.measure(o)
		d.logAttempt(ctx, o)
		if o.result != nil && !o.result.Aborted() {
			d.countTraffic(o)
			d.showInTail(o)
		}
		if o.result != nil && o.result.StatusCode == http.StatusGone {
			d.disableGone(ctx, o)
		}
	}
	samples := d.samples(written)
	if len(samples) == 0 {
		return
	}
	transitions := d.opts.Health.Record(ctx, samples, health.Policy{
		FailingAfter: d.opts.Policy.FailingAfter, DisableAfter: d.opts.Policy.DisableAfter,
	})
	for _, t := range transitions {
		switch {
		case t.Err != nil:
			d.opts.Logger.Error("subscriber health not recorded", "subscriber_uuid", t.Subscriber, "exception.message", t.Err)
		case t.Kind == health.Expired:
			changed, err := d.opts.Subscribers.DisableFailing(ctx, t.Company, t.Subscriber)
			d.logDisabled(t.Company, t.Subscriber, subscribers.ReasonFailing, changed, err)
		case t.Kind != health.None:
			d.wake(t.Company) // the transition may have made a notice
		}
	}
}

// samples makes one sample of each subscriber's outcomes, in order. It leaves out
// successes of a healthy subscriber within healthQuiet of its last sample.
func (d *Dispatcher) samples(written []*outcome) []health.Sample {
	index := make(map[uuid.UUID]int)
	var all []health.Sample
	for _, o := range written {
		if o.result == nil || o.result.NothingSent() {
			continue
		}
		i, ok := index[o.ref.Subscriber]
		if !ok {
			i = len(all)
			index[o.ref.Subscriber] = i
			all = append(all, health.Sample{
				Company: o.ref.Company, Subscriber: o.ref.Subscriber, At: d.opts.Now(),
				DisableAfter: d.opts.Policy.FailsFor(o.to.Subscriber.RetryTime()),
			})
		}
		if o.result.Success() {
			all[i].Success, all[i].TrailingFailures = true, 0
		} else {
			all[i].TrailingFailures++
			all[i].Error = string(o.result.Class)
		}
	}
	return slices.DeleteFunc(all, func(s health.Sample) bool { return !d.worthRecording(s) })
}

// worthRecording reports whether a sample is recorded, and keeps it as the last one.
func (d *Dispatcher) worthRecording(s health.Sample) bool {
	last, ok := d.sampled.Get(s.Subscriber)
	if ok && !last.failing && s.TrailingFailures == 0 && s.At.Sub(last.at) < healthQuiet {
		return false
	}
	d.sampled.Add(s.Subscriber, lastSample{at: s.At, failing: s.TrailingFailures > 0})
	return true
}

func (d *Dispatcher) countTraffic(o *outcome) {
	if d.opts.Counted == nil {
		return
	}
	d.opts.Counted(traffic.Attempt{
		Company: o.ref.Company, Subscriber: o.ref.Subscriber, StatusCode: o.result.StatusCode, Success: o.result.Success(),
		Dead: o.ended() && o.next.Status == delivery.StatusDead, Duration: o.result.Duration,
	})
}

func (d *Dispatcher) showInTail(o *outcome) {
	if d.opts.Tail == nil || !d.opts.Tail.Watched(o.ref.Company) {
		return
	}
	d.opts.Tail.Add(tail.Entry{
		At: o.result.StartedAt.UnixMilli(), Company: o.ref.Company, EventID: o.ref.ID, EventType: o.next.EventType,
		Subscriber: o.ref.Subscriber, Name: o.to.Subscriber.Name, Number: o.next.Count, StatusCode: o.result.StatusCode,
		Error: string(o.result.Class), DurationMs: o.result.Duration.Milliseconds(), Status: string(o.next.Status),
	})
}

// logDisabled logs the result of disabling a subscriber, and wakes the partition.
func (d *Dispatcher) logDisabled(company, subscriber uuid.UUID, reason string, changed bool, err error) {
	if err != nil {
		d.opts.Logger.Error("subscriber not disabled", "subscriber_uuid", subscriber, "reason", reason, "exception.message", err)
		return
	}
	if changed {
		d.opts.Logger.Warn("subscriber disabled", "company_uuid", company, "subscriber_uuid", subscriber, "reason", reason)
		d.wake(company) // disabling may have made a notice
	}
}

// disableGone disables a subscriber whose endpoint answered 410, unless the subscriber was
// changed since the attempt: its URL may be another one.
func (d *Dispatcher) disableGone(ctx context.Context, o *outcome) {
	company, subscriber := o.ref.Company, o.ref.Subscriber
	changed, err := d.opts.Subscribers.DisableGone(ctx, company, subscriber, o.to.Subscriber.CallbackURL, o.result.StartedAt)
	if !errors.Is(err, subscribers.ErrNotFound) {
		d.logDisabled(company, subscriber, subscribers.ReasonGone, changed, err)
	}
}
