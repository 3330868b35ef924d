package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"spendhook/dispatcher/delivery/attempt"
	"spendhook/subscribers"
	"spendhook/subscribers/health"
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

// mostWithoutToken is how many companies with a receiver without an access token are named.
const mostWithoutToken = 5

// receiverTokens names companies with subscribers that are failing because their token endpoint gives no access token.
func (d *doctor) receiverTokens(ctx context.Context, of *subscribers.Store) {
	read, found := 0, 0
	for company, err := range of.Companies(ctx) {
		var without []subscribers.Subscriber
		if err == nil {
			without, err = d.withoutToken(ctx, of, company)
		}
		switch {
		case errors.Is(err, context.DeadlineExceeded):
			d.warn("run it again with a longer --timeout", "after %d companies the time was up", read)
			return
		case err != nil:
			d.problem("make Redis answer, then run this again", "%v", err)
			return
		case len(without) > 0:
			first := without[0]
			d.warn("try its token endpoint and client secret: spendhook subscriber test "+first.UUID.String()+" (docs/receiving.md)",
				"subscriber %s of company %s is failing without an access token from %s, and %d others of the company", first.UUID, company, first.OAuth.TokenURL, len(without)-1)
			found++
		}
		if found == mostWithoutToken {
			d.warn("run it again when these are mended", "subscribers of more companies may be failing without an access token")
			return
		}
		if read++; read == mostCompanies {
			if found > 0 {
				d.warn("try those that are named first", "no more than %d companies were read", read)
			}
			d.okText = fmt.Sprintf("no receiver of the first %d companies fails for want of an access token; no more were read", read)
			return
		}
	}
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
