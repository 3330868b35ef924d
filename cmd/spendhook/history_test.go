package main

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"spendhook/api/gen"
)

// The history in SQLite belongs to one replica: a second one does not start, and the first may start again at once.
func TestHistoryInSQLiteIsOfOneReplica(t *testing.T) {
	t.Parallel()
	url := sharedRedis(t)
	first := newInstallation(t, url, "dev: true\n"+sharedKey+"history: {enabled: true}\n")
	args := first.args()[1:]
	doctor := func(code int) finding {
		t.Helper()
		return found(t, code, "--config", args[len(args)-3], "--data-dir", first.dir, "--redis", url)["history"]
	}
	if f := doctor(exitFailure); f.Result != findingProblem || !strings.Contains(f.Remedy, "which creates the database") {
		t.Errorf("before the first start: %+v", f)
	}
	d := first.start(t)
	eventually(t, patience, "the tables are made", func() bool { return doctor(exitOK).Result == findingOK })
	second := newInstallation(t, url, "dev: true\n"+sharedKey+"history: {enabled: true}\n").begin(t)
	second.ended(t)
	if text := second.stderr.String(); second.code != exitFailure || !strings.Contains(text, "the history of several replicas needs PostgreSQL (storage.url)") {
		t.Errorf("the second replica ends with %d: %s", second.code, text)
	}
	d.stop(t)
	again := first.startChild(t)
	again.stop(t)
}

// Settled events are found by what they contain, in the API, on the command line and in the console.
func TestSearchOfTheHistory(t *testing.T) {
	t.Parallel()
	w := newStory(t, "history: {enabled: true}\n")
	w.subscribe("Ledger", "/well/ledger", "PAYMENT_PAID")
	w.emit("evt_lunch", "PAYMENT_PAID", map[string]any{"merchant": "Café Órbita, Lisbon", "amount": "12.50"})
	w.emit("evt_taxi", "PAYMENT_PAID", map[string]any{"merchant": "Táxis, Lisbon", "amount": "8.00"})
	find := func(search string) (ids []string) {
		var list gen.EventList
		w.daemon.read(t, "/api/v1/events?search="+url.QueryEscape(search), &list)
		for _, e := range list.Content {
			ids = append(ids, e.ID)
		}
		return ids
	}
	eventually(t, patience, "both are found", func() bool { return len(find("lisbon")) == 2 })
	for search, want := range map[string]string{"orbita LISBON": "evt_lunch", "metadata.amount=8.00": "evt_taxi", "porto": "", "metadata.amount=8": ""} {
		if got := strings.Join(find(search), " "); got != want {
			t.Errorf("%s: found %q, want %q", search, got, want)
		}
	}
	w.daemon.cli(t, "", "event", "list", "--search", "metadata.amount=8.00", "-o", "name").want(t, exitOK, "evt_taxi\n", "")

	v := newVisitor(t, w.daemon.api)
	v.enter(w.daemon.consoleLink(t))
	if status, _, page := v.get("/console/events?search=orbita"); status != http.StatusOK || !strings.Contains(page, "evt_lunch") || strings.Contains(page, "evt_taxi") ||
		!strings.Contains(page, `name="search" type="search" value="orbita"`) {
		t.Errorf("%d %s", status, page)
	}
}
