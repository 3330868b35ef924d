// Package canary proves once a minute that a delivery arrives. It emits an event of a subscriber whose callback URL is
// this service's own public URL, so that the event goes the way of all others: log, matching, egress guard, DNS, TLS and
// load balancer, back to any replica. An alert tells when nothing arrives although all parts seem healthy.
package canary

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"spendhook/audit"
	"spendhook/events"
	"spendhook/events/publish"
	"spendhook/internal/clock"
	"spendhook/internal/invalid"
	"spendhook/internal/pause"
	"spendhook/internal/secret"
	"spendhook/subscribers"
	"spendhook/subscribers/callback"
	"spendhook/subscribers/health"
	"spendhook/subscribers/registry"
)

// EventType is the type of the canary's events.
const EventType = "SPENDHOOK_CANARY"

const (
	name     = "Spendhook canary"
	idPrefix = events.OwnPrefix + "canary-"
	// interval is fixed, because the alert relies on it.
	interval = time.Minute
	// look is the time between looks at the clock and the owner.
	look = time.Second
	// timeout bounds what waits for Redis.
	timeout = 10 * time.Second
	// readTimeout bounds how long a request that may be a stranger's waits for Redis.
	readTimeout = time.Second
)

// Options are what a Canary needs. All but Audit, Logger, Registerer and Now are required.
type Options struct {
	Company     uuid.UUID
	URL         string // at which the load balancer passes requests to ServeHTTP
	Subscribers *subscribers.Store
	Registry    *registry.Registry
	Health      *health.Store
	Accept      func(context.Context, []events.Event) ([]publish.Result, error) // publish.Publisher.Accept
	// Owns reports whether this replica owns the company's partition. Only the owner emits.
	Owns       func() bool
	Audit      func(audit.Entry)     // nil: changes of the subscriber are not recorded
	Logger     *slog.Logger          // nil: nothing is logged
	Registerer prometheus.Registerer // nil: nothing is exported
	Now        func() time.Time      // nil: the real clock
}

// Canary emits the events, and receives their deliveries. Run may be called once; ServeHTTP is safe for concurrent use.
type Canary struct {
	opts    Options
	metrics metrics
	last    time.Time // the interval for which it has emitted, or tried to
}

// New returns a Canary that emits nothing yet. The error says what is wrong with the URL.
func New(o Options) (*Canary, error) {
	var problems invalid.Error
	o.URL = callback.Any.Normalize(&problems, o.URL)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Audit == nil {
		o.Audit = func(audit.Entry) {}
	}
	o.Now = clock.Or(o.Now)
	return &Canary{opts: o, metrics: newMetrics(o.Registerer)}, problems.OrNil()
}

// Run emits an event in each interval until ctx ends.
func (c *Canary) Run(ctx context.Context) {
	for ok := true; ok; ok = pause.For(ctx, look) {
		c.beat(ctx)
	}
}

// beat emits the event of the present interval, unless it was done. A failure is not repeated within the interval.
func (c *Canary) beat(ctx context.Context) {
	now := c.opts.Now()
	of := now.Truncate(interval)
	if of.Equal(c.last) || !c.opts.Owns() {
		return
	}
	c.last = of
	limited, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if err := c.emit(limited, now); err != nil && ctx.Err() == nil {
		c.metrics.failures.Inc()
		c.opts.Logger.Warn("the event of the canary was not emitted", "company_uuid", c.opts.Company, "exception.message", err)
	}
}

// emit emits the event of the interval. All replicas give it the same id, so that there is one even if the owner changes
// or starts again; the first one's time counts.
func (c *Canary) emit(ctx context.Context, now time.Time) error {
	if err := c.prepare(ctx); err != nil {
		return fmt.Errorf("prepare the subscriber: %w", err)
	}
	results, err := c.opts.Accept(ctx, []events.Event{{
		ID: idPrefix + now.UTC().Format("20060102T1504"), CompanyUUID: c.opts.Company, Type: EventType,
		Timestamp: now.UTC().Truncate(time.Millisecond),
	}})
	if err == nil {
		err = results[0].Err
	}
	if errors.Is(err, publish.ErrConflict) {
		return nil
	}
	return err
}

