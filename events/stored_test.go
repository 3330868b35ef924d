package events_test

import (
	"crypto/sha1"
	"errors"
	"testing"

	"spendhook/events"
)

func TestIDAndCompanyAreNotKeptTwice(t *testing.T) {
	t.Parallel()
	b := setup(t)
	e := newEvent("evt_1")
	b.accept(t, e)
	ref := events.Ref{Company: company, ID: e.ID}
	body := mustBody(t, e)
	value, err := b.redis.Get(t.Context(), events.EventKey(ref)).Result()
	if err != nil || len(value) > 32+len(body)-len(e.ID)-36 {
		t.Errorf("kept %q, %v", value, err)
	}
	if got, err := b.store.Get(t.Context(), ref); err != nil || string(got.Body) != body {
		t.Errorf("read %q, %v; want %q", got.Body, err, body)
	}
}

// Of a compacted event the digest tells whether the same comes again.
func TestACompactedEventIsKnown(t *testing.T) {
	t.Parallel()
	b := setup(t)
	e, other := newEvent("evt_1"), newEvent("evt_1")
	other.ErrorCode = "OTHER"
	whole := kept(events.Compacted, noon.UnixMilli(), 17, e, []byte(mustBody(t, e)))
	sum := sha1.Sum([]byte(whole[32:]))
	ref := events.Ref{Company: company, ID: e.ID}
	if err := b.redis.Set(t.Context(), events.EventKey(ref), whole[:32]+string(sum[:12]), 0).Err(); err != nil {
		t.Fatal(err)
	}
	before := b.dump(t)
	want(t, "sent again", b.accept(t, e, other, e), "DUPLICATE", "CONFLICT", "DUPLICATE")
	if after := b.dump(t); after != before {
		t.Errorf("Redis changed from\n%s\nto\n%s", before, after)
	}
	got, err := b.store.Get(t.Context(), ref)
	if err != nil || got.State != events.Compacted || got.Body != nil || got.Ref() != ref || got.Sequence != 17 || !got.AcceptedAt.Equal(noon) {
		t.Errorf("read %+v, %v", got, err)
	}
}

func TestDamagedEventsAreRefused(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, raw := range []string{
		"", "R", "X17000000000010000000a0000000001" + recordBody, "R170000000000x0000000a0000000001{}",
		"R17000000000010000000a000000000xx{}", "R17000000000010000000a0000000001", "S17000000000010000000a0000000001]",
	} {
		ref := events.Ref{Company: company, ID: "evt_1"}
		b.redis.Set(t.Context(), events.EventKey(ref), raw, 0)
		if got, err := b.store.Get(t.Context(), ref); err == nil || errors.Is(err, events.ErrUnavailable) {
			t.Errorf("%q is read as %+v, %v", raw, got, err)
		}
	}
}
