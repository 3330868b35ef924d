package subscribers

import (
	"context"
	"fmt"
	"slices"

	"github.com/google/uuid"
)

// Deliveries cancels the deliveries of a deleted subscriber for a Service.
type Deliveries interface {
	// SubscriberDeleting starts to cancel the pending deliveries of a subscriber. Call it
	// before the deletion. It checks for a minute whether the subscriber was deleted, and then
	// does nothing if not. It may be repeated.
	SubscriberDeleting(ctx context.Context, company, subscriber uuid.UUID) error
}

// Service is a Store that also cancels the deliveries of a subscriber that it deletes. It is for
// callers that change subscribers on behalf of a company. Safe for concurrent use; its errors are
// those of Store and of Deliveries.
type Service struct {
	*Store

	deliveries Deliveries
}

// NewService returns a Service on the store.
func NewService(store *Store, deliveries Deliveries) *Service {
	return &Service{Store: store, deliveries: deliveries}
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
