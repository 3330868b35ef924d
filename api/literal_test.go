package api

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"

	"spendhook/api/gen"
)

// An operation without a body refuses a DELETE with a body, whatever the body holds.
func TestDeleteRefusesABody(t *testing.T) {
	t.Parallel()
	h := setup(t)
	for _, target := range []string{cardsPath + "/" + uuid.NewString(), "/api/v1/quarantine/e"} {
		for _, body := range []string{`{"companyUuid":"` + uuid.NewString() + `"}`, "garbage"} {
			h.call("DELETE", target, body).want(http.StatusBadRequest, "BODY_NOT_ALLOWED")
			h.call("DELETE", target, body, func(r *http.Request) { r.ContentLength = -1 }).want(http.StatusBadRequest, "BODY_NOT_ALLOWED")
		}
		h.call("DELETE", target, "").want(http.StatusNotFound)
	}
}

// The company may be named in the query of every operation that has one.
func TestTheCompanyMayBeInEveryQuery(t *testing.T) {
	t.Parallel()
	h := setup(t)
	platform := bearer(h.mint(nil, allScopes+" platform"))
	mine, other := "companyUuid="+h.company.String(), uuid.New()
	for route, operations := range documentedRoutes(t) {
		ofNone := strings.HasPrefix(route, "/api/v1/event-types") || route == "/api/v1/egress-addresses"
		for method, op := range operations {
			if !op.public && !op.ofAll() && !ofNone && op.query["companyUuid"] == nil {
				t.Errorf("%s %s takes no companyUuid", method, route)
			}
		}
	}
	body := `{"name":"x","callbackUrl":"` + hooks + `","events":["A"]%s}`
	made := h.call("POST", "/api/v1/subscribers?"+mine, fmt.Sprintf(body, ""), platform).want(http.StatusCreated)
	if got := as[gen.SubscriberWithSecret](made).CompanyUUID; got != h.company {
		t.Errorf("made for %s", got)
	}
	both := fmt.Sprintf(body, `,"companyUuid":"`+other.String()+`"`)
	h.call("POST", "/api/v1/subscribers?"+mine, both, platform).wantField("companyUuid", "INVALID")
	h.call("POST", "/api/v1/subscribers?"+mine, both).want(http.StatusForbidden, "COMPANY_MISMATCH")
	h.call("POST", "/api/v1/events?"+mine, event("e"), platform).want(http.StatusAccepted)
	h.call("GET", "/api/v1/events/e", "").want(http.StatusOK)
	array := h.call("POST", "/api/v1/events?"+mine, "["+event("f")+","+strings.TrimSuffix(event("g"), "}")+`,"companyUuid":"`+other.String()+`"}]`, platform)
	if got := as[gen.EventBatchResult](array.want(http.StatusMultiStatus)).Results; got[0].Status != "ACCEPTED" || got[1].Status != "REJECTED" {
		t.Errorf("%s", array.Body)
	}
}

// A UUID of zeros in a body is not read as an absent one.
func TestTheZeroUUIDIsRefused(t *testing.T) {
	t.Parallel()
	h := setup(t)
	platform := bearer(h.mint(nil, allScopes+" platform"))
	zero := strings.TrimSuffix(event("e"), "}") + `,"companyUuid":"` + uuid.Nil.String() + `"}`
	for _, token := range []option{bearer(h.token), platform} {
		h.call("POST", "/api/v1/events", zero, token).wantField("companyUuid", "INVALID")
		array := h.call("POST", "/api/v1/events?companyUuid="+h.company.String(), "["+zero+"]", token).want(http.StatusMultiStatus)
		if got := as[gen.EventBatchResult](array).Results[0]; got.Status != "REJECTED" || got.Error.Code != "VALIDATION_ERROR" {
			t.Errorf("%s", array.Body)
		}
		h.call("POST", "/api/v1/subscribers", `{"name":"x","callbackUrl":"`+hooks+`","events":["A"],"companyUuid":"`+uuid.Nil.String()+`"}`, token).
			wantField("companyUuid", "INVALID")
	}
}

// An error has a pointer to the bad value and says what is expected there.
func TestErrorsPointAndSayWhatIsExpected(t *testing.T) {
	t.Parallel()
	h := setup(t)
	sub := create(h, hooks)
	for _, c := range []struct{ method, target, body, field, says string }{
		{"POST", "/api/v1/events", `{"id":"e","event":"A","timestamp":"2026-11-20"}`, "/timestamp", "an RFC 3339 date-time such as 2026-11-20T19:00:00Z, or whole epoch milliseconds"},
		{"POST", "/api/v1/events", `{"id":"e","event":"A","timestamp":"2026-11-20T19:00:00,5Z"}`, "/timestamp", "RFC 3339"},
		{"POST", "/api/v1/subscribers", `{"name":"x","callbackUrl":"https://h/a","events":[".a"]}`, "/events/0", "letter or digit"},
		{"POST", "/api/v1/subscribers", `{"name":"x","callbackUrl":"https://h/a","events":["A"],"headers":{"hoST":"x"}}`, "/headers/hoST", "cannot be set"},
		{"PATCH", "/api/v1/subscribers/" + sub.UUID.String(), `{"name":null}`, "/name", "must not be null"},
		{"PATCH", "/api/v1/subscribers/" + sub.UUID.String(), `{"events":null}`, "/events", "must not be null"},
		{"PATCH", "/api/v1/subscribers/" + sub.UUID.String(), `{"enabled":null}`, "/enabled", "must not be null"},
		{"GET", "/api/v1/deliveries?status=LOST", "", "/status", "one of PENDING, DELIVERING"},
	} {
		a := h.call(c.method, c.target, c.body).want(http.StatusBadRequest)
		if e := a.problem().Errors; len(e) != 1 || e[0].Field != c.field || !strings.Contains(e[0].Message, c.says) {
			t.Errorf("%s %s: %s, want %s: %s", c.method, c.target, a.Body, c.field, c.says)
		}
	}
	h.call("PATCH", "/api/v1/subscribers/"+sub.UUID.String(), `{"headers":{"X-A":null}}`).want(http.StatusOK)
}

