package filter

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"spendhook/events"
)

func event(metadata string) *Event {
	return NewEvent(events.Event{
		ID: "pay-1", CompanyUUID: uuid.UUID{15: 1}, Type: "PAYMENT_PAID",
		Timestamp: time.Date(2026, 11, 22, 9, 0, 0, 0, time.UTC), Metadata: []byte(metadata),
	})
}

const payment = `{"amount":"100.10","fee":0.30,"count":3,"huge":1e9999999,"tags":["travel","eu"],"card":{"last4":"4711"},"none":null}`

func TestMatches(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		`event == "PAYMENT_PAID"`: true,
		`event == "PAYMENT_PAID" && decimal(metadata.amount) >= decimal("100")`: true,
		`decimal(metadata.amount) > decimal("100.10")`:                          false,
		`decimal(metadata.amount) == decimal("100.1")`:                          true,
		`decimal(metadata.fee) == decimal("0.3")`:                               true, // as a float it is not
		`metadata.fee < decimal("0.31") && decimal("0.29") < metadata.fee`:      true,
		`metadata.count == 3 && decimal(metadata.count) <= decimal("3.0")`:      true,
		`metadata.fee < 1`: true,
		`"eu" in metadata.tags && metadata.card.last4.endsWith("11")`:     true,
		`metadata.tags.exists(t, t.startsWith("tra"))`:                    true,
		`has(metadata.amount) && !has(metadata.refund)`:                   true,
		`timestamp >= timestamp("2026-11-22T00:00:00Z") && id == "pay-1"`: true,
		`companyUuid == "00000000-0000-0000-0000-000000000001"`:           true,
		`metadata.none == null`:                                           true,
		`has(metadata.refund) && decimal(metadata.refund) > decimal("0")`: false,
		`event in ["A", "B"]`:                                             false,
		`metadata.size() == 7`:                                            true,
	} {
		x, err := Compile(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if got, err := x.Matches(event(payment)); got != want || err != nil {
			t.Errorf("%s: %v, %v", text, got, err)
		}
	}
}

func TestCompileSaysWhereItIsWrong(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`event ==`:                           "line 1, column 9: Syntax error",
		"event == 'A' &&\n  evnt":            "line 2, column 3: undeclared reference to 'evnt'",
		`event`:                              "must be true or false, and is of the type string",
		`metadata.amount > decimal`:          "line 1",
		`event > 5`:                          "line 1, column 7: found no matching overload",
		`decimal("1") + 1 > 2`:               "line 1, column 14: found no matching overload",
		``:                                   "line 1",
		strings.Repeat(" ", 1995) + `1 == 1`: "must be at most 2000 characters",
	} {
		if _, err := Compile(text); err == nil || !strings.HasPrefix(err.Error(), want) || len(err.Error()) > 200 {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// An expression that fails on an event does not match it.
func TestMatchesFails(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`metadata.refund == 1`:                  "no such key: refund",
		`metadata.amount`:                       "neither true nor false",
		`decimal("1/3") > decimal("0")`:         "not a decimal number",
		`decimal("0x10") > decimal("0")`:        "not a decimal number",
		`decimal("1e401") > decimal("0")`:       "more than 400 digits",
		`decimal(metadata.huge) > decimal("0")`: "more than 400 digits",
		`decimal(metadata.tags) > decimal("0")`: "no such overload",
		`metadata.amount > 5`:                   "no such overload",
		`metadata.tags.all(a, metadata.tags.all(b, metadata.tags.all(c, metadata.tags.all(d, metadata.tags.all(e, metadata.tags.all(f, metadata.tags.all(g, metadata.tags.all(h, metadata.tags.all(i, metadata.tags.all(j, metadata.tags.all(k, metadata.tags.all(l, a != "x"))))))))))))`: "cost limit exceeded",
	} {
		x, err := Compile(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if got, err := x.Matches(event(payment)); got || err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60s: %v, %v", text, got, err)
		}
	}
	x, err := Compile(`event == "PAYMENT_PAID"`)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := x.Matches(event(`{"amount":`)); got || err == nil {
		t.Errorf("damaged metadata: %v, %v", got, err)
	}
}

// Filters of a company share what is decoded of an event.
func BenchmarkMatches(b *testing.B) {
	x, err := Compile(`event == "PAYMENT_PAID" && decimal(metadata.amount) >= decimal("100")`)
	if err != nil {
		b.Fatal(err)
	}
	e := event(payment)
	for b.Loop() {
		if ok, err := x.Matches(e); !ok || err != nil {
			b.Fatal(ok, err)
		}
	}
}
