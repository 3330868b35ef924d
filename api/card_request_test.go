package api

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"spendhook/api/gen"
	"spendhook/internal/invalid"
)

// listedType is the type of the company's only card in the list.
func (h *spendHarness) listedType(id uuid.UUID) gen.CardType {
	h.t.Helper()
	for _, c := range as[[]gen.CardItem](h.call("GET", cardsPath+"?size=100", "").want(http.StatusOK)) {
		if c.UUID == id {
			return c.Type
		}
	}
	h.t.Fatalf("card %s is not listed", id)
	return ""
}

var cardInputTests = suite{
	"2.2 type and businessType": func(h *spendHarness) {
		for request, want := range map[string]gen.CardType{
			`"type":"VIRTUAL"`: "MASTER_VIRTUAL",
			`"type":"VIRTUAL","businessType":"WORLD_ELITE"`:  "MASTER_VIRTUAL",
			`"type":"PHYSICAL"`:                              "MASTER_CORPORATE",
			`"type":"PHYSICAL","businessType":"BUSINESS"`:    "MASTER_CORPORATE",
			`"type":"PHYSICAL","businessType":"WORLD_ELITE"`: "MASTER_WORLD_ELITE",
			`"type":"physical","businessType":"world_elite"`: "MASTER_WORLD_ELITE",
			`"type":"Virtual","businessType":"Business"`:     "MASTER_VIRTUAL",
			`"type":"PHYSICAL","businessType":null`:          "MASTER_CORPORATE",
		} {
			card := h.newCard(fmt.Sprintf(`{%s,"alias":"x","userUuid":%q}`, request, h.ann))
			if card.Type != want || h.listedType(card.UUID) != want {
				h.t.Errorf("%s: %s, listed as %s, want %s", request, card.Type, h.listedType(card.UUID), want)
			}
		}
	},
	"2.2 alias": func(h *spendHarness) {
		for _, alias := range []string{"x", "Ánn's \"card\" 💳", strings.Repeat("é", 255)} {
			if card := h.newCard(fmt.Sprintf(`{"type":"VIRTUAL","alias":%q,"userUuid":%q}`, alias, h.ann)); card.Name != alias {
				h.t.Errorf("%s became %s", alias, card.Name)
			}
		}
	},
	"2.2 userUuid": func(h *spendHarness) {
		h.unchanged("a wrong cardholder", func() {
			for _, user := range []uuid.UUID{h.bo, h.ivo, uuid.New()} {
				h.call("POST", cardsPath, strings.ReplaceAll(h.plainCard(), h.ann.String(), user.String())).want(http.StatusUnprocessableEntity, "USER_NOT_FOUND")
			}
		})
		if card := h.newCard(strings.ReplaceAll(h.plainCard(), h.ann.String(), strings.ToUpper(h.ann.String()))); card.HolderUUID != h.ann {
			h.t.Errorf("created %+v", card)
		}
	},
	"2.2 threshold": func(h *spendHarness) {
		for amount, want := range map[string]string{"1000": "1000", "0.01": "0.01", "12.30": "12.3", "1E2": "100", "null": "", "333.33": "333.33"} {
			card := h.newCard(strings.TrimSuffix(h.plainCard(), "}") + `,"threshold":` + amount + `}`)
			if string(card.Threshold) != want {
				h.t.Errorf("%s became %s", amount, card.Threshold)
			}
		}
	},
	"2.2 periodicity": func(h *spendHarness) {
		for _, value := range []string{"DAILY", "WEEKLY", "MONTHLY", "daily", "Weekly"} {
			for _, name := range []string{"periodicity", "periodicityType"} {
				card := h.newCard(strings.TrimSuffix(h.plainCard(), "}") + fmt.Sprintf(`,%q:%q}`, name, value))
				if string(card.Periodicity) != strings.ToUpper(value) {
					h.t.Errorf("%s %s became %s", name, value, card.Periodicity)
				}
			}
		}
	},
	"2.2 example of the single create in its own spelling": func(h *spendHarness) {
		card := h.newCard(fmt.Sprintf(`{"type":"virtual","alias":"Marketing","userUUID":%q,"threshold":500,"businessType":"BUSINESS","periodicityType":"MONTHLY"}`, h.ann))
		if card.Type != "MASTER_VIRTUAL" || card.HolderUUID != h.ann || card.Periodicity != "MONTHLY" || string(card.Threshold) != "500" {
			h.t.Errorf("created %+v", card)
		}
	},
	"contract both spellings with the same value": func(h *spendHarness) {
		card := h.newCard(fmt.Sprintf(`{"type":"VIRTUAL","alias":"x","userUuid":%q,"userUUID":%q,"periodicity":"DAILY","periodicityType":"daily"}`, h.ann, strings.ToUpper(h.ann.String())))
		if card.HolderUUID != h.ann || card.Periodicity != "DAILY" {
			h.t.Errorf("created %+v", card)
		}
	},
	"7 bad bodies of create": func(h *spendHarness) {
		good := strings.TrimSuffix(h.plainCard(), "}")
		user := fmt.Sprintf(`"userUuid":%q`, h.ann)
		h.unchanged("a bad body", func() {
			for body, want := range map[string]string{
				`{"alias":"x",` + user + `}`:                                                 "type REQUIRED",
				`{"type":null,"alias":"x",` + user + `}`:                                     "type REQUIRED",
				`{"type":"METAL","alias":"x",` + user + `}`:                                  "type INVALID",
				`{"type":"MASTER_VIRTUAL","alias":"x",` + user + `}`:                         "type INVALID",
				`{"type":1,"alias":"x",` + user + `}`:                                        "type INVALID",
				`{"type":"VIRTUAL",` + user + `}`:                                            "alias REQUIRED",
				`{"type":"VIRTUAL","alias":" ",` + user + `}`:                                "alias REQUIRED",
				`{"type":"VIRTUAL","alias":["x"],` + user + `}`:                              "alias INVALID",
				`{"type":"VIRTUAL","alias":"\u0000",` + user + `}`:                           "alias INVALID",
				`{"type":"VIRTUAL","alias":"` + strings.Repeat("x", 256) + `",` + user + `}`: "alias INVALID",
				`{"type":"VIRTUAL","alias":"x"}`:                                             "userUuid REQUIRED",
				`{"type":"VIRTUAL","alias":"x","userUuid":null}`:                             "userUuid REQUIRED",
				`{"type":"VIRTUAL","alias":"x","userUuid":"ann"}`:                            "userUuid INVALID",
				`{"type":"VIRTUAL","alias":"x","userUUID":7}`:                                "userUUID INVALID",
				good + `,"userUUID":"` + uuid.NewString() + `"}`:                             "userUUID INVALID",
				good + `,"threshold":"5"}`:                                                   "threshold INVALID",
				good + `,"threshold":true}`:                                                  "threshold INVALID",
				good + `,"threshold":0}`:                                                     "threshold INVALID",
				good + `,"threshold":-0.01}`:                                                 "threshold INVALID",
				good + `,"threshold":0.001}`:                                                 "threshold INVALID",
				good + `,"threshold":1e-999999999}`:                                          "threshold INVALID",
				good + `,"threshold":1e999999999}`:                                           "threshold INVALID",
				good + `,"threshold":1e99999999999}`:                                         "threshold INVALID",
				good + `,"threshold":` + strings.Repeat("9", 65) + `}`:                       "threshold INVALID",
				good + `,"businessType":"ELITE"}`:                                            "businessType INVALID",
				good + `,"businessType":""}`:                                                 "businessType INVALID",
				good + `,"businessType":{}}`:                                                 "businessType INVALID",
				good + `,"periodicity":"YEARLY"}`:                                            "periodicity INVALID",
				good + `,"periodicityType":"YEARLY"}`:                                        "periodicity INVALID",
				good + `,"periodicityType":""}`:                                              "periodicity INVALID",
				good + `,"periodicity":1}`:                                                   "periodicity INVALID",
				good + `,"periodicity":"DAILY","periodicityType":"WEEKLY"}`:                  "periodicityType INVALID",
				good + `,"companyUuid":1}`:                                                   "companyUuid INVALID",
				good + `,"name":"x"}`:                                                        "name UNKNOWN_FIELD",
				good + `,"Alias":"x"}`:                                                       "Alias UNKNOWN_FIELD",
				good + `,"alias":"x"}`:                                                       "alias DUPLICATE_FIELD",
			} {
				field, code, _ := strings.Cut(want, " ")
				h.call("POST", cardsPath, body).want(http.StatusBadRequest, "VALIDATION_ERROR").wantField(field, code)
			}
			for body, code := range map[string]string{"": "BODY_REQUIRED", "[]": "VALIDATION_ERROR", good: "MALFORMED_BODY", good + `}}`: "MALFORMED_BODY", "{\"alias\":\"\xff\"}": "MALFORMED_BODY"} {
				h.call("POST", cardsPath, body).want(http.StatusBadRequest, code)
			}
			h.call("POST", cardsPath, h.plainCard(), header("Content-Type", "text/plain")).want(http.StatusUnsupportedMediaType)
			h.call("POST", cardsPath, h.plainCard()+strings.Repeat(" ", bodyLimit)).want(http.StatusRequestEntityTooLarge)
			h.call("POST", cardsPath, h.plainCard(), bearer(h.mint(&h.company, "cards:read"))).want(http.StatusForbidden, "INSUFFICIENT_SCOPE")
		})
	},
	"7 bad bodies of threshold, lock and delete": func(h *spendHarness) {
		path := cardsPath + "/" + h.card(`"threshold":7`).String()
		h.unchanged("a bad body", func() {
			for body, want := range map[string]string{
				`{}`: "threshold REQUIRED", `{"threshold":null}`: "threshold REQUIRED", `{"threshold":"5"}`: "threshold INVALID",
				`{"threshold":0}`: "threshold INVALID", `{"threshold":-1}`: "threshold INVALID", `{"threshold":1.001}`: "threshold INVALID",
				`{"threshold":[]}`: "threshold INVALID", `{"threshold":5,"lock":true}`: "lock UNKNOWN_FIELD", `{"threshold":5,"threshold":6}`: "threshold DUPLICATE_FIELD",
			} {
				field, code, _ := strings.Cut(want, " ")
				h.call("PATCH", path+"/threshold", body).wantField(field, code)
			}
			for body, want := range map[string]string{
				`{}`: "lock REQUIRED", `{"lock":null}`: "lock INVALID", `{"lock":"true"}`: "lock INVALID", `{"lock":1}`: "lock INVALID", `{"locked":true}`: "locked UNKNOWN_FIELD",
			} {
				field, code, _ := strings.Cut(want, " ")
				h.call("PATCH", path+"/lock", body).wantField(field, code)
			}
			id, many := uuid.NewString(), strings.Repeat(`"`+uuid.NewString()+`",`, 100)
			for body, want := range map[string]string{
				`{}`: "uuids REQUIRED", `{"uuids":[]}`: "uuids REQUIRED", `{"uuids":null}`: "uuids INVALID", `{"uuids":"` + id + `"}`: "uuids INVALID",
				`{"uuids":["` + id + `","x"]}`: "/uuids/1 INVALID", `{"uuids":["` + id + `",null]}`: "/uuids/1 INVALID",
				`{"uuids":[` + many + `"` + id + `"]}`: "uuids TOO_MANY", `{"uuid":["` + id + `"]}`: "uuid UNKNOWN_FIELD",
			} {
				field, code, _ := strings.Cut(want, " ")
				h.call("POST", cardsPath+"/delete", body).wantField(field, code)
			}
			for _, target := range []string{path + "/threshold", path + "/lock"} {
				h.call("PATCH", target, "").want(http.StatusBadRequest, "BODY_REQUIRED")
				h.call("PATCH", target, "{").want(http.StatusBadRequest, "MALFORMED_BODY")
			}
		})
	},
	"8 card threshold": func(h *spendHarness) {
		path := cardsPath + "/" + h.card(`"threshold":7`).String()
		h.unchanged("a threshold above the limit", func() {
			for _, amount := range []string{"1000.01", "1001", "1e300", "99999999999999999999999.99", "1e10000"} {
				h.call("PATCH", path+"/threshold", `{"threshold":`+amount+`}`).want(http.StatusUnprocessableEntity, "THRESHOLD_EXCEEDS_LIMIT")
				h.call("POST", cardsPath, strings.TrimSuffix(h.plainCard(), "}")+`,"threshold":`+amount+`}`).want(http.StatusUnprocessableEntity, "THRESHOLD_EXCEEDS_LIMIT")
			}
		})
		h.call("POST", cardsPath, fmt.Sprintf(`{"type":"VIRTUAL","alias":"x","userUuid":%q,"threshold":0.5}`, h.bo), bearer(h.boltToken)).wantField("threshold", "INVALID")
	},
	"contract Idempotency-Key of the single create": func(h *spendHarness) {
		key := header(idempotencyHeader, "k")
		first := h.call("POST", cardsPath, h.plainCard(), key).want(http.StatusCreated)
		h.unchanged("the same request again", func() {
			again := h.call("POST", cardsPath, h.plainCard(), key).want(http.StatusCreated)
			if again.Body.String() != first.Body.String() || again.Header().Get("Location") != first.Header().Get("Location") {
				h.t.Errorf("%s, then %s", first.Body, again.Body)
			}
			h.call("POST", cardsPath, strings.Replace(h.plainCard(), "Travel", "Fuel", 1), key).want(http.StatusUnprocessableEntity, "IDEMPOTENCY_KEY_REUSED")
		})
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() { h.call("POST", cardsPath, h.plainCard(), header(idempotencyHeader, "at once")) })
		}
		wg.Wait()
		if got := h.call("GET", cardsPath, "").Header().Get("X-Total-Count"); got != "2" {
			h.t.Errorf("%s cards", got)
		}
	},
}

// TestLongNumbersAreNotParsed: a megabyte of digits is refused by its length.
func TestLongNumbersAreNotParsed(t *testing.T) {
	t.Parallel()
	for length, good := range map[int]bool{longestNumber: true, longestNumber + 1: false, 1 << 20: false} {
		var problems invalid.Error
		if got := number(&problems, "x", []byte(strings.Repeat("9", length))); (got != nil) != good {
			t.Errorf("%d digits: %v", length, problems)
		}
	}
}

// TestAmountsAreExact reads any decimal and writes the same number.
func TestAmountsAreExact(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringMatching(`-?(0|[1-9][0-9]{0,25})(\.[0-9]{0,24}[1-9])?`).Draw(t, "amount")
		var problems invalid.Error
		got := number(&problems, "x", []byte(text))
		if got == nil {
			t.Fatal(problems)
		}
		if text != "-0" && string(money(*got)) != text {
			t.Fatalf("%s became %s", text, money(*got))
		}
	})
}
