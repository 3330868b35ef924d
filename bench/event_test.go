package main

import (
	"net/http"
	"strconv"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
	"pgregory.net/rapid"

	"spendhook/events"
)

func TestEventIDReadsBack(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		id := eventID{
			run:  rapid.Int64Min(0).Draw(t, "run"),
			n:    rapid.Int64Min(0).Draw(t, "n"),
			sent: time.UnixMicro(rapid.Int64Range(0, 1<<52).Draw(t, "sent")),
		}
		if got, ok := parseEventID(id.String()); !ok || got != id {
			t.Fatalf("%q reads as %v, %v", id, got, ok)
		}
	})
}

func TestParseEventIDRefuses(t *testing.T) {
	t.Parallel()
	for _, bad := range []string{"", "bench", "bench-1-2", "bench-1-2-x", "bench-1--2", "demo-1-2-3", "bench--1-2-3"} {
		if id, ok := parseEventID(bad); ok {
			t.Errorf("%q reads as %v", bad, id)
		}
	}
}

// TestEventIsCanonical: the daemon stores and sends the event as it was emitted, in bodySize bytes.
func TestEventIsCanonical(t *testing.T) {
	t.Parallel()
	now := time.Now()
	sent := appendEvent([]byte("["), eventID{3, 12345, now}, company(255), eventType, now)[1:]
	e, err := events.ParseBody(sent)
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Validate(now, time.Hour, nil); err != nil {
		t.Errorf("the daemon would refuse it: %v", err)
	}
	body, err := e.Body()
	if err != nil || string(body) != string(sent) || len(body) != bodySize {
		t.Errorf("sent    %s\nbecomes %s (%d bytes, %v)", sent, body, len(body), err)
	}
}

// TestSign: the bare loop does the same work as a delivery.
func TestSign(t *testing.T) {
	t.Parallel()
	hook, err := standardwebhooks.NewWebhookRaw(bareKey)
	if err != nil {
		t.Fatal(err)
	}
	now, body := time.Now(), []byte(`{"a":1}`)
	h := http.Header{}
	h.Set("webhook-id", "x")
	h.Set("webhook-timestamp", strconv.FormatInt(now.Unix(), 10))
	h.Set("webhook-signature", sign(bareKey, "x", h.Get("webhook-timestamp"), body))
	if err := hook.Verify(body, h); err != nil {
		t.Error(err)
	}
}
