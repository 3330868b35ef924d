package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"spendhook/dispatcher/delivery/attempt"
	"spendhook/subscribers"
	"spendhook/subscribers/health"
	"spendhook/subscribers/layout"
)

// callbackURLs checks that no subscriber waits for the verification of its callback URL.
func (d *doctor) callbackURLs(ctx context.Context, store *subscribers.Store) {
	switch waiting, err := store.CountUnverified(ctx); {
	case err != nil:
		d.problem("make Redis answer, then run this again", "%v", err)
	case waiting > 0:
		d.warn("have the receivers answer a challenge, then: spendhook subscriber verify <uuid> (docs/receiving.md)", "%d subscribers are not verified, and their deliveries wait", waiting)
	}
}

// mostNamed is how many companies with a receiver that needs attention are named.
const mostNamed = 5

// receivers finds subscribers that need attention, company by company, and tells of the first of each company.
func (d *doctor) receivers(ctx context.Context, of *subscribers.Store, find func(context.Context, uuid.UUID) ([]subscribers.Subscriber, error), tell func(first subscribers.Subscriber, others int)) {
	read, named := 0, 0
	for company, err := range of.Companies(ctx) {
		var found []subscribers.Subscriber
		if err == nil {
			found, err = find(ctx, company)
		}
		switch {
		case errors.Is(err, context.DeadlineExceeded):
			d.warn("run it again with a longer --timeout", "after %d companies the time was up", read)
			return
		case err != nil:
			d.problem("make Redis answer, then run this again", "%v", err)
			return
		case len(found) > 0:
			tell(found[0], len(found)-1)
			named++
		}
		if named == mostNamed {
			d.warn("run it again when these are mended", "more companies may have such subscribers")
			return
		}
		if read++; read == mostCompanies {
			if named > 0 {
				d.warn("mend those that are named first", "no more than %d companies were read", read)
			}
			d.okText += fmt.Sprintf(", in the first %d companies; no more were read", read)
			return
		}
	}
}

// receiverTokens names companies with subscribers that are failing because their token endpoint gives no access token.
func (d *doctor) receiverTokens(ctx context.Context, of *subscribers.Store) {
	find := func(ctx context.Context, company uuid.UUID) ([]subscribers.Subscriber, error) {
		return d.withoutToken(ctx, of, company)
	}
	d.receivers(ctx, of, find, func(first subscribers.Subscriber, others int) {
		d.warn("try its token endpoint and client secret: spendhook subscriber test "+first.UUID.String()+" (docs/receiving.md)",
			"subscriber %s of company %s is failing without an access token from %s, and %d others of the company", first.UUID, first.CompanyUUID, first.OAuth.TokenURL, others)
	})
}

// retrySchedules names companies with subscribers whose retries take longer than events are kept.
func (d *doctor) retrySchedules(ctx context.Context, of *subscribers.Store) {
	most := longestRetries(d.cfg)
	find := func(ctx context.Context, company uuid.UUID) (long []subscribers.Subscriber, err error) {
		hash, err := d.redis.Client().HGetAll(ctx, layout.CompanyKey(company)).Result()
		for _, sub := range subscribers.DecodeShown(company, hash) {
			if sub.Enabled && sub.RetryTime() > most {
				long = append(long, *sub)
			}
		}
		return long, err
	}
	d.receivers(ctx, of, find, func(first subscribers.Subscriber, others int) {
		takes := time.Duration(float64(first.RetryTime()) * (1 + d.cfg.Delivery.Jitter))
		d.warn("raise events.retention, or shorten the schedule: spendhook subscriber update "+first.UUID.String()+" --retry-schedule 5,300,3600",
			"the retries of subscriber %s of company %s take up to %v, and events are kept for %v: what waits for longer is in no list. %d others of the company have such schedules",
			first.UUID, first.CompanyUUID, takes, d.cfg.Events.Retention, others)
	})
}

// withoutToken lists the failing subscribers of a company whose last attempt had no access token.
func (d *doctor) withoutToken(ctx context.Context, of *subscribers.Store, company uuid.UUID) (without []subscribers.Subscriber, err error) {
	healths := health.New(health.Options{Client: d.redis.Client()})
	failing, _, err := healths.Troubled(ctx, company)
	if err != nil || len(failing) == 0 {
		return nil, err
	}
	states, err := healths.Of(ctx, company, failing...)
	if err != nil {
		return nil, err
	}
	for _, id := range failing {
		if class := attempt.ErrorClass(states[id].Error); class != attempt.ClassToken && class != attempt.ClassTokenRefused {
			continue
		}
		switch sub, err := of.Get(ctx, company, id); {
		case err == nil && sub.Enabled && sub.OAuth != nil:
			without = append(without, sub)
		case err != nil && !errors.Is(err, subscribers.ErrNotFound): // it was deleted meanwhile
			return nil, err
		}
	}
	return without, nil
}