// prepare creates the subscriber, or restores what somebody has changed. It writes nothing if all is as it must be.
func (c *Canary) prepare(ctx context.Context) error {
	sub, err := c.subscriber(ctx)
	if err != nil {
		return err
	}
	wanted := subscribers.Settings{
		Name: new(name), Events: new([]string{EventType}), Enabled: new(true), Filter: new(""), Transform: new(""), Format: new(subscribers.FormatStandard),
		Ordered: new(false), OrderedBy: new(""), OnDead: new("continue"), StopOn: new([]int), RetrySchedule: new([]int), RateLimit: &subscribers.RateLimit{},
		Signatures: new([]string{subscribers.SignatureStandard}), OAuth: &callback.OAuthChange{Remove: true},
		// It needs no challenge: the operator has named the receiver, which is this service.
		Verified: &subscribers.Verification{State: subscribers.StateVerified},
	}
	if sub == nil || sub.CallbackURL != c.opts.URL {
		wanted.CallbackURL = &c.opts.URL
	}
	if sub != nil {
		wanted.Headers = withoutHeaders(sub)
		restored, err := c.opts.Subscribers.Update(ctx, c.opts.Company, sub.UUID, wanted)
		if err != nil {
			return err
		}
		if restored.Unverified() { // somebody else has created it
			if restored, err = c.opts.Subscribers.NoteChallenge(ctx, &restored, *wanted.Verified); err != nil {
				return err
			}
		}
		if restored.Revision != sub.Revision {
			c.changed("update", sub.UUID)
		}
		return c.resume(ctx, sub.UUID)
	}
	created, err := c.opts.Subscribers.Create(ctx, c.opts.Company, wanted)
	if err == nil {
		c.changed("create", created.UUID)
	}
	return err
}

// withoutHeaders removes all headers.
func withoutHeaders(sub *subscribers.Subscriber) map[string]*secret.Text {
	remove := map[string]*secret.Text{}
	for _, h := range sub.Headers {
		remove[h.Name] = nil
	}
	return remove
}

// changed records a change of the subscriber.
func (c *Canary) changed(verb string, id uuid.UUID) {
	c.opts.Logger.Info("the canary created, restored or resumed its subscriber", "company_uuid", c.opts.Company, "subscriber_uuid", id)
	c.opts.Audit(audit.Entry{
		Actor: audit.Actor{Kind: audit.Service, Subject: "canary"}, Action: "subscriber." + verb,
		Target: audit.Target{Kind: "subscriber", IDs: []string{id.String()}}, CompanyUUID: &c.opts.Company, Outcome: audit.Success,
	})
}

// resume ends a pause of the subscriber.
func (c *Canary) resume(ctx context.Context, id uuid.UUID) error {
	states, err := c.opts.Health.Of(ctx, c.opts.Company, id)
	if err != nil || states[id].PausedAt == nil {
		return err
	}
	if err = c.opts.Subscribers.Resume(ctx, c.opts.Company, id); err == nil {
		c.changed("resume", id)
	}
	return err
}

// subscriber finds the canary's subscriber; nil when there is none.
func (c *Canary) subscriber(ctx context.Context) (*subscribers.Subscriber, error) {
	all, err := c.opts.Registry.Current(ctx, c.opts.Company)
	return Find(all, c.opts.URL), err
}

// Find returns the canary's subscriber among those of its company: the one with the normalised URL, or else the one with
// the canary's name, since the service may have had another URL. It returns nil when there is none.
func Find(all []*subscribers.Subscriber, url string) *subscribers.Subscriber {
	at := slices.IndexFunc(all, func(s *subscribers.Subscriber) bool { return s.Locked == nil && s.CallbackURL == url })
	if at < 0 {
		at = slices.IndexFunc(all, func(s *subscribers.Subscriber) bool { return s.Locked == nil && s.Name == name })
	}
	if at < 0 {
		return nil
	}
	return all[at]
}
