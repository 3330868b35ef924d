package events_test

import (
	"fmt"
	"testing"

	"spendhook/events"
)

// The id and the company are in the key, and an older version kept them twice.
func TestEventsKeptWholeAreKnown(t *testing.T) {
	t.Parallel()
	b := setup(t)
	e := newEvent("evt_1")
	body, err := e.Body()
	if err != nil {
		t.Fatal(err)
	}
	ref := events.Ref{Company: company, ID: e.ID}
	whole := fmt.Sprintf("%013d%08x%s", noon.UnixMilli(), 1, body)
	if err := b.redis.Set(t.Context(), events.EventKey(ref), whole, 0).Err(); err != nil {
		t.Fatal(err)
	}
	if got, err := b.store.Get(t.Context(), ref); err != nil || string(got.Body) != string(body) {
		t.Errorf("read %q, %v; want %q", got.Body, err, body)
	}
	other := newEvent("evt_1")
	other.Type = "ANOTHER"
	for i, want := range b.accept(t, e, other) {
		if want != []string{"DUPLICATE", "CONFLICT"}[i] {
			t.Errorf("sent again, number %d is %s", i, want)
		}
	}
}

func TestIDAndCompanyAreNotKeptTwice(t *testing.T) {
	t.Parallel()
	b := setup(t)
	e := newEvent("evt_1")
	body, err := e.Body()
	if err != nil {
		t.Fatal(err)
	}
	b.accept(t, e)
	ref := events.Ref{Company: company, ID: e.ID}
	kept, err := b.redis.Get(t.Context(), events.EventKey(ref)).Result()
	if err != nil || len(kept) > len(body)-len(e.ID)-36 {
		t.Errorf("kept %q, %v", kept, err)
	}
	if got, err := b.store.Get(t.Context(), ref); err != nil || string(got.Body) != string(body) {
		t.Errorf("read %q, %v; want %q", got.Body, err, body)
	}
}
