package layout_test

import (
	"errors"
	"testing"

	"spendhook/events"
	"spendhook/events/eventtest"
	"spendhook/events/layout"
)

func TestIDAndCompanyAreNotKeptTwice(t *testing.T) {
	t.Parallel()
	b := setup(t)
	e := newEvent("evt_1")
	b.Accept(t, e)
	ref := events.Ref{Company: company, ID: e.ID}
	body := eventtest.Body(t, e)
	value, err := b.Redis.Get(t.Context(), layout.EventKey(ref)).Result()
	if err != nil || len(value) > 32+len(body)-len(e.ID)-36 {
		t.Errorf("kept %q, %v", value, err)
	}
	if got, err := b.Reader.Get(t.Context(), ref); err != nil || string(got.Body) != body {
		t.Errorf("read %q, %v; want %q", got.Body, err, body)
	}
}

func TestDamagedEventsAreRefused(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, raw := range []string{
		"", "R", "X17000000000010000000a0000000001" + `"event":"A"}`, "R170000000000x0000000a0000000001{}",
		"R17000000000010000000a000000000xx{}", "R17000000000010000000a0000000001", "S17000000000010000000a0000000001]",
	} {
		ref := events.Ref{Company: company, ID: "evt_1"}
		b.Redis.Set(t.Context(), layout.EventKey(ref), raw, 0)
		if got, err := b.Reader.Get(t.Context(), ref); err == nil || errors.Is(err, events.ErrUnavailable) {
			t.Errorf("%q is read as %+v, %v", raw, got, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(`R17000000000010000000a0000000001"event":"PAYMENT_PAID","timestamp":"2026-01-01T00:00:00.000Z","metadata":{"a":[1]}}`)
	f.Add("R17000000000010000000a0000000001")
	f.Add("C17000000000010000000a0000000001da39a3ee5e6b4b0d3255bfef95601890afd80709")
	f.Add(`S17000000000010000000a000000000f"event":"PAYMENT_PAID","timestamp":"2026-01-01T00:00:00.000Z","metadata":{}}`)
	f.Add("M-1700000000010000000a0000000001{}")
	f.Fuzz(func(t *testing.T, raw string) {
		if s, err := layout.Parse(events.Ref{Company: company, ID: "evt_1"}, raw); err == nil && s.AcceptedAt.UnixMilli() < 0 {
			t.Errorf("Parse(%q) accepted at %v", raw, s.AcceptedAt)
		}
	})
}
