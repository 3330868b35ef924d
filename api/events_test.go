package api

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"spendhook/api/gen"
	"spendhook/internal/redistest"
	"spendhook/internal/waittest"
)

func now() string { return time.Now().UTC().Format("2006-01-02T15:04:05.000Z") }

func event(id string) string {
	return fmt.Sprintf(`{"id":%q,"event":"PAYMENT_PAID","timestamp":%q,"metadata":{"b":1,"a":[1.50,"<é>"]}}`, id, now())
}

func TestIngestOne(t *testing.T) {
	t.Parallel()
	h := setup(t)
	body := event("e-1")
	if got := h.call("POST", "/api/v1/events", body).want(http.StatusAccepted).Body.String(); got != `{"id":"e-1","status":"ACCEPTED"}` {
		t.Error(got)
	}
	if got := h.call("POST", "/api/v1/events", " \n"+body).want(http.StatusOK).Body.String(); got != `{"id":"e-1","status":"DUPLICATE"}` {
		t.Error(got)
	}
	h.call("POST", "/api/v1/events", strings.Replace(body, "1.50", "2", 1)).want(http.StatusConflict, "EVENT_CONFLICT")
	stored := as[gen.Event](h.call("GET", "/api/v1/events/e-1", "").want(http.StatusOK))
	if string(stored.Metadata) != `{"a":[1.50,"<é>"],"b":1}` || stored.CompanyUUID != h.company {
		t.Errorf("stored %+v", stored)
	}
	h.call("POST", "/api/v1/events", fmt.Sprintf(`{"id":"e-2","event":"A","timestamp":%d}`, time.Now().UnixMilli())).want(http.StatusAccepted)
}

func TestBadEvents(t *testing.T) {
	t.Parallel()
	h := setup(t)
	for body, want := range map[string][2]string{
		`{"id":"a.b","event":"A","timestamp":"` + now() + `"}`:             {"id", "INVALID"},
		`{"event":"A","timestamp":"` + now() + `"}`:                        {"id", "REQUIRED"},
		`{"id":"x","event":"a*","timestamp":"` + now() + `"}`:              {"event", "INVALID"},
		`{"id":"x","event":"A"}`:                                           {"timestamp", "REQUIRED"},
		`{"id":"x","event":"A","timestamp":"2001-01-01T00:00:00Z"}`:        {"timestamp", "EVENT_TOO_OLD"},
		`{"id":"x","event":"A","timestamp":"0001-01-01T00:00:00Z"}`:        {"timestamp", "REQUIRED"},
		`{"id":"x","event":"A","timestamp":"2101-01-01T00:00:00Z"}`:        {"timestamp", "EVENT_IN_FUTURE"},
		`{"id":"x","event":"A","timestamp":true}`:                          {"timestamp", "INVALID"},
		`{"id":"x","event":"A","timestamp":"` + now() + `","metadata":[]}`: {"metadata", "INVALID"},
		`{"id":"x","event":"A","timestamp":"` + now() + `","extra":1}`:     {"extra", "UNKNOWN_FIELD"},
		`{"id":"x","metadata":{"k":1,"k":2}}`:                              {"/metadata/k", "DUPLICATE_FIELD"},
		`{"id":"x","event":"A","timestamp":"` + now() + `","metadata":` + strings.Repeat(`{"k":`, 110) + "1" + strings.Repeat("}", 111): {"metadata", "TOO_DEEP"},
		`[]`:                                    {"", "REQUIRED"},
		"[" + strings.Repeat("1,", 1000) + "1]": {"", "TOO_MANY"},
	} {
		h.call("POST", "/api/v1/events", body).wantField(want[0], want[1])
	}
	h.call("POST", "/api/v1/events", `{"id":"x","event":"A","timestamp":"2001-01-01T00:00:00Z"}`).want(http.StatusBadRequest, "EVENT_TOO_OLD")
	h.call("POST", "/api/v1/events", `{"id":"x","companyUuid":"`+uuid.NewString()+`"}`).want(http.StatusForbidden, "COMPANY_MISMATCH")
	h.call("POST", "/api/v1/events", `[{"id":`).want(http.StatusBadRequest, "MALFORMED_BODY")
	h.call("POST", "/api/v1/events", "[\""+strings.Repeat("x", eventBodyLimit)+"\"]").want(http.StatusRequestEntityTooLarge, "BODY_TOO_LARGE")
	if n := len(as[gen.EventList](h.call("GET", "/api/v1/events", "").want(http.StatusOK)).Content); n != 0 {
		t.Errorf("bad input has left %d events", n)
	}
}

