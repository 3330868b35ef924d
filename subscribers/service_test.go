package subscribers_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/google/uuid"

	"spendhook/subscribers"
)

// deliveries records the calls of a Service, and the stored subscriber at that moment.
type deliveries struct {
	store *subscribers.Store
	calls []string
	fail  error
}

func (d *deliveries) SubscriberDeleting(ctx context.Context, company, id uuid.UUID) error {
	s, err := d.store.Get(ctx, company, id)
	d.calls = append(d.calls, fmt.Sprintf("cancel: enabled %t, %v", s.Enabled, err))
	return d.fail
}

func (d *deliveries) expect(t *testing.T, after string, want ...string) {
	t.Helper()
	if !slices.Equal(d.calls, want) {
		t.Errorf("after %s: %q, want %q", after, d.calls, want)
	}
	d.calls = nil
}

func serviceOn(b *bundle) (*subscribers.Service, *deliveries) {
	d := &deliveries{store: b.Store}
	return subscribers.NewService(b.Store, d), d
}

// The deliveries of a subscriber are cancelled from before its deletion on. When a deletion fails
// between the two steps, repeating the request completes it.
func TestServiceCancelsDeliveries(t *testing.T) {
	t.Parallel()
	b := setup(t, subscribers.StoreOptions{})
	service, d := serviceOn(b)
	s := b.Create(t, "https://example.com/")
	away := errors.New("away")
	d.fail = away
	wantErr(t, service.Delete(t.Context(), b.Company, s.UUID), away)
	_, err := b.Store.Get(t.Context(), b.Company, s.UUID)
	noErr(t, err)
	d.expect(t, "a failure", "cancel: enabled true, <nil>")

	d.fail = nil
	noErr(t, service.Delete(t.Context(), b.Company, s.UUID))
	d.expect(t, "deleting", "cancel: enabled true, <nil>")
	wantErr(t, service.Delete(t.Context(), b.Company, s.UUID), subscribers.ErrNotFound)
	d.expect(t, "deleting an unknown one")
}
