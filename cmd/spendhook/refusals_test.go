package main

import (
	"net/http"
	"strings"
	"testing"
)

// /readyz and a metric tell that a company is refused at its own share.
func TestCompaniesAtTheirShareAreShown(t *testing.T) {
	t.Parallel()
	h := newInstallation(t, sharedRedis(t), "limits: {company_backlog: 1}\n")
	d := h.start(t)
	newEndpoint(t, func(string) int { return http.StatusInternalServerError }).subscribe(t, d, "PAYMENT_PAID")
	shown := func(want bool) {
		t.Helper()
		_, metrics := get(t, d.admin+"/metrics")
		code, ready := get(t, d.admin+"/readyz")
		if code != http.StatusOK || strings.Contains(metrics, "\nspendhook_companies_refused 1\n") != want || strings.Contains(ready, "events of 1 companies were refused") != want {
			t.Errorf("%d %s", code, ready)
		}
	}
	shown(false)
	if code, _, body := d.do(t, http.MethodPost, "/api/v1/events", eventBody("first")); code != http.StatusAccepted {
		t.Fatalf("%d %s", code, body)
	}
	if code, _, body := d.do(t, http.MethodPost, "/api/v1/events", eventBody("second")); code != http.StatusTooManyRequests || !strings.Contains(body, "BACKLOG_FULL") {
		t.Fatalf("%d %s", code, body)
	}
	shown(true)
}
