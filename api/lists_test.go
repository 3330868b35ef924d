package api

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"spendhook/api/gen"
	"spendhook/dispatcher/delivery/attempt"
)

// answers is a receiver that answers each event by its metadata.
func answers(t *testing.T, status int) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }))
	t.Cleanup(server.Close)
	return server.URL
}

// outage is a company with two subscribers, of which one answers with 503 and one with
// 200, and an event of each of two types.
type outage struct {
	*harness

	failing, well gen.SubscriberWithSecret
	before, after string // of the second event
}

func newOutage(t *testing.T) *outage {
	t.Helper()
	h := setup(t)
	o := &outage{harness: h, failing: create(h, answers(t, http.StatusServiceUnavailable), "PAYMENT_PAID", "OTHER"), well: create(h, answers(t, http.StatusOK), "PAYMENT_PAID")}
	h.call("POST", "/api/v1/events", event("paid")).want(http.StatusAccepted)
	h.call("POST", "/api/v1/events", strings.Replace(event("other"), "PAYMENT_PAID", "OTHER", 1)).want(http.StatusAccepted)
	eventually(t, func() bool {
		return len(as[gen.DeliveryList](h.call("GET", "/api/v1/deliveries?status=DEAD,DELIVERED", "").want(http.StatusOK)).Content) == 3
	})
	stored := as[gen.Event](h.call("GET", "/api/v1/events/other", "").want(http.StatusOK))
	o.before = stored.AcceptedAt.Add(-time.Hour).Format(time.RFC3339Nano)
	o.after = stored.AcceptedAt.Add(time.Hour).Format(time.RFC3339Nano)
	return o
}

// Every filter alone, and all together.
func TestListsOfEventsAndDeliveriesFilter(t *testing.T) {
	t.Parallel()
	o := newOutage(t)
	failing, well := o.failing.UUID.String(), o.well.UUID.String()
	for query, want := range map[string]struct{ events, deliveries []string }{
		"":                                   {[]string{"other", "paid"}, []string{"other." + failing, "paid." + failing, "paid." + well}},
		"event=OTHER":                        {[]string{"other"}, []string{"other." + failing}},
		"event=OTHER,NONE":                   {[]string{"other"}, []string{"other." + failing}},
		"event=OTHER&event=%20NONE":          {[]string{"other"}, []string{"other." + failing}},
		"event=O*,PAYMENT":                   {[]string{"other"}, []string{"other." + failing}},
		"event=*":                            {[]string{"other", "paid"}, []string{"other." + failing, "paid." + failing, "paid." + well}},
		"status=DEAD":                        {[]string{"other", "paid"}, []string{"other." + failing, "paid." + failing}},
		"status=delivered":                   {nil, []string{"paid." + well}},
		"status=DELIVERED,DEAD":              {[]string{"other", "paid"}, []string{"other." + failing, "paid." + failing, "paid." + well}},
		"subscriberUuid=" + well:             {[]string{"paid"}, []string{"paid." + well}},
		"subscriberUuid=" + uuid.NewString(): {nil, nil},
		"errorClass=http_5xx":                {[]string{"other", "paid"}, []string{"other." + failing, "paid." + failing}},
		"errorClass=http_4xx,timeout":        {nil, nil},
		"statusCodeFrom=503":                 {[]string{"other", "paid"}, []string{"other." + failing, "paid." + failing}},
		"statusCodeFrom=504":                 {nil, nil},
		"statusCodeTo=299":                   {[]string{"paid"}, []string{"paid." + well}},
		"statusCodeFrom=500&statusCodeTo=599&event=PAYMENT_PAID": {[]string{"paid"}, []string{"paid." + failing}},
		"subscriberUuid=" + well + "&statusCodeFrom=500":         {nil, nil}, // not: one of the event's is, another one has
		"from=" + o.after: {nil, nil},
		"to=" + o.before:  {nil, nil},
		"event=OTHER,PAYMENT_PAID&status=DEAD,PENDING&subscriberUuid=" + failing + "&errorClass=http_5xx,dns&statusCodeFrom=500&statusCodeTo=599&from=" + o.before + "&to=" + o.after: {
			[]string{"other", "paid"}, []string{"other." + failing, "paid." + failing},
		},
	} {
		for _, size := range []string{"1", "100"} {
			for path, ids := range map[string][]string{"/api/v1/events": want.events, "/api/v1/deliveries": want.deliveries} {
				slices.Sort(ids)
				if got := o.listed(path + "?size=" + size + "&" + query); !slices.Equal(got, ids) {
					t.Errorf("%s?%s by %s: %v, want %v", path, query, size, got, ids)
				}
			}
		}
	}
	d := as[gen.Delivery](o.call("GET", "/api/v1/deliveries/paid."+failing, ""))
	if d.StatusCode == nil || *d.StatusCode != http.StatusServiceUnavailable || d.Error != "http_5xx" {
		t.Errorf("%+v", d)
	}
	for query, field := range map[string]string{
		"statusCodeFrom=99": "statusCodeFrom", "statusCodeTo=600": "statusCodeTo", "statusCodeFrom=500&statusCodeTo=499": "statusCodeTo",
		"errorClass=": "errorClass", "errorClass=lost": "errorClass", "event=*paid": "event", "event=": "event", "subscriberUuid=x": "subscriberUuid",
	} {
		o.call("GET", "/api/v1/events?"+query, "").wantField(field, "INVALID")
		o.call("GET", "/api/v1/deliveries?"+query, "").wantField(field, "INVALID")
	}
	platform := bearer(o.mint(nil, allScopes+" platform"))
	o.call("GET", "/api/v1/events?subscriberUuid="+well, "", platform).wantField("companyUuid", "REQUIRED")
	o.call("GET", "/api/v1/events?search=lisbon", "", platform).wantField("companyUuid", "REQUIRED")
	o.call("GET", "/api/v1/events?search=lisbon", "").want(http.StatusConflict, "NO_HISTORY")
	if got := o.listed("/api/v1/events?status=DEAD&errorClass=http_5xx", platform); len(got) != 2 {
		t.Errorf("of all companies: %v", got)
	}
	other := uuid.New()
	if got := o.listed("/api/v1/events?subscriberUuid="+failing, bearer(o.mint(&other, allScopes))); len(got) != 0 {
		t.Errorf("another company's: %v", got)
	}
}

