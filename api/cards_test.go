package api

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"

	"spendhook/api/gen"

	"spendhook/storage/cards"
)

const cardsPath = "/api/v3/cards"

func (h *spendHarness) newCard(body string) gen.CardWithLimits {
	h.t.Helper()
	return as[gen.CardWithLimits](h.call("POST", cardsPath, body).want(http.StatusCreated))
}

func (h *spendHarness) plainCard() string {
	return fmt.Sprintf(`{"type":"VIRTUAL","alias":"Travel","userUuid":"%s"}`, h.ann)
}

var cardTests = suite{
	"2.1 item of the card list": func(h *spendHarness) {
		id := h.card(`"lastFour":"0042","type":"VISA_PHYSICAL","status":"BLOCKED","name":"Fuel","threshold":10`)
		list := elements(h.call("GET", cardsPath, ""))
		want := fmt.Sprintf(`{"holderUuid":%q,"lastFour":"0042","name":"Fuel","status":"BLOCKED","type":"VISA_PHYSICAL","uuid":%q}`, h.ann, id)
		if len(list) != 1 || string(list[0]) != want {
			h.t.Errorf("got %s, want %s", list, want)
		}
	},
	"2.1 card read by uuid": func(h *spendHarness) {
		id := h.card(`"threshold":10,"issuedAt":"2026-07-01T12:00:00.5+02:00"`)
		want := fmt.Sprintf(`{"issuedAt":"2026-07-01T10:00:00.500Z","lastFour":"1234","name":"Card","status":"ACTIVE","type":"MASTER_VIRTUAL","uuid":%q}`, id)
		for _, text := range []string{id.String(), strings.ToUpper(id.String())} {
			if got := h.call("GET", cardsPath+"/"+text, "").want(http.StatusOK).Body.String(); got != want {
				h.t.Errorf("got %s, want %s", got, want)
			}
		}
	},
	"2.1 values of the type filter": func(h *spendHarness) {
		h.eachFilterValue("type", "MASTER_WORLD_ELITE", "MASTER_CORPORATE", "MASTER_VIRTUAL", "VISA_PHYSICAL", "VISA_VIRTUAL")
	},
	"2.1 values of the status filter": func(h *spendHarness) {
		h.eachFilterValue("status", "ACTIVE", "BLOCKED", "CANCELLED", "EXPIRED")
	},
	"2.1 values of the periodicity filter": func(h *spendHarness) {
		h.eachFilterValue("periodicity", "DAILY", "WEEKLY", "MONTHLY")
	},
	"3.1 rule 1 threshold changes and locks only on active cards": func(h *spendHarness) {
		for _, status := range []string{"BLOCKED", "CANCELLED", "EXPIRED"} {
			path := cardsPath + "/" + h.card(`"status":"`+status+`"`).String()
			h.unchanged(status, func() {
				h.call("PATCH", path+"/threshold", `{"threshold":5}`).want(http.StatusUnprocessableEntity, "CARD_NOT_ACTIVE")
				if status == "BLOCKED" {
					return
				}
				h.call("PATCH", path+"/lock", `{"lock":true}`).want(http.StatusUnprocessableEntity, "CARD_NOT_ACTIVE")
				h.call("PATCH", path+"/lock", `{"lock":false}`).want(http.StatusUnprocessableEntity, "CARD_NOT_ACTIVE")
			})
		}
	},
	"3.1 rule 2 locking and unlocking": func(h *spendHarness) {
		path := cardsPath + "/" + h.card(`"threshold":10`).String()
		for _, step := range []struct {
			lock bool
			want gen.CardStatus
		}{{true, "BLOCKED"}, {true, "BLOCKED"}, {false, "ACTIVE"}, {false, "ACTIVE"}} {
			got := as[gen.CardWithLimits](h.call("PATCH", path+"/lock", fmt.Sprintf(`{"lock":%v}`, step.lock)).want(http.StatusOK))
			read := as[gen.Card](h.call("GET", path, "").want(http.StatusOK))
			if got.Status != step.want || read.Status != step.want || string(got.Threshold) != "10" {
				h.t.Errorf("lock %v: %+v, read %+v", step.lock, got, read)
			}
		}
	},
	"3.1 rule 3 a deleted card cannot be recovered": func(h *spendHarness) {
		for _, status := range []string{"ACTIVE", "BLOCKED", "EXPIRED", "CANCELLED"} {
			path := cardsPath + "/" + h.card(`"status":"`+status+`"`).String()
			for range 2 {
				if body := h.call("DELETE", path, "").want(http.StatusNoContent).Body.String(); body != "" {
					h.t.Errorf("a body %q", body)
				}
			}
			h.call("PATCH", path+"/lock", `{"lock":false}`).want(http.StatusUnprocessableEntity, "CARD_NOT_ACTIVE")
			if got := as[gen.Card](h.call("GET", path, "").want(http.StatusOK)); got.Status != gen.CardStatusCANCELLED {
				h.t.Errorf("%s, then %s", status, got.Status)
			}
		}
	},
	"4.1 find all cards": func(h *spendHarness) {
		var want []uuid.UUID
		for i := range 5 {
			want = append(want, h.card(fmt.Sprintf(`"issuedAt":"2026-07-0%dT10:00:00Z"`, 9-i)))
		}
		h.loadCard(uuid.New(), h.bolt, h.bo, "")
		if got := uuidsOf(h.t, elements(h.call("GET", cardsPath, ""))); !slices.Equal(got, want) {
			h.t.Errorf("got %v, want %v", got, want)
		}
		h.walk(cardsPath+"?size=2", want)
	},
	"4.1 find card by uuid": func(h *spendHarness) {
		h.call("GET", cardsPath+"/"+uuid.NewString(), "").want(http.StatusNotFound, "NOT_FOUND")
		h.call("GET", cardsPath+"/4711", "").wantField("uuid", "INVALID")
	},
	"4.1 single create": func(h *spendHarness) {
		a := h.call("POST", cardsPath, h.plainCard()).want(http.StatusCreated)
		card := as[gen.CardWithLimits](a)
		if a.Header().Get("Location") != cardsPath+"/"+card.UUID.String() {
			h.t.Errorf("Location %q", a.Header().Get("Location"))
		}
		if got := members(h.t, a.Body.Bytes()); got != "holderUuid issuedAt lastFour name status type uuid" {
			h.t.Errorf("created with %s", got)
		}
		if card.Name != "Travel" || card.Status != "ACTIVE" || card.HolderUUID != h.ann || card.Type != "MASTER_VIRTUAL" {
			h.t.Errorf("created %+v", card)
		}
		h.call("GET", a.Header().Get("Location"), "").want(http.StatusOK)
	},
	"4.1 update threshold": func(h *spendHarness) {
		path := cardsPath + "/" + h.card(``).String()
		for amount, want := range map[string]string{"0.01": "0.01", "999.99": "999.99", "1000.00": "1000", "1e3": "1000", "1.0e-1": "0.1"} {
			got := as[gen.CardWithLimits](h.call("PATCH", path+"/threshold", `{"threshold":`+amount+`}`).want(http.StatusOK))
			if string(got.Threshold) != want {
				h.t.Errorf("%s became %s", amount, got.Threshold)
			}
		}
	},
	"4.1 lock and unlock": func(h *spendHarness) {
		path := cardsPath + "/" + h.card(``).String() + "/lock"
		if got := as[gen.CardWithLimits](h.call("PATCH", path, `{"lock":true}`).want(http.StatusOK)); got.Status != "BLOCKED" {
			h.t.Errorf("locked %+v", got)
		}
	},
	"4.1 delete one card": func(h *spendHarness) {
		h.call("DELETE", cardsPath+"/"+uuid.NewString(), "").want(http.StatusNotFound, "NOT_FOUND")
		id := h.card(``)
		h.call("DELETE", cardsPath+"/"+id.String(), "").want(http.StatusNoContent)
	},
	"4.1 delete several cards": func(h *spendHarness) {
		active, cancelled, none, theirs := h.card(``), h.card(`"status":"CANCELLED"`), uuid.New(), uuid.New()
		h.loadCard(theirs, h.bolt, h.bo, "")
		body := fmt.Sprintf(`{"uuids":[%q,%q,%q,%q,%q]}`, active, none, cancelled, theirs, strings.ToUpper(active.String()))
		for range 2 {
			got := as[gen.CardsCancelled](h.call("POST", cardsPath+"/delete", body).want(http.StatusOK)).Results
			want := []gen.CardCancelResult{{UUID: active, Status: "CANCELLED"}, {UUID: none, Status: "NOT_FOUND"}, {UUID: cancelled, Status: "CANCELLED"}, {UUID: theirs, Status: "NOT_FOUND"}, {UUID: active, Status: "CANCELLED"}}
			if !slices.Equal(got, want) {
				h.t.Errorf("got %+v, want %+v", got, want)
			}
		}
		if card, err := h.store.Card(h.t.Context(), h.bolt, theirs); err != nil || card.Status != cards.Active {
			h.t.Errorf("another company's card: %+v, %v", card, err)
		}
	},
	"4.1 query page and size": func(h *spendHarness) {
		for range 3 {
			h.card(``)
		}
		for query, want := range map[string]int{"?size=2": 2, "?page=1&size=2": 1, "?page=2&size=2": 0, "?size=1000000000": 3, "?page=2147483647": 0} {
			a := h.call("GET", cardsPath+query, "")
			if got := len(elements(a)); got != want || a.Header().Get("X-Total-Count") != "3" {
				h.t.Errorf("%s: %d of %s", query, got, a.Header().Get("X-Total-Count"))
			}
		}
		if got := h.call("GET", cardsPath+"?size=1000000000", "").Header().Get("Link"); got != `</api/v3/cards?page=0&size=100>; rel="first", </api/v3/cards?page=0&size=100>; rel="last"` {
			h.t.Errorf("the size that was used is not in %s", got)
		}
		if got := h.call("GET", cardsPath+"?page=9&size=2&status=ACTIVE", "").Header().Get("Link"); got != `</api/v3/cards?page=0&size=2&status=ACTIVE>; rel="first", </api/v3/cards?page=1&size=2&status=ACTIVE>; rel="prev", </api/v3/cards?page=1&size=2&status=ACTIVE>; rel="last"` {
			h.t.Errorf("behind the end: %s", got)
		}
		long := "&username=" + strings.Repeat("%F0%9F%98%80", 255) // 3 KB
		if got := h.call("GET", cardsPath+"?page=1&size=1"+long, "").Header().Values("Link"); len(got) > 0 {
			h.t.Errorf("a header of three long links: %.100s", got)
		}
	},
	"4.1 query userUuid, username and userErpId": func(h *spendHarness) {
		anns, ivos := h.card(``), uuid.New()
		h.loadCard(ivos, h.company, h.ivo, "")
		h.loadCard(uuid.New(), h.bolt, h.bo, "")
		for query, want := range map[string]uuid.UUID{
			"?userUuid=" + h.ann.String(): anns, "?userUuid=" + strings.ToUpper(h.ivo.String()): ivos,
			"?username=ann": anns, "?username=ivo": ivos, "?userErpId=ERP-1": anns, "?userErpId=ERP-2": ivos,
			"?username=ivo&userErpId=ERP-2&status=ACTIVE": ivos,
		} {
			if got := uuidsOf(h.t, elements(h.call("GET", cardsPath+query, ""))); !slices.Equal(got, []uuid.UUID{want}) {
				h.t.Errorf("%s: %v, want %v", query, got, want)
			}
		}
		for _, query := range []string{"?username=an", "?username=Ann", "?userErpId=ERP", "?userUuid=" + h.bo.String(), "?username=bo", "?username=ann&userErpId=ERP-2"} {
			if got := elements(h.call("GET", cardsPath+query, "")); len(got) != 0 {
				h.t.Errorf("%s: %s", query, got)
			}
		}
		h.call("GET", cardsPath+"?userUuid="+h.ann.String()+"&userErpId=ERP-1", "").want(http.StatusBadRequest, "VALIDATION_ERROR").wantField("userErpId", "CONFLICT")
	},
	"4.1 bad queries": func(h *spendHarness) {
		for query, field := range map[string]string{
			"?page=-1": "page", "?page=x": "page", "?page=2147483648": "page", "?page=1e1": "page", "?size=0": "size", "?size=-1": "size",
			"?size=1.5": "size", "?userUuid=x": "userUuid", "?userUuid=": "userUuid",
			"?status=LOST": "status", "?status=": "status", "?type=VIRTUAL": "type", "?type=": "type",
			"?periodicity=YEARLY": "periodicity", "?periodicity=": "periodicity", "?username=": "username", "?username=%00": "username",
			"?username=" + strings.Repeat("x", 256): "username", "?userErpId=": "userErpId", "?status=ACTIVE&status=BLOCKED": "status",
			"?companyUuid=x": "companyUuid",
		} {
			h.call("GET", cardsPath+query, "").wantField(field, "INVALID")
		}
		h.call("GET", cardsPath+"?userUUID="+h.ann.String(), "").wantField("userUUID", "UNKNOWN_PARAMETER")
	},
	"contract company scope": func(h *spendHarness) {
		mine, theirs := h.card(``), uuid.New()
		h.loadCard(theirs, h.bolt, h.bo, "")
		h.unchanged("another company", func() {
			path := cardsPath + "/" + theirs.String()
			h.call("GET", path, "").want(http.StatusNotFound, "NOT_FOUND")
			h.call("PATCH", path+"/threshold", `{"threshold":5}`).want(http.StatusNotFound, "NOT_FOUND")
			h.call("PATCH", path+"/lock", `{"lock":true}`).want(http.StatusNotFound, "NOT_FOUND")
			h.call("DELETE", path, "").want(http.StatusNotFound, "NOT_FOUND")
			other := `,"companyUuid":"` + h.bolt.String() + `"}`
			h.call("PATCH", path+"/threshold", `{"threshold":5`+other).want(http.StatusForbidden, "COMPANY_MISMATCH")
			h.call("PATCH", path+"/lock", `{"lock":true`+other).want(http.StatusForbidden, "COMPANY_MISMATCH")
			h.call("POST", cardsPath+"/delete", `{"uuids":["`+theirs.String()+`"]`+other).want(http.StatusForbidden, "COMPANY_MISMATCH")
			h.call("POST", cardsPath, strings.TrimSuffix(h.plainCard(), "}")+other).want(http.StatusForbidden, "COMPANY_MISMATCH")
			h.call("GET", cardsPath+"?companyUuid="+h.bolt.String(), "").want(http.StatusForbidden, "COMPANY_MISMATCH")
		})
		free := bearer(h.mint(nil, allScopes+" platform"))
		h.unchanged("no company", func() {
			h.call("GET", cardsPath+"/"+mine.String(), "", free).wantField("companyUuid", "REQUIRED")
			h.call("POST", cardsPath, h.plainCard(), free).wantField("companyUuid", "REQUIRED")
			h.call("DELETE", cardsPath+"/"+mine.String(), "", free).wantField("companyUuid", "REQUIRED")
			h.call("GET", cardsPath, "", bearer(h.mint(nil, allScopes))).want(http.StatusForbidden, "INSUFFICIENT_SCOPE")
		})
		for user, card := range map[uuid.UUID]uuid.UUID{h.ann: mine, h.bo: theirs} {
			if got := uuidsOf(h.t, elements(h.call("GET", cardsPath+"?userUuid="+user.String(), "", free))); !slices.Equal(got, []uuid.UUID{card}) {
				h.t.Errorf("the platform sees %v, want %v", got, card)
			}
		}
		h.call("DELETE", cardsPath+"/"+mine.String()+"?companyUuid="+h.company.String(), "", free).want(http.StatusNoContent)
		h.call("POST", cardsPath, strings.TrimSuffix(h.plainCard(), "}")+`,"companyUuid":"`+h.company.String()+`"}`, free).want(http.StatusCreated)
	},
	"concurrent threshold changes, locks and deletes": func(h *spendHarness) {
		id := h.card(``)
		path := cardsPath + "/" + id.String()
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() {
				switch i % 4 {
				case 0:
					h.call("PATCH", path+"/threshold", fmt.Sprintf(`{"threshold":%d}`, i+1))
				case 1:
					h.call("PATCH", path+"/lock", `{"lock":true}`)
				case 2:
					h.call("PATCH", path+"/lock", `{"lock":false}`)
				case 3:
					h.call("DELETE", path, "")
				}
			})
		}
		wg.Wait()
		if got := as[gen.Card](h.call("GET", path, "")); got.Status != gen.CardStatusCANCELLED {
			h.t.Errorf("after a delete: %+v", got)
		}
	},
}

