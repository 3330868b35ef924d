package subscribers_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"spendhook/events/eventtype"
	"spendhook/events/history"
	"spendhook/events/operational"
	"spendhook/internal/redistest"
	"spendhook/internal/seal/sealtest"
	"spendhook/subscribers"
)

// notices lists the operational events of the company, as "type metadata".
func (b *bundle) notices(t *testing.T, store *history.Reader) []string {
	t.Helper()
	page, err := store.List(t.Context(), history.Filter{Company: &b.company, Size: 100})
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range page.Items {
		out = append(out, e.Type+" "+string(e.Metadata))
	}
	slices.Sort(out)
	return out
}

func setupNotices(t *testing.T) (*bundle, *history.Reader) {
	t.Helper()
	b := &bundle{client: redistest.New(t), clock: newClock(), company: uuid.New()}
	told := history.New(history.Options{Client: b.client, Retention: 7 * 24 * time.Hour, Now: b.clock.Now})
	b.store = subscribers.NewStore(subscribers.StoreOptions{
		Client: b.client, Now: b.clock.Now, Keyring: sealtest.Keyring(),
		Operational: operational.New(operational.Options{Client: b.client, Retention: 7 * 24 * time.Hour, Now: b.clock.Now}),
	})
	return b, told
}

func TestScriptThatDisablesWritesItsNotice(t *testing.T) {
	t.Parallel()
	b, told := setupNotices(t)
	failing, gone, manual := b.create(t, "https://example.com/a"), b.create(t, "https://example.com/b"), b.create(t, "https://example.com/c")
	listener := b.input("https://example.com/d")
	listener.Events = new([]string{eventtype.SubscriberDisabled})
	if _, err := b.store.Create(t.Context(), b.company, listener); err != nil {
		t.Fatal(err)
	}
	off := false
	for range 2 {
		if _, err := b.store.Disable(t.Context(), b.company, failing.UUID, subscribers.ReasonFailing); err != nil {
			t.Fatal(err)
		}
		if _, err := b.store.DisableGone(t.Context(), b.company, gone.UUID, gone.CallbackURL, b.clock.Now()); err != nil {
			t.Fatal(err)
		}
		if _, err := b.store.Update(t.Context(), b.company, manual.UUID, subscribers.Settings{Enabled: &off}); err != nil {
			t.Fatal(err)
		}
		b.clock.advance(time.Second)
	}
	got := b.notices(t, told)
	if len(got) != 2 || !strings.Contains(strings.Join(got, ""), failing.UUID.String()) || !strings.Contains(strings.Join(got, ""), gone.UUID.String()) {
		t.Errorf("told %q", got)
	}
}
