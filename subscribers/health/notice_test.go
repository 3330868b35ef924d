package health_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"spendhook/events/eventtype"
	"spendhook/events/history"
	"spendhook/subscribers/health"
)

// told lists the operational events of the company, as "type metadata".
func (b *bundle) told(t *testing.T) []string {
	t.Helper()
	reader := history.New(history.Options{Client: b.Redis, Retention: 7 * 24 * time.Hour, Now: b.Now})
	page, err := reader.List(t.Context(), history.Filter{Company: &b.Company, Size: 100})
	noErr(t, err)
	var out []string
	for _, e := range page.Items {
		out = append(out, e.Type+" "+string(e.Metadata))
	}
	slices.Sort(out)
	return out
}

func TestScriptThatChangesHealthWritesItsNotice(t *testing.T) {
	t.Parallel()
	b := setup(t)
	sub := b.Create(t, "https://example.com/a")
	listener := b.Settings("https://example.com/b")
	listener.Events = new([]string{eventtype.SubscriberFailing, eventtype.SubscriberRecovered})
	if _, err := b.Store.Create(t.Context(), b.Company, listener); err != nil {
		t.Fatal(err)
	}
	record := func(success bool, failures int) {
		t.Helper()
		s := health.Sample{Company: b.Company, Subscriber: sub.UUID, Success: success, TrailingFailures: failures, At: b.Now()}
		if got := b.healths.Record(t.Context(), []health.Sample{s}, health.Policy{}); got[0].Err != nil {
			t.Fatal(got[0].Err)
		}
		b.Advance(time.Second)
	}
	record(false, 1)
	record(false, 3)
	record(false, 1) // it is failing already
	record(true, 0)
	record(true, 0)
	who := `"subscriberUuid":"` + sub.UUID.String() + `"}`
	company := `{"companyUuid":"` + b.Company.String() + `",`
	want := []string{
		"SUBSCRIBER_FAILING " + company + `"consecutiveFailures":4,"failingSince":"2026-03-01T12:00:00.000Z",` + who,
		"SUBSCRIBER_RECOVERED " + company + who,
	}
	if got := b.told(t); !slices.Equal(got, want) {
		t.Errorf("told\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	record(false, 4)
	record(true, 0)
	if got := b.told(t); len(got) != 4 {
		t.Errorf("the second run has no notice: %q", got)
	}
}