// eachFilterValue lists, for each value of a filter, the one card that has it.
func (h *spendHarness) eachFilterValue(name string, values ...string) {
	h.t.Helper()
	cards := map[string]uuid.UUID{}
	for _, value := range values {
		cards[value] = h.card(fmt.Sprintf(`%q:%q`, name, value))
	}
	for value, id := range cards {
		for _, spelled := range []string{value, strings.ToLower(value)} {
			if got := uuidsOf(h.t, elements(h.call("GET", cardsPath+"?"+name+"="+spelled, ""))); !slices.Equal(got, []uuid.UUID{id}) {
				h.t.Errorf("%s=%s: %v, want %v", name, spelled, got, id)
			}
		}
	}
}

// walk follows the next links of an array from target on, and the prev links back.
func (h *spendHarness) walk(target string, want []uuid.UUID) {
	h.t.Helper()
	var got []uuid.UUID
	var last answer
	pages := 0
	for ; target != ""; pages++ {
		a := h.call("GET", target, "")
		last = a
		got = append(got, uuidsOf(h.t, elements(a))...)
		if n := a.Header().Get("X-Total-Count"); n != strconv.Itoa(len(want)) {
			h.t.Errorf("X-Total-Count %s, want %d", n, len(want))
		}
		target = relation(h.t, a, "next")
	}
	if !slices.Equal(got, want) {
		h.t.Errorf("walked %v, want %v", got, want)
	}
	for target = relation(h.t, last, "prev"); target != ""; pages-- {
		target = relation(h.t, h.call("GET", target, ""), "prev")
	}
	if pages != 1 {
		h.t.Errorf("%d pages more forth than back", pages-1)
	}
}

// relation is the target of the answer's link of that kind, "" for none.
func relation(t *testing.T, a answer, rel string) string {
	t.Helper()
	for l := range strings.SplitSeq(a.Header().Get("Link"), ", ") {
		if target, ok := strings.CutSuffix(l, `>; rel="`+rel+`"`); ok {
			return strings.TrimPrefix(target, "<")
		}
	}
	return ""
}
