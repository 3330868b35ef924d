package subscribers

import (
	"context"
	"fmt"
	"slices"

	"github.com/google/uuid"
)

// Deliveries is what a Service needs of the deliveries to subscribers. Both
// methods are safe to call again.
type Deliveries interface {
	// SubscriberEnabled releases what was held while the subscriber was disabled.
	SubscriberEnabled(ctx context.Context, company, subscriber uuid.UUID) error
	// SubscriberDeleting cancels what is pending for a subscriber that is about to
	// be deleted. It looks a moment later whether the subscriber is gone, and does
	// nothing if not.
	SubscriberDeleting(ctx context.Context, company, subscriber uuid.UUID) error
}

// Service is a Store whose changes include what they mean for deliveries. It is
// for callers that change subscribers on behalf of a company. Safe for concurrent
// use; its errors are those of Store and of Deliveries.
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

// Delete is Store.Delete, after it has arranged that what is pending is
// cancelled. In this order a process that is lost in between leaves no delivery
// pending for a subscriber that is gone.
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
