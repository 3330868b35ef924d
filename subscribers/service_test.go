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

func (d *deliveries) SubscriberEnabled(ctx context.Context, company, id uuid.UUID) error {
	return d.note(ctx, "release", company, id)
}

func (d *deliveries) SubscriberDeleting(ctx context.Context, company, id uuid.UUID) error {
	return d.note(ctx, "cancel", company, id)
}

func (d *deliveries) note(ctx context.Context, what string, company, id uuid.UUID) error {
	s, err := d.store.Get(ctx, company, id)
	d.calls = append(d.calls, fmt.Sprintf("%s: enabled %t, %v", what, s.Enabled, err))
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

func TestServiceReleasesAndCancelsDeliveries(t *testing.T) {
	t.Parallel()
	b := setup(t, subscribers.StoreOptions{})
	service, d := serviceOn(b)
	s := b.Create(t, "https://example.com/")
	update := func(u subscribers.Settings) {
		t.Helper()
		_, err := service.Update(t.Context(), b.Company, s.UUID, u)
		noErr(t, err)
	}
	update(subscribers.Settings{Name: new("Other")})
	update(subscribers.Settings{Enabled: new(false)})
	d.expect(t, "a change that enables nothing")
	update(subscribers.Settings{Enabled: new(true)})
	d.expect(t, "enabling", "release: enabled true, <nil>")
	noErr(t, service.Delete(t.Context(), b.Company, s.UUID))
	d.expect(t, "deleting", "cancel: enabled true, <nil>")
	wantErr(t, service.Delete(t.Context(), b.Company, s.UUID), subscribers.ErrNotFound)
	_, err := service.Update(t.Context(), b.Company, s.UUID, subscribers.Settings{Enabled: new(true)})
	wantErr(t, err, subscribers.ErrNotFound)
	d.expect(t, "changing an unknown one")
}

// When a change fails between its two steps, repeating the request completes it.
func TestRepeatedRequestCompletesAChange(t *testing.T) {
	t.Parallel()
	b := setup(t, subscribers.StoreOptions{})
	service, d := serviceOn(b)
	s := b.Create(t, "https://example.com/")
	_, err := b.Store.Disable(t.Context(), b.Company, s.UUID, subscribers.ReasonFailing)
	noErr(t, err)
	away := errors.New("away")
	enable := subscribers.Settings{Enabled: new(true)}

	d.fail = away
	_, err = service.Update(t.Context(), b.Company, s.UUID, enable)
	wantErr(t, err, away)
	wantErr(t, service.Delete(t.Context(), b.Company, s.UUID), away)
	_, err = b.Store.Get(t.Context(), b.Company, s.UUID)
	noErr(t, err)
	d.expect(t, "failures", "release: enabled true, <nil>", "cancel: enabled true, <nil>")

	d.fail = nil
	_, err = service.Update(t.Context(), b.Company, s.UUID, enable)
	noErr(t, err)
	d.expect(t, "enabling an enabled one", "release: enabled true, <nil>")
	noErr(t, service.Delete(t.Context(), b.Company, s.UUID))
	d.expect(t, "deleting", "cancel: enabled true, <nil>")
}
