package main

import (
	"html"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"

	"spendhook/api/gen"
)

// submit sends a form of the console, and returns the location or else the page of the answer.
func (v *visitor) submit(wanted int, path string, fields url.Values) string {
	v.t.Helper()
	fields.Set("token", v.token())
	status, header, page := v.post(path, fields, "Sec-Fetch-Site", "same-origin")
	if status != wanted {
		v.t.Fatalf("%s %v: %d %s", path, fields, status, page)
	}
	if location := header.Get("Location"); location != "" {
		return location
	}
	return html.UnescapeString(page)
}

// TestConsoleOfANewDeveloper: a subscriber is created, an event is sent to it, and both go again, without the API.
func TestConsoleOfANewDeveloper(t *testing.T) {
	t.Parallel()
	w := newStory(t)
	v := newVisitor(t, w.daemon.api)
	v.enter(w.daemon.consoleLink(t))
	if _, _, page := v.get("/console/subscribers"); !strings.Contains(page, "/console/subscribers/new") {
		t.Fatalf("an empty list does not lead to the form: %s", page)
	}
	if _, _, page := v.get("/console/subscribers/new?event=CARD_LOCKED"); !strings.Contains(page, ">CARD_LOCKED\n</textarea>") && !regexp.MustCompile(`value="CARD_LOCKED" checked`).MatchString(page) {
		t.Errorf("the type of the query is not chosen: %s", page)
	}
	fields := func() url.Values {
		return url.Values{
			"name": {"Ledger"}, "callbackUrl": {w.receiver + "/well/ledger"}, "type": {"PAYMENT_PAID", "CARD_CREATION_REQUEST_CREATED"}, "events": {"ORDER_*\n"},
			"filter": {`metadata.amount != "0"`}, "headers": {"X-Api-Key: hunter22\nx-team: ledger\n"},
		}
	}
	wrong := fields()
	wrong.Set("filter", "metadata.")
	wrong.Set("headers", "X-Api-Key hunter22")
	wrong.Set("retrySchedule", "5 x")
	wrong.Set("perSecond", "7.5")
	for _, says := range []string{"must be a name, a colon and a value", "must be whole numbers", `value="5 x"`, `value="7.5"`, "X-Api-Key hunter22", "ORDER_*", `value="PAYMENT_PAID" checked`, "New subscriber", `value="Ledger"`} {
		if page := v.submit(http.StatusBadRequest, "/console/subscribers/new", wrong); !strings.Contains(page, says) {
			t.Errorf("a wrong form does not say %q: %s", says, page)
		}
	}
	if page := v.submit(http.StatusOK, "/console/subscribers/new/filter-test", fields()); !strings.Contains(page, "no events to try them on") || !strings.Contains(page, `action="/console/subscribers/new"`) {
		t.Errorf("tried: %s", page)
	}
	page := v.submit(http.StatusOK, "/console/subscribers/new", fields())
	if !strings.Contains(page, "whsec_") {
		t.Fatalf("no secret: %s", page)
	}
	if page := v.submit(http.StatusConflict, "/console/subscribers/new", fields()); !strings.Contains(page, "has this callback URL") {
		t.Errorf("a second time: %s", page)
	}
	var list struct {
		Content []gen.Subscriber `json:"content"`
	}
	w.daemon.read(t, "/api/v1/subscribers", &list)
	if len(list.Content) != 1 {
		t.Fatalf("%+v", list)
	}
	sub := list.Content[0]
	if slices.Sort(sub.Events); !slices.Equal(sub.Events, []string{"CARD_CREATION_REQUEST_CREATED", "ORDER_*", "PAYMENT_PAID"}) || len(*sub.Headers) != 2 {
		t.Errorf("%+v", sub)
	}
	path := "/console/subscribers/" + sub.UUID.String()

	if _, _, form := v.get(path + "/edit"); !strings.Contains(form, "X-Api-Key: ***") || strings.Contains(form, "hunter22") || !strings.Contains(form, "ORDER_*") {
		t.Errorf("the form: %s", form)
	}
	v.submit(http.StatusSeeOther, path+"/edit", url.Values{"header": {"X-Api-Key", "X-Team"}, "headers": {"X-Api-Key: ***\nX-More: 1"}, "events": {"PAYMENT_PAID"}})
	sub = gen.Subscriber{UUID: sub.UUID}
	w.daemon.read(t, "/api/v1/subscribers/"+sub.UUID.String(), &sub)
	if h := *sub.Headers; len(h) != 2 || h["X-Api-Key"] == "" || h["X-More"] == "" || !slices.Equal(sub.Events, []string{"PAYMENT_PAID"}) {
		t.Errorf("headers %v, types %v", h, sub.Events)
	}

	w.emitsAnEvent(v)
	_, _, shown := v.get(path)
	revision := regexp.MustCompile(`name="revision" value="([^"]+)"`).FindStringSubmatch(shown)[1]
	v.submit(http.StatusSeeOther, path+"/edit", url.Values{"name": {"General ledger"}})
	for _, stale := range []url.Values{{"revision": {revision}}, {}} {
		v.submit(http.StatusPreconditionFailed, path+"/delete", stale)
	}
	_, _, shown = v.get(path)
	revision = regexp.MustCompile(`name="revision" value="([^"]+)"`).FindStringSubmatch(shown)[1]
	if to := v.submit(http.StatusSeeOther, path+"/delete", url.Values{"revision": {revision}}); to != "/console/subscribers?done=deleted" {
		t.Error(to)
	}
	if status, _, _ := v.get(path); status != http.StatusNotFound {
		t.Errorf("deleted: %d", status)
	}
	_, _, log := w.daemon.do(t, http.MethodGet, "/api/v1/audit", "")
	for _, action := range []string{"subscriber.create", "subscriber.delete", "event.emit", "event.erase"} {
		if strings.Count(log, `"`+action+`"`) != 1 {
			t.Errorf("%s in the audit log: %s", action, log)
		}
	}
	if strings.Contains(log, "hunter22") {
		t.Errorf("the audit log has a header's value: %s", log)
	}
}