// The three spellings of a bare host are one address.
func TestABareHostHasOneAddress(t *testing.T) {
	t.Parallel()
	h := setup(t)
	create(h, "https://hooks.example.com")
	for _, same := range []string{"https://hooks.example.com/", "https://hooks.example.com?"} {
		h.call("POST", "/api/v1/subscribers", `{"name":"x","callbackUrl":"`+same+`","events":["A"]}`).want(http.StatusConflict, "CALLBACK_URL_TAKEN")
	}
}

// The last event may be removed, and the answer without any is as documented.
func TestASubscriberMayLoseItsLastEvent(t *testing.T) {
	t.Parallel()
	h := setup(t)
	sub := create(h, hooks, "A")
	h.call("DELETE", "/api/v1/subscribers/delete-event", `{"callbackUrl":"`+hooks+`","event":"A"}`).want(http.StatusNoContent)
	if got := as[gen.Subscriber](h.call("GET", "/api/v1/subscribers/"+sub.UUID.String(), "").want(http.StatusOK)); len(got.Events) != 0 {
		t.Errorf("%v", got.Events)
	}
	h.call("PATCH", "/api/v1/subscribers/"+sub.UUID.String(), `{"events":[]}`).wantField("events", "REQUIRED")
}

// A request with two lists of the maximum length is answered; one with more bytes in its head is refused.
func TestTheHeadOfARequestHasItsLimit(t *testing.T) {
	t.Parallel()
	h := setup(t)
	list := strings.TrimSuffix(strings.Repeat(uuid.NewString()+",", 500), ",")
	h.call("GET", reimbursementsPath+"?uuids="+list+"&requesterUuids="+list, "").want(http.StatusOK)
	a := h.call("GET", "/api/v1/event-types", "", header("X-Long", strings.Repeat("x", maxHeaderBytes))).want(http.StatusRequestHeaderFieldsTooLarge, "HEADERS_TOO_LARGE")
	if a.Header().Get("X-Request-Id") == "" {
		t.Error("no request id")
	}
}

// A body of 64 levels is read, and no deeper one.
func TestABodyNestsToTheLimit(t *testing.T) {
	t.Parallel()
	for levels, deeper := range map[int]bool{64: false, 65: true} {
		var into jsontext.Value
		err := decodeJSON([]byte(strings.Repeat("[", levels)+strings.Repeat("]", levels)), &into)
		if (err != nil) != deeper || deeper && !strings.Contains(err.Error(), "deeper than 64 levels") {
			t.Errorf("%d levels: %v", levels, err)
		}
	}
}

type timedOut struct{}

func (timedOut) Read([]byte) (int, error) { return 0, os.ErrDeadlineExceeded }

// Every answer is a problem document with a request id.
func TestEveryAnswerIsAProblem(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.call("POST", "/api/v1/events", "x", func(r *http.Request) { r.Body = io.NopCloser(timedOut{}) }).want(http.StatusRequestTimeout, "REQUEST_TIMEOUT")
	h.call("OPTIONS", "/none", "", func(r *http.Request) { r.URL.Path, r.RequestURI = "*", "*" }).want(http.StatusNotFound, "NO_SUCH_ROUTE")
}

// A 404 names the kind of the missing resource.
func TestNotFoundNamesTheResource(t *testing.T) {
	t.Parallel()
	h := setup(t)
	id := uuid.NewString()
	for target, what := range map[string]string{
		cardsPath + "/" + id: "card", bulkPath + "/" + id: "job", "/api/v2/locations/" + id: "location", "/api/v1/locations/" + id: "location",
		"/api/v2/billing-statements/current": "billing statement", "/api/v1/subscribers/" + id: "subscriber",
		"/api/v1/jobs/" + id: "job", "/api/v1/events/e": "event", "/api/v1/deliveries/e." + id: "delivery",
	} {
		if detail := h.call("GET", target, "").want(http.StatusNotFound).problem().Detail; !strings.Contains(detail, what) {
			t.Errorf("%s: %s", target, detail)
		}
	}
}

// Every answer of a deprecated route has the deprecation headers, errors too.
func TestEveryAnswerOfTheOldLocationsIsDeprecated(t *testing.T) {
	t.Parallel()
	h := setup(t)
	for _, a := range []answer{
		h.call("GET", "/api/v1/locations", "").want(http.StatusOK), h.call("GET", "/api/v1/locations", "", noToken).want(http.StatusUnauthorized),
		h.call("POST", "/api/v1/locations", "").want(http.StatusMethodNotAllowed), h.call("GET", "/api/v1/locations?page=x", "").want(http.StatusBadRequest),
		h.call("GET", "/api/v1/locations/"+uuid.NewString(), "").want(http.StatusNotFound),
	} {
		if a.Header().Get("Deprecation") == "" || !strings.Contains(a.Header().Get("Link"), "successor-version") {
			t.Errorf("%d: %v", a.Code, a.Header())
		}
	}
}
