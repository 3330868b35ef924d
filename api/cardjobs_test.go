package api

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	"github.com/google/uuid"

	"spendhook/api/gen"
)

const bulkPath = cardsPath + "/bulk-create"

func bulkOf(items ...string) string { return `{"cardsRequests":[` + strings.Join(items, ",") + `]}` }

// work finishes the next item, as a worker does.
func (h *spendHarness) work() {
	h.t.Helper()
	if _, found, err := h.options.Cards.CreateNextCard(context.Background()); err != nil || !found {
		h.t.Fatalf("found %v, %v", found, err)
	}
}

var cardWorkTests = suite{
	"contract a company without records fails its items": func(h *spendHarness) {
		elsewhere := uuid.New()
		theirs := bearer(h.mint(&elsewhere, allScopes))
		a := h.call("POST", bulkPath, bulkOf(h.plainCard(), h.plainCard()), theirs).want(http.StatusAccepted)
		h.work()
		h.work()
		job := as[gen.CardJob](h.call("GET", a.Header().Get("Location"), "", theirs))
		if job.Status != "COMPLETED" || job.Failed != 2 || job.Items[0].ErrorCode != "USER_NOT_FOUND" {
			h.t.Errorf("%+v", job)
		}
	},
	"4.1 bulk create": func(h *spendHarness) {
		a := h.call("POST", bulkPath, bulkOf(h.plainCard(), strings.Replace(h.plainCard(), h.ann.String(), h.bo.String(), 1))).want(http.StatusAccepted)
		job, target := as[gen.CardJob](a), a.Header().Get("Location")
		if target != bulkPath+"/"+job.UUID.String() {
			h.t.Errorf("Location %q", target)
		}
		if got := members(h.t, a.Body.Bytes()); got != "createdAt failed finishedAt items status succeeded total uuid" {
			h.t.Errorf("answered %s", got)
		}
		if job.Status != "QUEUED" || job.Total != 2 || job.FinishedAt != nil || len(job.Items) != 2 || job.Items[1].Index != 1 || job.Items[1].Status != "PENDING" {
			h.t.Errorf("answered %+v", job)
		}
		if polled := h.call("GET", target, "").want(http.StatusOK).Body.String(); polled != a.Body.String() {
			h.t.Errorf("answered %s, polled %s", a.Body, polled)
		}
		h.work()
		if job = as[gen.CardJob](h.call("GET", target, "")); job.Status != "RUNNING" || job.Failed != 0 || job.Succeeded != 1 || job.FinishedAt != nil {
			h.t.Errorf("running %+v", job)
		}
		h.work()
		job = as[gen.CardJob](h.call("GET", target, ""))
		if job.Status != "COMPLETED" || job.Failed != 1 || job.Succeeded != 1 || job.FinishedAt == nil {
			h.t.Errorf("completed %+v", job)
		}
		if good, bad := job.Items[0], job.Items[1]; good.Status != "CREATED" || good.CardUUID == nil || good.ErrorCode != "" ||
			bad.Status != "ERROR" || bad.CardUUID != nil || bad.ErrorCode != "USER_NOT_FOUND" || bad.ErrorMessage == "" {
			h.t.Errorf("items %+v", job.Items)
		}
		h.call("GET", cardsPath+"/"+job.Items[0].CardUUID.String(), "").want(http.StatusOK)
	},
	"2.2 example of the bulk create in its own spelling": func(h *spendHarness) {
		body := bulkOf(
			fmt.Sprintf(`{"type":"virtual","alias":"Marketing","userUUID":%q,"threshold":500,"businessType":"BUSINESS","periodicityType":"MONTHLY"}`, h.ann),
			fmt.Sprintf(`{"type":"physical","alias":"Fuel","userUUID":%q,"threshold":300.50,"businessType":"WORLD_ELITE","periodicityType":"WEEKLY"}`, h.ann),
		)
		job := as[gen.CardJob](h.call("POST", bulkPath, body).want(http.StatusAccepted))
		h.work()
		h.work()
		job = as[gen.CardJob](h.call("GET", bulkPath+"/"+job.UUID.String(), ""))
		for i, want := range []gen.CardType{"MASTER_VIRTUAL", "MASTER_WORLD_ELITE"} {
			if got := h.listedType(*job.Items[i].CardUUID); got != want {
				h.t.Errorf("item %d became %s, want %s", i, got, want)
			}
		}
	},
	"contract business errors fail only their item": func(h *spendHarness) {
		above := strings.TrimSuffix(h.plainCard(), "}") + `,"threshold":1000.01}`
		job := as[gen.CardJob](h.call("POST", bulkPath, bulkOf(above, h.plainCard())).want(http.StatusAccepted))
		h.work()
		h.work()
		job = as[gen.CardJob](h.call("GET", bulkPath+"/"+job.UUID.String(), ""))
		if job.Items[0].ErrorCode != "THRESHOLD_EXCEEDS_LIMIT" || job.Items[1].Status != "CREATED" {
			h.t.Errorf("items %+v", job.Items)
		}
	},
}