func TestIngestBatch(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.call("POST", "/api/v1/events", event("known")).want(http.StatusAccepted)
	items := []string{
		event("b-1"), `17`, `{"id":"b-2","nope":1}`, `{"id":"a.b"}`, event("b-3"), strings.Replace(event("known"), "1.50", "1.51", 1),
		`{"id":"b-4","companyUuid":"` + uuid.NewString() + `"}`, "{\"id\":\"b-5\",\"errorCode\":\"\xff\"}", `{"id":"b-6","id":"b-6"}`, `null`,
		strings.Repeat(`{"id":`, 1000) + "1" + strings.Repeat("}", 1000),
	}
	text := "\t[" + strings.Join(items, ",") + "]"
	got := as[gen.EventBatchResult](h.call("POST", "/api/v1/events", text).want(http.StatusMultiStatus)).Results
	want := []string{
		"b-1 ACCEPTED ", " REJECTED VALIDATION_ERROR", "b-2 REJECTED VALIDATION_ERROR", " REJECTED VALIDATION_ERROR", "b-3 ACCEPTED ",
		"known CONFLICT EVENT_CONFLICT", "b-4 REJECTED COMPANY_MISMATCH", "b-5 REJECTED MALFORMED_BODY", "b-6 REJECTED VALIDATION_ERROR",
		" REJECTED VALIDATION_ERROR", " REJECTED MALFORMED_BODY",
	}
	for i, r := range got {
		code := ""
		if r.Error != nil {
			code = r.Error.Code
		}
		if line := fmt.Sprintf("%s %s %s", r.ID, r.Status, code); line != want[i] {
			t.Errorf("item %d: %q, want %q", i, line, want[i])
		}
	}
	again := as[gen.EventBatchResult](h.call("POST", "/api/v1/events", "["+items[0]+"]").want(http.StatusAccepted)).Results
	if len(again) != 1 || again[0].Status != "DUPLICATE" {
		t.Errorf("sent again: %+v", again)
	}
}

func TestListEvents(t *testing.T) {
	t.Parallel()
	h := setup(t)
	var ids []string
	for i := range 7 {
		ids = append(ids, fmt.Sprintf("e-%d", i))
		h.call("POST", "/api/v1/events", event(ids[i])).want(http.StatusAccepted)
	}
	var seen []string
	target := "/api/v1/events?size=3&event=PAYMENT_PAID"
	for target != "" {
		a := h.call("GET", target, "").want(http.StatusOK)
		page := as[gen.EventList](a)
		for _, e := range page.Content {
			seen = append(seen, e.ID)
		}
		if target = ""; page.NextCursor != "" {
			target = "/api/v1/events?size=3&event=PAYMENT_PAID&cursor=" + page.NextCursor
		}
	}
	slices.Sort(seen)
	if !slices.Equal(seen, ids) {
		t.Errorf("listed %v, want %v", seen, ids)
	}
	eventually(t, func() bool {
		page := as[gen.EventList](h.call("GET", "/api/v1/events?status=NO_SUBSCRIBER", "").want(http.StatusOK))
		return len(page.Content) == 7
	})
	if page := as[gen.EventList](h.call("GET", "/api/v1/events?status=DEAD", "").want(http.StatusOK)); len(page.Content) != 0 {
		t.Errorf("dead: %+v", page)
	}
	for query, field := range map[string]string{
		"?cursor=hunter2": "cursor", "?status=LOST": "status", "?from=x": "from", "?size=0": "size",
		"?from=2026-11-02T00:00:00Z&to=2026-11-01T00:00:00Z": "to",
	} {
		h.call("GET", "/api/v1/events"+query, "").wantField(field, "INVALID")
		h.call("GET", "/api/v1/deliveries"+query, "").wantField(field, "INVALID")
	}
	for _, path := range []string{"a.b", "unknown", strings.Repeat("x", 200)} {
		for _, rest := range []string{"", "/deliveries", "/explain"} {
			h.call("GET", "/api/v1/events/"+path+rest, "").want(http.StatusNotFound)
		}
		h.call("POST", "/api/v1/events/"+path+"/replay", "").want(http.StatusNotFound)
		h.call("GET", "/api/v1/deliveries/"+path, "").want(http.StatusNotFound)
		h.call("POST", "/api/v1/deliveries/"+path+"/retry", "").want(http.StatusNotFound)
	}
	h.call("GET", "/api/v1/event-types", "").want(http.StatusOK)
}

