package main

import (
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"spendhook/api/gen"
)

// What a change of a subscriber means for its deliveries, seen from outside.
func TestDisablingHoldsEnablingReleasesAndDeletingCancels(t *testing.T) {
	t.Parallel()
	d := newInstallation(t, sharedRedis(t), "delivery:\n  schedule: ["+strings.Repeat("1s, ", 49)+"1s]\n").start(t)
	var well, later atomic.Bool
	e := newEndpoint(t, nil)
	e.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if later.Load() {
			w.Header().Set("Retry-After", "3600")
		}
		if !well.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	path := "/api/v1/subscribers/" + e.subscribe(t, d, "PAYMENT_PAID").UUID.String()
	change := func(method, body string, want int) {
		t.Helper()
		if got, _, answer := d.do(t, method, path, body); got != want {
			t.Fatalf("%s %s: %d %s", method, body, got, answer)
		}
	}
	becomes := func(event, what string, ok func(gen.Delivery) bool) {
		t.Helper()
		eventually(t, patience, event+" "+what, func() bool {
			found, known := d.deliveries(t, "")[event+"."+e.subscriber.String()]
			return known && ok(found)
		})
	}
	retrying := func(d gen.Delivery) bool { return d.Status == gen.DeliveryStatusRETRYING }

	d.cli(t, eventLines(0, 1, time.Now()), "event", "send", "-f", "-").want(t, exitOK, "refused 0", "")
	becomes("evt_0", "is retried", retrying)
	change(http.MethodPatch, `{"enabled":false}`, http.StatusOK)
	becomes("evt_0", "is held", func(d gen.Delivery) bool { return retrying(d) && d.NextAttemptAt == nil })
	well.Store(true)
	change(http.MethodPatch, `{"enabled":true}`, http.StatusOK)
	becomes("evt_0", "is delivered", func(d gen.Delivery) bool { return d.Status == gen.DeliveryStatusDELIVERED })

	well.Store(false)
	later.Store(true) // no attempt comes to find the subscriber gone
	d.cli(t, eventLines(1, 1, time.Now()), "event", "send", "-f", "-").want(t, exitOK, "refused 0", "")
	becomes("evt_1", "is retried", retrying)
	change(http.MethodDelete, "", http.StatusNoContent)
	becomes("evt_1", "is cancelled", func(d gen.Delivery) bool { return d.Status == gen.DeliveryStatusCANCELLED })
	change(http.MethodDelete, "", http.StatusNotFound)
}
