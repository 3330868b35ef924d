package requests

import (
	"errors"
	"log/slog"
	"reflect"
	"slices"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"spendhook/dispatcher/webhook"
	"spendhook/events"
	"spendhook/subscribers"
)

// Two companies may use one id, and an attribute has no control characters (CloudEvents 1.0.2).
func TestCloudEventAttributes(t *testing.T) {
	t.Parallel()
	of := func(company byte) cloudEvent {
		e := events.Stored{Event: events.Event{
			ID: "evt-1", CompanyUUID: uuid.UUID{15: company}, Type: "CARD_CREATION_REQUEST_ERROR", ErrorCode: "A\tB", ErrorMessage: "line one\nline two\x7f\u0085ä\ufdd0\U0001fffe",
		}}
		return (&Payloads{event: &e, publicURL: "https://hooks.example.com"}).cloudEvent()
	}
	first, second := of(1), of(2)
	if first.Source == second.Source || first.Source != "https://hooks.example.com/companies/00000000-0000-0000-0000-000000000001" {
		t.Errorf("sources %s and %s", first.Source, second.Source)
	}
	if first.ErrorCode != "A B" || first.ErrorMessage != "line one line two  ä  " {
		t.Errorf("attributes %q and %q", first.ErrorCode, first.ErrorMessage)
	}
	if want := `{"errorCode":"A\tB","errorMessage":"line one\nline two\u007f\u0085ä\ufdd0\ud83f\udffe"}`; !sameJSON(t, first.Data, want) {
		t.Errorf("data %s, want %s", first.Data, want)
	}
}

// The data are the metadata, byte for byte, also beside the texts of an error.
func TestCloudEventData(t *testing.T) {
	t.Parallel()
	for metadata, want := range map[string]string{
		"":                               `{"errorMessage":"lost"}`,
		`{"a":1.50,"z":[{"y":1,"x":2}]}`: `{"a":1.50,"errorMessage":"lost","z":[{"y":1,"x":2}]}`,
		`{"errorMessage":7}`:             `{"errorMessage":7}`,
	} {
		e := events.Stored{Event: events.Event{Metadata: []byte(metadata), ErrorMessage: "lost"}}
		if got := (&Payloads{event: &e}).cloudEventData(); string(got) != want {
			t.Errorf("%s: %s, want %s", metadata, got, want)
		}
		if e.ErrorMessage = ""; metadata != "" {
			want = metadata
			if got := (&Payloads{event: &e}).cloudEventData(); string(got) != want {
				t.Errorf("without an error: %s, want %s", got, want)
			}
		}
	}
}

func sameJSON(t *testing.T, got []byte, want string) bool {
	t.Helper()
	var a, b any
	if err := errors.Join(json.Unmarshal(got, &a), json.Unmarshal([]byte(want), &b)); err != nil {
		t.Fatal(err)
	}
	return reflect.DeepEqual(a, b)
}

func TestLockedSigningKeysAreCounted(t *testing.T) {
	t.Parallel()
	m := New(Options{Logger: slog.New(slog.DiscardHandler)})
	sub := subscribers.Subscriber{
		CallbackURL: "https://hooks.example.com/", Secrets: []subscribers.SigningSecret{{Key: "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"}},
	}
	if m.Target(&sub).Locked != nil || testutil.ToFloat64(m.locked) != 0 {
		t.Errorf("without keys of the company: %v", m.Target(&sub).Locked)
	}
	signed := sub
	signed.Signatures = []string{subscribers.SignatureHTTPMessage}
	for range 2 { // it is read once
		if m.Target(&signed).Locked == nil || testutil.ToFloat64(m.locked) != 1 {
			t.Errorf("%v, %v counted", m.Target(&signed).Locked, testutil.ToFloat64(m.locked))
		}
	}
}

// Receivers of CloudEvents that have agreed to deliveries from this system are told that they come from it.
func TestDeliveriesNameTheOrigin(t *testing.T) {
	t.Parallel()
	m := New(Options{Logger: slog.New(slog.DiscardHandler), PublicURL: "https://hooks.example.com:8443/"})
	verified := &subscribers.Verification{State: subscribers.StateVerified}
	for _, tt := range []struct {
		sub  subscribers.Subscriber
		want []string
	}{
		{subscribers.Subscriber{Format: subscribers.FormatCloudEvents, Verification: verified}, []string{"hooks.example.com"}},
		{subscribers.Subscriber{Format: subscribers.FormatStandard, Verification: verified}, nil},
		{subscribers.Subscriber{Format: subscribers.FormatCloudEvents}, nil},
	} {
		if got := map[string][]string(m.Target(&tt.sub).Request("id", 0, Payload{}).Headers)[webhook.HeaderOrigin]; !slices.Equal(got, tt.want) {
			t.Errorf("%q, want %q", got, tt.want)
		}
	}
}
