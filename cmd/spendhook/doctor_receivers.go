package main

import (
	"context"
	"slices"

	"github.com/google/uuid"

	"spendhook/dispatcher/delivery/attempt"
	"spendhook/dispatcher/delivery/store"
	"spendhook/internal/seal"
	"spendhook/subscribers"
	"spendhook/subscribers/health"
	"spendhook/subscribers/registry"
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

// mostTokens is how many receivers without an access token are named.
const mostTokens = 5

// receiverTokens names subscribers that are failing because their token endpoint gives them no access token.
func (d *doctor) receiverTokens(ctx context.Context, of *subscribers.Store, ring *seal.Keyring) {
	copies := registry.New(d.redis.Client(), ring, 0)
	read, found := 0, 0
	for company, err := range of.Companies(ctx) {
		var without []*subscribers.Subscriber
		if err == nil {
			without, err = d.withoutToken(ctx, copies, company)
		}
		if err != nil {
			d.problem("make Redis answer, then run this again", "%v", err)
			return
		}
		for _, sub := range without {
			d.warn("try its token endpoint and client secret: spendhook subscriber test "+sub.UUID.String()+" (docs/receiving.md)",
				"subscriber %s of company %s is failing: no access token from %s", sub.UUID, company, sub.OAuth.TokenURL)
			if found++; found == mostTokens {
				return
			}
		}
		if read++; read == mostCompanies {
			return
		}
	}
}

// withoutToken lists the failing subscribers of a company with a delivery whose last attempt had no access token.
func (d *doctor) withoutToken(ctx context.Context, copies *registry.Registry, company uuid.UUID) ([]*subscribers.Subscriber, error) {
	client := d.redis.Client()
	failing, _, err := health.New(health.Options{Client: client}).Troubled(ctx, company)
	if err != nil || len(failing) == 0 {
		return nil, err
	}
	all, err := copies.Current(ctx, company)
	if err != nil {
		return nil, err
	}
	deliveries := store.New(store.Options{Client: client, Policy: deliveryPolicy(d.cfg)})
	var without []*subscribers.Subscriber
	for _, sub := range all {
		if sub.OAuth == nil || !sub.Enabled || !slices.Contains(failing, sub.UUID) {
			continue
		}
		page, err := deliveries.List(ctx, store.Filter{
			Company: &company, Subscriber: &sub.UUID, Size: 1,
			ErrorClasses: []string{string(attempt.ClassToken), string(attempt.ClassTokenRefused)},
		})
		if err != nil {
			return nil, err
		}
		if len(page.Items) > 0 {
			without = append(without, sub)
		}
	}
	return without, nil
}
