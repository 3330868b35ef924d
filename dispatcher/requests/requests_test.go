package requests

import (
	"testing"

	"github.com/google/uuid"

	"spendhook/events"
)

// Two companies may use one id, and an attribute has no control characters (CloudEvents 1.0.2).
func TestCloudEventAttributes(t *testing.T) {
	t.Parallel()
	of := func(company byte) cloudEvent {
		e := events.Stored{Event: events.Event{
			ID: "evt-1", CompanyUUID: uuid.UUID{15: company}, Type: "CARD_CREATION_REQUEST_ERROR", ErrorCode: "A\tB", ErrorMessage: "line one\nline two\x7f\u0085ä",
		}}
		return (&Payloads{event: &e, publicURL: "https://hooks.example.com"}).cloudEvent()
	}
	first, second := of(1), of(2)
	if first.Source == second.Source || first.Source != "https://hooks.example.com/companies/00000000-0000-0000-0000-000000000001" {
		t.Errorf("sources %s and %s", first.Source, second.Source)
	}
	if first.ErrorCode != "A B" || first.ErrorMessage != "line one line two  ä" {
		t.Errorf("attributes %q and %q", first.ErrorCode, first.ErrorMessage)
	}
}
