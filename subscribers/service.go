package subscribers

import (
	"context"
	"fmt"
	"slices"

	"github.com/google/uuid"
)

// Deliveries has the changes of deliveries that a Service needs. Both methods may be repeated.
type Deliveries interface {
	// SubscriberEnabled releases deliveries that were held while the subscriber was disabled.
	SubscriberEnabled(ctx context.Context, company, subscriber uuid.UUID) error
	// SubscriberDeleting starts to cancel the pending deliveries of a subscriber. Call it
	// before the deletion. A moment later it checks whether the subscriber was deleted,
	// and does nothing if not.
	SubscriberDeleting(ctx context.Context, company, subscriber uuid.UUID) error
}

// Service is a Store that also updates deliveries when a subscriber changes. It is for callers
// that change subscribers on behalf of a company. Safe for concurrent use; its errors are those
// of Store and of Deliveries.
type Service struct {
	*Store

	deliveries Deliveries
}

// NewService returns a Service on the store.
func NewService(store *Store, deliveries Deliveries) *Service {
	return &Service{Store: store, deliveries: deliveries}
}

// Update is Store.Update. When in enables the subscriber, its held deliveries are
// released, also when it was enabled already: a process may have been lost
// between the two steps, and a caller without an answer repeats the request.
func (s *Service) Update(ctx context.Context, company, id uuid.UUID, in Settings) (Subscriber, error) {
	sub, err := s.Store.Update(ctx, company, id, in)
	if err != nil || in.Enabled == nil || !*in.Enabled {
		return sub, err
	}
	if err := s.deliveries.SubscriberEnabled(ctx, company, id); err != nil {
		return Subscriber{}, fmt.Errorf("release deliveries: %w", err)
	}
	return sub, nil
}

// Delete starts to cancel the pending deliveries and then calls Store.Delete. In this order a
// process that is lost in between leaves no pending delivery of a deleted subscriber.
func (s *Service) Delete(ctx context.Context, company, id uuid.UUID, revisions ...string) error {
	raw, err := s.read(ctx, company, id)
	if err != nil { // nothing to cancel for an unknown one
		return err
	}
	if len(revisions) > 0 && !slices.Contains(revisions, revisionOf(raw)) {
		return ErrChanged
	}
	if err := s.deliveries.SubscriberDeleting(ctx, company, id); err != nil {
		return fmt.Errorf("cancel deliveries: %w", err)
	}
	return s.Store.Delete(ctx, company, id, revisions...)
}
