// Package redelivery repeats and cancels deliveries: it retries one delivery, replays an event,
// and runs jobs over many deliveries.
package redelivery

import (
	"context"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/dispatcher/delivery"
	"spendhook/dispatcher/delivery/store"
	"spendhook/dispatcher/workqueue/quarantine"
	"spendhook/events/history"
	"spendhook/subscribers"
	"spendhook/subscribers/certificate"
	"spendhook/subscribers/registry"
)

// Queue has the methods of *workqueue.Queue that a Service uses.
type Queue interface {
	// Wake wakes partitions that have work.
	Wake(ctx context.Context, partitions []int)
}

// Options configures a Service; all are required.
type Options struct {
	Client       redis.UniversalClient
	Deliveries   *store.Store
	Events       *history.Reader
	Registry     *registry.Registry
	Subscribers  *subscribers.Store
	Certificates *certificate.Store
	Queue        Queue
	Quarantine   *quarantine.Store
	Now          func() time.Time
	NewID        func() uuid.UUID
	Logger       *slog.Logger
}

// Service is safe for concurrent use.
type Service struct {
	Options
}

// New returns a Service.
func New(o Options) *Service { return &Service{Options: o} }

// reachable finds a subscriber that deliveries can be made to:
// delivery.ErrSubscriberGone or delivery.ErrSubscriberDisabled otherwise.
func (s *Service) reachable(ctx context.Context, company, subscriber uuid.UUID) (*subscribers.Subscriber, error) {
	all, err := s.Registry.Current(ctx, company)
	if err != nil {
		return nil, err
	}
	for _, sub := range all {
		if sub.UUID != subscriber {
			continue
		}
		if !sub.Enabled {
			return sub, delivery.ErrSubscriberDisabled
		}
		return sub, nil
	}
	return nil, delivery.ErrSubscriberGone
}

// writeOf changes one delivery outside of any attempt, unless one is under way.
func writeOf(r delivery.Ref, base, next *delivery.Record) store.Write {
	return store.Write{Event: r.Ref, Changes: []store.Change{{Ref: r, Base: base, Next: next, Guarded: true}}}
}

// write makes writes of one change each. It returns for each what was found instead, nil when
// it was written.
func (s *Service) write(ctx context.Context, writes ...store.Write) ([]*store.Found, error) {
	recorded, wakes, err := s.Deliveries.Record(ctx, s.Now(), "", writes)
	if err != nil {
		return nil, err
	}
	s.Queue.Wake(ctx, wakes)
	out := make([]*store.Found, len(recorded))
	for i, r := range recorded {
		if r.Err != nil {
			return nil, r.Err
		}
		out[i] = r.Found[0]
	}
	return out, nil
}