func TestDeliveryLife(t *testing.T) {
	t.Parallel()
	h := setup(t)
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusTeapot)
		_, _ = w.Write([]byte("short and stout \xff"))
	}))
	t.Cleanup(receiver.Close)
	sub := create(h, receiver.URL)
	path := "/api/v1/subscribers/" + sub.UUID.String()

	test := as[gen.TestResult](h.call("POST", path+"/test", `{}`).want(http.StatusOK))
	if test.Delivered || *test.Attempt.StatusCode != http.StatusTeapot {
		t.Errorf("test: %+v", test)
	}

	h.call("POST", "/api/v1/events", event("e-1")).want(http.StatusAccepted)
	delivery := "/api/v1/deliveries/e-1." + sub.UUID.String()
	var dead gen.DeliveryDetail
	eventually(t, func() bool {
		a := h.call("GET", delivery, "")
		if a.Code != http.StatusOK {
			return false
		}
		dead = as[gen.DeliveryDetail](a)
		return dead.Status == "DEAD"
	})
	attempt := dead.Attempts[0]
	if len(dead.Attempts) != 2 || attempt.ResponseBody != "" {
		t.Fatalf("dead: %+v", dead)
	}
	if attempt = dead.Attempts[1]; *attempt.StatusCode != http.StatusTeapot || attempt.ResponseBody != "short and stout \uFFFD" || attempt.RequestHeaders["webhook-id"] != "e-1" {
		t.Errorf("dead: %+v", dead)
	}
	if page := as[gen.DeliveryList](h.call("GET", "/api/v1/deliveries?status=DEAD&subscriberUuid="+sub.UUID.String(), "").want(http.StatusOK)); len(page.Content) != 1 {
		t.Errorf("listed %+v", page)
	}
	explained := as[gen.EventExplanation](h.call("GET", "/api/v1/events/e-1/explain", "").want(http.StatusOK))
	if len(explained.Subscribers) != 1 || explained.Subscribers[0].Outcome != "DEAD" || explained.Subscribers[0].Detail == "" {
		t.Errorf("explained %+v", explained)
	}
	h.call("GET", "/api/v1/events/e-1/deliveries", "").want(http.StatusOK)
	h.call("POST", delivery+"/retry", "").want(http.StatusAccepted)
	stranger := uuid.NewString()
	h.call("POST", "/api/v1/events/e-1/replay", `{"subscriberUuids":[]}`).wantField("subscriberUuids", "REQUIRED")
	refused := h.call("POST", "/api/v1/events/e-1/replay", `{"subscriberUuids":["`+stranger+`"]}`).want(http.StatusUnprocessableEntity, "UNKNOWN_SUBSCRIBERS")
	if !strings.Contains(refused.problem().Detail, stranger) {
		t.Errorf("it is not named: %s", refused.Body)
	}
	elsewhere, named := uuid.New(), "?companyUuid="+h.company.String()
	h.call("POST", "/api/v1/events/e-1/replay"+named, "", bearer(h.mint(&elsewhere, "deliveries:write operator"))).want(http.StatusForbidden, "COMPANY_MISMATCH")
	h.call("POST", "/api/v1/events/e-1/replay"+named, "", bearer(h.mint(nil, "deliveries:write"))).want(http.StatusAccepted)
	h.call("POST", "/api/v1/events/e-1/replay", "", bearer(h.mint(&elsewhere, "deliveries:write operator"))).want(http.StatusNotFound)
	h.call("POST", "/api/v1/events/e-1/replay"+named, "", bearer(h.mint(&elsewhere, "deliveries:write"))).want(http.StatusForbidden, "COMPANY_MISMATCH")
	h.call("POST", "/api/v1/events/e-1/replay", "").want(http.StatusAccepted)

	made := h.call("POST", path+"/recover", `{"since":"2026-11-01T00:00:00Z","dryRun":true}`).want(http.StatusAccepted)
	location := made.Header().Get("Location")
	eventually(t, func() bool {
		return as[gen.Job](h.call("GET", location, "").want(http.StatusOK)).Status == "COMPLETED"
	})
	h.call("GET", location, "", bearer(h.mint(&elsewhere, allScopes))).want(http.StatusNotFound)
	h.call("GET", "/api/v1/jobs/"+uuid.NewString(), "").want(http.StatusNotFound)

	h.call("PATCH", path, `{"enabled":false}`).want(http.StatusOK)
	h.call("POST", path+"/recover", `{"since":"2026-11-01T00:00:00Z"}`).want(http.StatusConflict, "SUBSCRIBER_DISABLED")
	h.call("GET", delivery+"?companyUuid="+uuid.NewString(), "").want(http.StatusForbidden)
	other := uuid.New()
	h.call("GET", delivery, "", bearer(h.mint(&other, allScopes))).want(http.StatusNotFound)
	h.call("GET", "/api/v1/events/e-1", "", bearer(h.mint(&other, allScopes))).want(http.StatusNotFound)
}

func TestRedisDownIs503InTime(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{})
	h := setupOn(t, server.Client())
	h.call("POST", "/api/v1/events", event("before")).want(http.StatusAccepted)
	server.Pause()
	var took []time.Duration
	for _, path := range []string{"/api/v1/events", "/api/v1/subscribers", "/api/v1/events"} {
		started := time.Now()
		a := h.call("POST", path, event("during")) // also a bad subscriber
		if path == "/api/v1/events" {
			a.want(http.StatusServiceUnavailable, "UNAVAILABLE")
		}
		took = append(took, time.Since(started))
	}
	wantInTime(t, took)
	server.Resume()
	eventually(t, func() bool { return h.call("POST", "/api/v1/events", event("after")).Code == http.StatusAccepted })
	server.Kill()
	a := h.call("POST", "/api/v1/events", event("dead")).want(http.StatusServiceUnavailable)
	if a.Header().Get("Retry-After") == "" {
		t.Error("no Retry-After")
	}
	h.call("GET", "/api/v1/subscribers", "").want(http.StatusServiceUnavailable)
	server.Restart()
	eventually(t, func() bool { return h.call("POST", "/api/v1/events", event("again")).Code == http.StatusAccepted })
}

func eventually(t *testing.T, ok func() bool) {
	t.Helper()
	waittest.Until(t, "the condition", ok)
}