var cardJobTests = suite{
	"contract 1 to 500 items": func(h *spendHarness) {
		many := strings.Repeat(h.plainCard()+",", 499) + h.plainCard()
		if job := as[gen.CardJob](h.call("POST", bulkPath, bulkOf(many)).want(http.StatusAccepted)); job.Total != 500 {
			h.t.Errorf("%d items", job.Total)
		}
		h.unchanged("a bad count", func() {
			h.call("POST", bulkPath, bulkOf(many, h.plainCard())).wantField("cardsRequests", "TOO_MANY")
			h.call("POST", bulkPath, bulkOf(strings.Repeat(`7,`, 400_000)+`7`)).wantField("cardsRequests", "TOO_MANY")
			for _, body := range []string{bulkOf(), `{}`} {
				h.call("POST", bulkPath, body).wantField("cardsRequests", "REQUIRED")
			}
			h.call("POST", bulkPath, `{"cardsRequests":null}`).wantField("cardsRequests", "INVALID")
		})
	},
	"contract shape errors refuse the whole bulk": func(h *spendHarness) {
		good := strings.TrimSuffix(h.plainCard(), "}")
		h.unchanged("a bad item", func() {
			for item, want := range map[string]string{
				`{}`: "/type REQUIRED", `null`: " INVALID", `7`: " INVALID", `[]`: " INVALID",
				good + `,"threshold":0}`:                         "/threshold INVALID",
				good + `,"threshold":0.001}`:                     "/threshold INVALID",
				good + `,"threshold":"5"}`:                       "/threshold INVALID",
				good + `,"periodicity":"YEARLY"}`:                "/periodicity INVALID",
				good + `,"businessType":""}`:                     "/businessType INVALID",
				good + `,"userUUID":"` + uuid.NewString() + `"}`: "/userUUID INVALID",
				good + `,"userUUID":"x"}`:                        "/userUUID INVALID",
				good + `,"color":"red"}`:                         "/color UNKNOWN_FIELD",
				`{"type":"VIRTUAL","alias":"x","userUuid":null}`: "/userUuid REQUIRED",
			} {
				field, code, _ := strings.Cut(want, " ")
				h.call("POST", bulkPath, bulkOf(h.plainCard(), item)).want(http.StatusBadRequest, "VALIDATION_ERROR").wantField("/cardsRequests/1"+field, code)
			}
			h.call("POST", bulkPath, bulkOf(good+`,"alias":"x"}`)).wantField("/cardsRequests/0/alias", "DUPLICATE_FIELD")
			h.call("POST", bulkPath, `{"cardsRequests":{}}`).wantField("cardsRequests", "INVALID")
			h.call("POST", bulkPath, `{"cards":[]}`).wantField("cards", "UNKNOWN_FIELD")
			a := h.call("POST", bulkPath, bulkOf(`{}`, h.plainCard(), `{}`))
			a.wantField("/cardsRequests/0/type", "REQUIRED")
			a.wantField("/cardsRequests/2/alias", "REQUIRED")
		})
	},
	"contract company scope of bulk creations": func(h *spendHarness) {
		job := as[gen.CardJob](h.call("POST", bulkPath, bulkOf(h.plainCard())).want(http.StatusAccepted))
		h.call("GET", bulkPath+"/"+job.UUID.String(), "", bearer(h.boltToken)).want(http.StatusNotFound, "NOT_FOUND")
		h.call("GET", bulkPath+"/"+uuid.NewString(), "").want(http.StatusNotFound, "NOT_FOUND")
		h.call("GET", bulkPath+"/x", "").wantField("jobUuid", "INVALID")
		free := bearer(h.mint(nil, allScopes+" platform"))
		mine, theirs := `"companyUuid":"`+h.company.String()+`"`, `,"companyUuid":"`+h.bolt.String()+`"}`
		h.unchanged("another company", func() {
			h.call("POST", bulkPath, `{`+mine[:15]+h.bolt.String()+`","cardsRequests":[`+h.plainCard()+`]}`).want(http.StatusForbidden, "COMPANY_MISMATCH")
			h.call("POST", bulkPath, bulkOf(strings.TrimSuffix(h.plainCard(), "}")+theirs)).want(http.StatusForbidden, "COMPANY_MISMATCH")
			h.call("POST", bulkPath, bulkOf(h.plainCard()), free).wantField("companyUuid", "REQUIRED")
			h.call("POST", bulkPath, `{`+mine+`,"cardsRequests":[`+strings.TrimSuffix(h.plainCard(), "}")+theirs+`]}`, free).wantField("companyUuid", "INVALID")
		})
		h.call("POST", bulkPath, `{`+mine+`,"cardsRequests":[`+h.plainCard()+`]}`, free).want(http.StatusAccepted)
	},
	"contract Idempotency-Key of the bulk create": func(h *spendHarness) {
		key := header(idempotencyHeader, "bulk")
		first := h.call("POST", bulkPath, bulkOf(h.plainCard()), key).want(http.StatusAccepted)
		h.unchanged("the same request again", func() {
			again := h.call("POST", bulkPath, bulkOf(h.plainCard()), key).want(http.StatusAccepted)
			if again.Body.String() != first.Body.String() || again.Header().Get("Location") != first.Header().Get("Location") {
				h.t.Errorf("%s, then %s", first.Body, again.Body)
			}
			h.call("POST", bulkPath, bulkOf(h.plainCard(), h.plainCard()), key).want(http.StatusUnprocessableEntity, "IDEMPOTENCY_KEY_REUSED")
		})
	},
}
