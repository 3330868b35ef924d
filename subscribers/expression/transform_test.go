package expression

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"spendhook/events"
)

func TestTransforms(t *testing.T) {
	t.Parallel()
	e := NewEvent(events.Event{
		ID: "pay-1", CompanyUUID: uuid.UUID{15: 1}, Type: "PAYMENT_PAID", ErrorCode: "E7", ErrorMessage: "no \"cover\"\n",
		Timestamp: time.Date(2026, 11, 22, 9, 0, 0, 5e6, time.UTC), Metadata: []byte(payment),
	})
	for text, want := range map[string]string{
		`{"text": "Paid " + metadata.amount + " of " + id}`:                `{"text":"Paid 100.10 of pay-1"}`,
		`{"b": 1, "a": [true, null, 0.5, "x"]}`:                            `{"a":[true,null,0.5,"x"],"b":1}`,
		`{"one": 0.5 + 0.5, "text": string(2.50 * 2)}`:                     `{"one":1,"text":"5"}`,
		`{"sum": metadata.fee + 0.1, "third": 1 / 3, "big": 1e21}`:         `{"big":1000000000000000000000,"sum":0.4,"third":0.3333333333333333333333333333333333}`,
		`{"double": double(metadata.fee), "small": double(1e-7)}`:          `{"double":0.3,"small":1e-07}`,
		`{"at": timestamp, "in": duration("90s")}`:                         `{"at":"2026-11-22T09:00:00.005Z","in":"90s"}`,
		`{"code": errorCode, "why": errorMessage}`:                         `{"code":"E7","why":"no \"cover\"\n"}`,
		`{"card": metadata.card, "none": metadata.none}`:                   `{"card":{"last4":"4711"},"none":null}`,
		`{"tags": metadata.tags.filter(t, t != "eu").map(t, {"name": t})}`: `{"tags":[{"name":"travel"}]}`,
		`metadata.card`: `{"last4":"4711"}`,
		`has(metadata.refund) ? {"refund": metadata.refund} : {"paid": id}`: `{"paid":"pay-1"}`,
		`{}`:                                    `{}`,
		`{"a": metadata.refund}`:                "error: no such key: refund",
		`metadata.tags`:                         "error: the result is not a map",
		`{"a": metadata.huge}`:                  "error: \"1e9999999\" is not a decimal number of at most 34 digits",
		`metadata`:                              "error: \"1e9999999\" is not a decimal number of at most 34 digits",
		`{"a": double("NaN")}`:                  "error: NaN is not a number in JSON",
		`{"a": double(metadata.fee)/double(0)}`: "error: +Inf is not a number in JSON",
	} {
		x, err := Compile(t.Context(), Transform, text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		for range 2 { // it is always the same
			body, err := x.Object(t.Context(), e)
			got := string(body)
			if err != nil {
				got = "error: " + err.Error()
			}
			if got != want {
				t.Errorf("%s: %s, want %s", text, got, want)
			}
		}
	}
	for _, text := range []string{`"text"`, `1 + 1`, `true`, `[id]`, `timestamp`} {
		if _, err := Compile(t.Context(), Transform, text); err == nil || !strings.Contains(err.Error(), "must be a map") {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// What a transform makes is bounded, also where its parts are shared and so take no memory of their own.
func TestKeys(t *testing.T) {
	t.Parallel()
	e := NewEvent(events.Event{ID: "pay-1", Type: "PAYMENT_PAID", Timestamp: time.Date(2026, 11, 22, 9, 0, 0, 5e6, time.UTC), Metadata: []byte(payment)})
	for text, want := range map[string]string{
		`metadata.amount`:            `"100.10"`,
		`decimal("100.10")`:          `100.1`,
		`100.100`:                    `100.1`,
		`event == "X"`:               `false`,
		`id + "/" + event`:           `"pay-1/PAYMENT_PAID"`,
		`timestamp`:                  `"2026-11-22T09:00:00.005Z"`,
		`metadata.card`:              "error: the result is not a string, number, boolean or time",
		`metadata.tags`:              "error: the result is not a string, number, boolean or time",
		`metadata.none`:              "error: the result is not a string, number, boolean or time",
		`metadata.refund`:            "error: no such key: refund",
		`metadata.card.last4`:        `"4711"`,
		`has(metadata.none) ? 1 : 2`: `1`,
	} {
		x, err := Compile(t.Context(), Key, text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		got, err := x.Text(t.Context(), e)
		if err != nil {
			got = "error: " + err.Error()
		}
		if got != want {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
	for _, text := range []string{`[id]`, `{"a": 1}`} {
		if _, err := Compile(t.Context(), Key, text); err == nil || !strings.Contains(err.Error(), "must be a string") {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestHostileTransformsAreBounded(t *testing.T) { // not parallel: it counts what is allocated
	large := event(`{"s":"` + strings.Repeat("x", 200<<10) + `","l":[` + strings.Repeat("1,", 100_000) + `1]}`)
	for text, want := range map[string]error{
		`{"a": metadata.s}`:               nil,
		`{"a": metadata.l}`:               nil,
		`{"a": [metadata.s, metadata.s]}`: errBody,
		`{"a": [[metadata.l, metadata.l]].map(a, [a, a]).map(a, [a, a]).map(a, [a, a]).map(a, [a, a])}`: errBody,
		`{"a": [["\n"]]` + strings.Repeat(".map(a, [a,a,a,a,a,a,a,a])", 7) + `}`:                        errBody,
		`{"a": [[]]` + strings.Repeat(".map(a, [a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a])", 7) + `}`:            errBody,
		`{"a": metadata.l.map(a, metadata.l)}`:                                                          errSteps,
	} {
		x, err := Compile(t.Context(), Transform, text)
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		var body []byte
		used := allocated(func() { body, err = x.Object(t.Context(), large) })
		if !errors.Is(err, want) || len(body) > maxBody || used > 16<<20 { // with what is decoded
			t.Errorf("%.60s: %d bytes, %d allocated: %v", text, len(body), used, err)
		}
	}
	x, err := Compile(t.Context(), Transform, `{"a": metadata.s}`)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := x.Object(t.Context(), event("{\"s\":\"\\ud800\"}")); err == nil {
		t.Error("half a character became JSON")
	}
}

// What docs/receiving.md shows is accepted, and makes a body.
func TestDocumentedTransforms(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "receiving.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(page), "| receiver | `transform` |\n|---|---|\n")
	table, _, _ = strings.Cut(table, "\n\n")
	rows := strings.Split(table, "\n")
	for _, row := range rows {
		text := strings.TrimSuffix(strings.SplitN(row, " | `", 2)[1], "` |")
		x, err := Compile(t.Context(), Transform, text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		body, err := x.Object(t.Context(), event(`{"amount":12.5,"currency":"EUR","lines":[{"sku":"a","gross":2.5,"tax":0.5}]}`))
		if err != nil || len(body) < 10 {
			t.Errorf("%s: %s, %v", text, body, err)
		}
	}
	if len(rows) < 5 {
		t.Errorf("only %d examples were found", len(rows))
	}
}
