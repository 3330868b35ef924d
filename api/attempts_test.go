package api

import (
	"net/http"
	"strings"
	"testing"

	"spendhook/api/gen"
)

// Each attempt shows its URL, without the query, and the address that it reached. So the attempts before
// and after a change of the URL can be told apart.
func TestAttemptsShowWhereTheyWent(t *testing.T) {
	t.Parallel()
	h := setup(t)
	former, now := answers(t, http.StatusServiceUnavailable), answers(t, http.StatusOK)
	sub := create(h, former+"/hook?key=hush", "PAYMENT_PAID")
	h.call("POST", "/api/v1/events", event("paid")).want(http.StatusAccepted)
	path := "/api/v1/deliveries/paid." + sub.UUID.String()
	ends := func(status gen.DeliveryStatus) gen.DeliveryDetail {
		eventually(t, func() bool {
			a := h.call("GET", path, "")
			return a.Code == http.StatusOK && as[gen.DeliveryDetail](a).Status == status
		})
		return as[gen.DeliveryDetail](h.call("GET", path, ""))
	}
	before := len(ends("DEAD").Attempts)
	h.call("PATCH", "/api/v1/subscribers/"+sub.UUID.String(), `{"callbackUrl":"`+now+`"}`).want(http.StatusOK)
	h.call("POST", path+"/retry", "").want(http.StatusAccepted)
	for i, a := range ends("DELIVERED").Attempts {
		url, version := former+"/hook", 0
		if i >= before {
			url, version = now+"/", 1
		}
		if strings.TrimSuffix(a.URL, "/") != strings.TrimSuffix(url, "/") || a.URLVersion != version || a.Address != "127.0.0.1" {
			t.Errorf("attempt %d went to %s (%d) at %s, want %s (%d)", a.Number, a.URL, a.URLVersion, a.Address, url, version)
		}
	}
	if h.seen.count("hush") > 1 { // the answer to the creation
		t.Error("the query of the URL is shown")
	}
	for range 10 { // former URLs beyond the tenth are forgotten
		h.call("PATCH", "/api/v1/subscribers/"+sub.UUID.String(), `{"callbackUrl":"`+former+`"}`).want(http.StatusOK)
		h.call("PATCH", "/api/v1/subscribers/"+sub.UUID.String(), `{"callbackUrl":"`+now+`"}`).want(http.StatusOK)
	}
	if a := ends("DELIVERED").Attempts[0]; a.URL != "" || a.URLVersion != 0 {
		t.Errorf("after many changes: %s, %d", a.URL, a.URLVersion)
	}
	h.call("DELETE", "/api/v1/subscribers/"+sub.UUID.String(), "").want(http.StatusNoContent)
	if a := ends("DELIVERED").Attempts[0]; a.URL != "" || a.Address == "" {
		t.Errorf("of a deleted subscriber: %s, %s", a.URL, a.Address)
	}
}
