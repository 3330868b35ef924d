package subscribers_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"spendhook/events/eventtype"
	"spendhook/events/history"
	"spendhook/events/operational"
	"spendhook/internal/seal/sealtest"
	"spendhook/subscribers"
)

// notices lists the operational events of the company, as "type metadata".
func (b *bundle) notices(t *testing.T, store *history.Reader) []string {
	t.Helper()
	page, err := store.List(t.Context(), history.Filter{Company: &b.Company, Size: 100})
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
	b := setup(t, subscribers.StoreOptions{})
	told := history.New(history.Options{Client: b.Redis, Retention: 7 * 24 * time.Hour, Now: b.Now})
	b.Store = subscribers.NewStore(subscribers.StoreOptions{
		Client: b.Redis, Now: b.Now, Keyring: sealtest.Keyring(),
		Operational: operational.New(operational.Options{Client: b.Redis, Retention: 7 * 24 * time.Hour, Now: b.Now}),
	})
	return b, told
}

func TestScriptThatDisablesWritesItsNotice(t *testing.T) {
	t.Parallel()
	b, told := setupNotices(t)
	failing, gone, manual := b.Create(t, "https://example.com/a"), b.Create(t, "https://example.com/b"), b.Create(t, "https://example.com/c")
	listener := b.Settings("https://example.com/d")
	listener.Events = new([]string{eventtype.SubscriberDisabled})
	if _, err := b.Store.Create(t.Context(), b.Company, listener); err != nil {
		t.Fatal(err)
	}
	off := false
	for range 2 {
		if _, err := b.Store.DisableFailing(t.Context(), b.Company, failing.UUID); err != nil {
			t.Fatal(err)
		}
		if _, err := b.Store.DisableGone(t.Context(), b.Company, gone.UUID, gone.CallbackURL, b.Now()); err != nil {
			t.Fatal(err)
		}
		if _, err := b.Store.Update(t.Context(), b.Company, manual.UUID, subscribers.Settings{Enabled: &off}); err != nil {
			t.Fatal(err)
		}
		b.Advance(time.Second)
	}
	got := b.notices(t, told)
	if len(got) != 2 || !strings.Contains(strings.Join(got, ""), failing.UUID.String()) || !strings.Contains(strings.Join(got, ""), gone.UUID.String()) {
		t.Errorf("told %q", got)
	}
}
