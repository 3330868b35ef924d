package subscribers_test

import (
	"strings"
	"testing"

	"spendhook/subscribers"
	"spendhook/subscribers/layout"
)

// This release keeps the fields that a newer release has added to a subscriber.
func TestUnknownFieldsOfASubscriberStay(t *testing.T) {
	t.Parallel()
	b := setup(t, subscribers.StoreOptions{MaxPerCompany: 10})
	sub := b.Create(t, "https://example.com/hook")
	key, field := layout.CompanyKey(b.Company), sub.UUID.String()
	raw := b.Redis.HGet(t.Context(), key, field).Val()
	raw = strings.TrimSuffix(strings.Replace(raw, `"secrets":[{`, `"secrets":[{"kind":"next",`, 1), "}") + `,"ordered":true}`
	b.Redis.HSet(t.Context(), key, field, raw)
	name := "another"
	if _, err := b.Store.Update(t.Context(), b.Company, sub.UUID, subscribers.Settings{Name: &name}); err != nil {
		t.Fatal(err)
	}
	raw = b.Redis.HGet(t.Context(), key, field).Val()
	for _, want := range []string{`"another"`, `"kind":"next"`, `"ordered":true`} {
		if !strings.Contains(raw, want) {
			t.Errorf("%s has no %s", raw, want)
		}
	}
}
