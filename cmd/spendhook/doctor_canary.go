package main

import (
	"context"
	"fmt"
	"time"

	"spendhook/canary"
	"spendhook/dispatcher/delivery"
	"spendhook/dispatcher/delivery/store"
	"spendhook/internal/seal"
	"spendhook/subscribers"
	"spendhook/subscribers/registry"
)

// canaryPatience is the age of the canary's last arrival from which it is a problem, as in the alert.
const canaryPatience = 5 * time.Minute

// canary checks when an event of the canary was last acknowledged, by whatever answers at its URL.
func (d *doctor) canary(ctx context.Context, ring *seal.Keyring) {
	if !hasCanary(d.cfg) {
		d.okText = "it is off: canary.company is not set"
		return
	}
	all, err := registry.New(d.redis.Client(), ring, 0).Current(ctx, d.cfg.Canary.Company)
	if err != nil {
		d.problem("make Redis answer, then run this again", "%v", err)
		return
	}
	sub := canary.Find(all, canaryURL(d.cfg.PublicURL))
	if sub == nil {
		d.warn("start a daemon, which creates it; the log of a running one says why it cannot", "it has no subscriber")
		return
	}
	d.canaryArrival(ctx, sub)
}

func (d *doctor) canaryArrival(ctx context.Context, sub *subscribers.Subscriber) {
	const remedy = "follow docs/runbooks/SpendhookCanaryMissing.md"
	page, err := store.New(store.Options{Client: d.redis.Client(), Policy: deliveryPolicy(d.cfg)}).List(ctx, store.Filter{
		Company: &sub.CompanyUUID, Subscriber: &sub.UUID, Statuses: []delivery.Status{delivery.StatusDelivered}, Size: 1,
	})
	switch {
	case err != nil:
		d.problem("make Redis answer, then run this again", "%v", err)
	case len(page.Items) == 0:
		d.problem(remedy, "none of its events was acknowledged at %s", sub.CallbackURL)
	default:
		age := time.Since(time.UnixMilli(page.Items[0].Updated)).Round(time.Second)
		d.okText = fmt.Sprintf("its last event was acknowledged at %s %v ago", sub.CallbackURL, age)
		if age > canaryPatience {
			d.problem(remedy, "%s", d.okText)
		}
	}
}
