package main

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"spendhook/internal/pgtest"
)

// spendRequests has a request to each part of the API that needs the database.
func spendRequests() [][3]string {
	card := `{"type":"VIRTUAL","alias":"A","userUuid":"` + annUUID + `"}`
	return [][3]string{
		{http.MethodGet, "/api/v3/cards", ""},
		{http.MethodGet, "/api/v3/cards/" + cardUUID, ""},
		{http.MethodPost, "/api/v3/cards", card},
		{http.MethodPost, "/api/v3/cards/bulk-create", `{"cardsRequests":[` + card + `]}`},
		{http.MethodPatch, "/api/v3/cards/" + cardUUID + "/lock", `{"lock":false}`},
		{http.MethodDelete, "/api/v3/cards/" + cardUUID, ""},
		{http.MethodGet, "/api/v3/reimbursements", ""},
		{http.MethodGet, "/api/v1/locations", ""},
		{http.MethodGet, "/api/v2/locations/" + locationUUID, ""},
		{http.MethodGet, "/api/v2/billing-statements/current", ""},
	}
}

// outage is a daemon without its database, and a subscriber.
type outage struct {
	daemon   *running
	endpoint *endpoint
	emitted  int
}

// wantOnlyDeliveries checks that requests that need the database are answered 503 in time,
// that an event is delivered, and that metrics and readiness show the outage.
func (o *outage) wantOnlyDeliveries(t *testing.T) {
	t.Helper()
	var all []time.Duration
	for _, r := range spendRequests() {
		began := time.Now()
		status, header, body := o.daemon.do(t, r[0], r[1], r[2])
		all = append(all, time.Since(began))
		if status != http.StatusServiceUnavailable || header.Get("Retry-After") == "" {
			t.Errorf("%s %s: %d %s", r[0], r[1], status, body)
		}
	}
	wantInTime(t, all)
	o.wantDelivery(t)
	o.wantState(t, "\nspendhook_database_up 0\n", "the spend database does not answer")
}

func (o *outage) wantDelivery(t *testing.T) {
	t.Helper()
	o.daemon.cli(t, eventLines(o.emitted, 1, time.Now()), "event", "send", "-f", "-").want(t, exitOK, "refused 0", "")
	o.emitted++
	o.endpoint.awaits(t, o.emitted)
}

// wantState waits for the metric and the warning; the daemon is ready throughout.
func (o *outage) wantState(t *testing.T, metric, warning string) {
	t.Helper()
	eventually(t, patience, "it shows"+metric, func() bool {
		_, metrics := get(t, o.daemon.admin+"/metrics")
		code, ready := get(t, o.daemon.admin+"/readyz")
		if code != http.StatusOK {
			t.Errorf("/readyz: %d %s", code, ready)
		}
		return strings.Contains(metrics, metric) && strings.Contains(ready, warning)
	})
}

func (o *outage) wantEverything(t *testing.T) {
	t.Helper()
	eventually(t, patience, "the database is used again", func() bool {
		status, _, _ := o.daemon.do(t, http.MethodGet, "/api/v3/cards", "")
		return status == http.StatusOK
	})
	o.wantState(t, "\nspendhook_database_up 1\n", `"warnings":[`)
}

// A daemon that has its token keys starts without its database and delivers. Once the database is back, the daemon
// serves the spend API without a restart, also after repeated outages.
func TestDatabaseIsDown(t *testing.T) {
	t.Parallel()
	server := pgtest.Start(t)
	h := newInstallation(t, sharedRedis(t), quickRetries)
	h.database = server.URL()
	h.start(t).stop(t)
	server.Stop()
	o := &outage{daemon: h.start(t), endpoint: newEndpoint(t, nil)}
	o.endpoint.subscribe(t, o.daemon, "PAYMENT_PAID", "CARD_CREATION_REQUEST_CREATED")
	o.wantOnlyDeliveries(t)

	server.Restart()
	o.wantEverything(t)
	h.importData(t, spendLines(), "-").want(t, exitOK, "imported 6", "")

	server.Stop()
	h.importData(t, spendLines(), "-").want(t, exitFailure, "", "the database is unavailable")
	o.wantOnlyDeliveries(t)
	server.Restart()
	o.wantEverything(t)
	status, _, body := o.daemon.do(t, http.MethodGet, "/api/v3/cards/"+cardUUID, "")
	if status != http.StatusOK || !strings.Contains(body, "BLOCKED") {
		t.Errorf("a change that was refused has changed the card: %d %s", status, body)
	}
	bulk := fmt.Sprintf(`{"cardsRequests":[{"type":"VIRTUAL","alias":"A","userUuid":"%s"}]}`, annUUID)
	if status, _, body := o.daemon.do(t, http.MethodPost, "/api/v3/cards/bulk-create", bulk); status != http.StatusAccepted {
		t.Fatalf("%d %s", status, body)
	}
	o.endpoint.awaits(t, o.emitted+1)
	o.daemon.stop(t)
	log := o.daemon.stderr.String()
	if down, back := strings.Count(log, "the spend database is unavailable"), strings.Count(log, "the spend database is available again"); down != 2 || back != 2 {
		t.Errorf("%d log lines say that it is unavailable and %d that it is available again, want 2 and 2", down, back)
	}
}
