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

// told lists the operational events of the company, as "type metadata".
func (b *bundle) told(t *testing.T, store *history.Reader) []string {
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

func setupTelling(t *testing.T) (*bundle, *history.Reader) {
	t.Helper()
	b := &bundle{client: redistest.New(t), clock: newClock(), company: uuid.New()}
	told := history.New(history.Options{Client: b.client, Retention: 7 * 24 * time.Hour, Now: b.clock.Now})
	b.store = subscribers.NewStore(subscribers.StoreOptions{
		Client: b.client, Now: b.clock.Now, Keyring: sealtest.Keyring(),
		Operational: operational.New(operational.Options{Client: b.client, Retention: 7 * 24 * time.Hour, Now: b.clock.Now}),
	})
	return b, told
}

func TestHealthIsToldByTheScriptThatChangesIt(t *testing.T) {
	t.Parallel()
	b, told := setupTelling(t)
	sub := b.create(t, "https://example.com/a")
	listener := b.input("https://example.com/b")
	listener.Events = new([]string{eventtype.SubscriberFailing, eventtype.SubscriberRecovered})
	if _, err := b.store.Create(t.Context(), b.company, listener); err != nil {
		t.Fatal(err)
	}
	record := func(success bool, failures int) {
		t.Helper()
		s := subscribers.Sample{Company: b.company, Subscriber: sub.UUID, Success: success, TrailingFailures: failures, At: b.clock.Now()}
		if got := b.store.RecordHealth(t.Context(), []subscribers.Sample{s}, subscribers.HealthPolicy{}); got[0].Err != nil {
			t.Fatal(got[0].Err)
		}
		b.clock.advance(time.Second)
	}
	record(false, 1)
	record(false, 3)
	record(false, 1) // it is failing already
	record(true, 0)
	record(true, 0)
	who := `"subscriberUuid":"` + sub.UUID.String() + `"}`
	company := `{"companyUuid":"` + b.company.String() + `",`
	want := []string{
		"SUBSCRIBER_FAILING " + company + `"consecutiveFailures":4,"failingSince":"2026-03-01T12:00:00.000Z",` + who,
		"SUBSCRIBER_RECOVERED " + company + who,
	}
	if got := b.told(t, told); !slices.Equal(got, want) {
		t.Errorf("told\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	record(false, 4)
	record(true, 0)
	if got := b.told(t, told); len(got) != 4 {
		t.Errorf("the second run is not told: %q", got)
	}
}

func TestDisablingIsToldByTheScriptThatDisables(t *testing.T) {
	t.Parallel()
	b, told := setupTelling(t)
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
	got := b.told(t, told)
	if len(got) != 2 || !strings.Contains(strings.Join(got, ""), failing.UUID.String()) || !strings.Contains(strings.Join(got, ""), gone.UUID.String()) {
		t.Errorf("told %q", got)
	}
}
