// Package inspect explains the deliveries of an event, shows the request of a delivery, and
// sends test deliveries.
package inspect

import (
	"context"
	"sync"
	"time"

	"github.com/google/uuid"

	"spendhook/dispatcher/delivery"
	"spendhook/dispatcher/delivery/attempt"
	"spendhook/dispatcher/delivery/store"
	"spendhook/dispatcher/requests"
	"spendhook/dispatcher/webhook"
	"spendhook/events/history"
	"spendhook/subscribers"
	"spendhook/subscribers/registry"
)

// Options configures an Inspector. All but Now are required.
type Options struct {
	Events     *history.Reader
	Registry   *registry.Registry
	Deliveries *store.Store
	Requests   *requests.Maker
	Send       func(context.Context, webhook.Request) attempt.Result // the sender's
	Now        func() time.Time                                      // nil: time.Now
}

// Inspector is safe for concurrent use. Make it with New.
type Inspector struct {
	opts    Options
	testing sync.Map // subscribers that are being tested
}

// New returns an Inspector.
func New(o Options) *Inspector {
	if o.Now == nil {
		o.Now = time.Now //nolint:forbidigo // the one default
	}
	return &Inspector{opts: o}
}

// subscriber finds one subscriber of a company as it is now.
func (i *Inspector) subscriber(ctx context.Context, company, id uuid.UUID) (*subscribers.Subscriber, error) {
	subs, err := i.opts.Registry.Current(ctx, company)
	if err != nil {
		return nil, err
	}
	for _, s := range subs {
		if s.UUID == id {
			return s, nil
		}
	}
	return nil, delivery.ErrSubscriberGone
}