// emitsAnEvent sends an event by the form, twice, and erases it when it has arrived.
func (w *story) emitsAnEvent(v *visitor) {
	t := w.t
	t.Helper()
	_, _, page := v.get("/console/events/new?event=PAYMENT_PAID")
	value := func(name string) string {
		return regexp.MustCompile(` name="` + name + `" value="([^"]*)"`).FindStringSubmatch(page)[1]
	}
	fields := url.Values{"id": {value("id")}, "event": {value("event")}, "timestamp": {value("timestamp")}, "metadata": {`{"amount":"12.50"}`}}
	event := "/console/events/" + developerCompany.String() + "/" + value("id")
	if to := v.submit(http.StatusSeeOther, "/console/events/new", fields); to != event+"?done=emitted" {
		t.Error(to)
	}
	if to := v.submit(http.StatusSeeOther, "/console/events/new", fields); to != event+"?done=known" {
		t.Error(to)
	}
	eventually(t, patience, "it has settled", func() bool {
		_, _, page := v.get(event)
		return strings.Contains(page, "Erase the payload")
	})
	for field, wrong := range map[string]string{
		"metadata": `{"amount":1,"amount":2}`, "timestamp": "yesterday", "event": "SUBSCRIBER_FAILING", "id": "spendhook:1",
	} {
		bad := url.Values{"id": {"another"}, "event": {"PAYMENT_PAID"}, "timestamp": {value("timestamp")}, "metadata": {"{}"}}
		bad.Set(field, wrong)
		if page := v.submit(http.StatusBadRequest, "/console/events/new", bad); !strings.Contains(page, "<strong>"+field+"</strong>") || !strings.Contains(page, html.UnescapeString(wrong)) {
			t.Errorf("%s: %s", wrong, page)
		}
	}
	fields.Set("metadata", "{}")
	v.submit(http.StatusConflict, "/console/events/new", fields)
	if _, _, page := v.get(event + "?payload=true"); !strings.Contains(page, "12.50") {
		t.Errorf("no payload: %s", page)
	}
	if to := v.submit(http.StatusSeeOther, event+"/erase", url.Values{}); to != event+"?done=erased" {
		t.Error(to)
	}
	if _, _, page := v.get(event + "?payload=true"); strings.Contains(page, "12.50") {
		t.Errorf("erased: %s", page)
	}
	if n := w.came.Load(); n != 1 {
		t.Errorf("it came %d times", n)
	}
}

// session opens a session of all companies.
func (w *story) session(t *testing.T, flags ...string) *visitor {
	t.Helper()
	args := append([]string{"console", "--url", w.daemon.api, "--token-file", secretFile(t, w.mint("")), "--all-companies"}, flags...)
	v := newVisitor(t, w.daemon.api)
	v.enter(strings.TrimSpace(command(t, "", args...).stdout))
	return v
}

// TestConsoleDocumentsEventTypes needs a session of the platform.
func TestConsoleDocumentsEventTypes(t *testing.T) {
	t.Parallel()
	w := newStory(t)
	company := newVisitor(t, w.daemon.api)
	company.enter(w.daemon.consoleLink(t))
	if page := company.submit(http.StatusForbidden, "/console/event-types", url.Values{"name": {"ORDER_PAID"}, "description": {"Paid."}}); !strings.Contains(page, "Not allowed") {
		t.Error(page)
	}
	support := w.session(t, "--scope", "platform events:read")
	support.submit(http.StatusForbidden, "/console/event-types", url.Values{"name": {"ORDER_PAID"}, "description": {"Paid."}})
	if _, _, page := support.get("/console/event-types"); strings.Contains(page, "Document a type") {
		t.Errorf("support: %s", page)
	}
	v := w.session(t)
	fields := url.Values{"name": {"ORDER_PAID"}, "description": {"An order was paid."}, "schema": {`{"type":"object"`}, "example": {`{"amount":"1"}`}}
	if page := v.submit(http.StatusBadRequest, "/console/event-types", fields); !strings.Contains(page, "<strong>schema</strong>") || !strings.Contains(page, `{"type":"object"`) {
		t.Errorf("a wrong schema: %s", page)
	}
	fields.Set("schema", `{"type":"object"}`)
	if to := v.submit(http.StatusSeeOther, "/console/event-types", fields); to != "/console/event-types?name=ORDER_PAID&done=documented" {
		t.Error(to)
	}
	if _, _, page := v.get("/console/event-types?name=ORDER_PAID"); !strings.Contains(page, "An order was paid.") || !strings.Contains(page, "Remove the documentation") {
		t.Errorf("documented: %s", page)
	}
	v.submit(http.StatusSeeOther, "/console/event-types/delete", url.Values{"name": {"ORDER_PAID"}})
	v.submit(http.StatusNotFound, "/console/event-types/delete", url.Values{"name": {"ORDER_PAID"}})
	v.submit(http.StatusConflict, "/console/event-types", url.Values{"name": {"SUBSCRIBER_X"}, "description": {"Mine."}})
}