// listed are the ids on all pages of a list, sorted.
func (h *harness) listed(target string, options ...option) []string {
	h.t.Helper()
	var ids []string
	for next := "first"; next != ""; {
		at := target
		if next != "first" {
			at += "&cursor=" + next
		}
		page := as[struct {
			Content    []struct{ ID string }
			NextCursor string
		}](h.call("GET", at, "", options...).want(http.StatusOK))
		for _, item := range page.Content {
			ids = append(ids, item.ID)
		}
		next = page.NextCursor
	}
	slices.Sort(ids)
	return ids
}

// The document has the error classes that an attempt is recorded with.
func TestErrorClassesAreDocumented(t *testing.T) {
	t.Parallel()
	doc := parsed(t)
	var documented, recorded []string
	for _, class := range doc.Components.Schemas["ErrorClass"].Value.Enum {
		documented = append(documented, class.(string))
	}
	for _, class := range attempt.ErrorClasses() {
		if class != attempt.ClassNone && !(attempt.Result{Class: class}).Aborted() {
			recorded = append(recorded, string(class))
		}
	}
	slices.Sort(documented)
	slices.Sort(recorded)
	if !slices.Equal(documented, recorded) {
		t.Errorf("documented %v, recorded %v", documented, recorded)
	}
}

// Many clients read no header line of more than 8 KB.
func TestLongLinksAreLeftOut(t *testing.T) {
	t.Parallel()
	link := func(bytes int, rel string) string { return "<" + strings.Repeat("x", bytes) + `>; rel="` + rel + `"` }
	for want, links := range map[string][]string{
		link(9, "first") + ", " + link(9, "next"): {link(9, "first"), link(9, "next")},
		link(7000, "next"):                        {link(1000, "first"), link(7000, "next")},
		"":                                        {link(10, "first"), link(8000, "next")},
	} {
		if got := joined(links); got != want {
			t.Errorf("%d bytes, want %d", len(got), len(want))
		}
	}
}
