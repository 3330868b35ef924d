package api

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/redis/go-redis/v9"

	"spendhook/internal/redistest"
)

// errLoading is a temporary error of Redis.
var errLoading = fmt.Errorf("sekrit: %w", redis.ErrClosed)

func TestUnknownErrorsAndPanicsArePlain500(t *testing.T) {
	t.Parallel()
	client := redistest.New(t)
	h := setupOn(t, client)
	client.AddHook(faults{func(cmd redis.Cmder) error {
		switch {
		case commandNames(cmd, "sick-panic"):
			panic("kaboom sekrit")
		case commandNames(cmd, "sick-loading"):
			return errLoading
		case commandNames(cmd, "sick-error"):
			return errors.New("WRONGTYPE sekrit")
		}
		return nil
	}})
	h.call("GET", "/api/v1/deliveries/sick-loading."+uuid.NewString(), "").want(http.StatusServiceUnavailable, "UNAVAILABLE")
	for _, id := range []string{"sick-panic", "sick-error"} {
		path := "/api/v1/deliveries/" + id + "." + uuid.NewString()
		a := h.call("GET", path, "", header("X-Request-Id", "req-"+id)).want(http.StatusInternalServerError, "INTERNAL_ERROR")
		if p := a.problem(); p.RequestID != "req-"+id || p.Instance != path || strings.Contains(a.Body.String(), "sekrit") {
			t.Errorf("%s", a.Body)
		}
		if h.seen.count("request_id=req-"+id) == 0 || h.seen.count("sekrit") == 0 {
			t.Errorf("the cause of %s is not in the log", id)
		}
	}
}

func TestRequestID(t *testing.T) {
	t.Parallel()
	h := setup(t)
	for sent, kept := range map[string]bool{
		"abc-1.2_3": true, strings.Repeat("x", 128): true, strings.Repeat("x", 129): false, "a b": false, "": false, "é": false, "a\"b": false,
	} {
		got := h.call("GET", "/api/v1/event-types", "", header("X-Request-Id", sent)).Header().Get("X-Request-Id")
		if (got == sent) != kept || !validID(got) {
			t.Errorf("sent %q, got %q", sent, got)
		}
	}
}

func TestMetricsHaveRoutesNotPaths(t *testing.T) {
	t.Parallel()
	h := setup(t)
	before := testutil.CollectAndCount(h.metrics())
	for range 3 {
		h.call("GET", "/api/v1/subscribers/"+uuid.NewString(), "").want(http.StatusNotFound)
		h.call("GET", "/nothing/"+uuid.NewString(), "").want(http.StatusNotFound)
		h.call("BREW", "/api/v1/events", "").want(http.StatusMethodNotAllowed)
	}
	get := h.metrics().WithLabelValues("/api/v1/subscribers/{uuid}", "GET", "404")
	if n := testutil.ToFloat64(get); n != 3 {
		t.Errorf("%v requests counted, want 3", n)
	}
	if n := testutil.ToFloat64(h.metrics().WithLabelValues(noRoute, noMethod, "404")); n != 3 {
		t.Errorf("%v requests of no route counted, want 3", n)
	}
	if after := testutil.CollectAndCount(h.metrics()); after > before+2 {
		t.Errorf("%d series became %d", before, after)
	}
}

// TestSecretsAreShownOnce searches all answers and log lines for signing secrets, with
// Redis up and after it was killed.
func TestSecretsAreShownOnce(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{})
	h := setupOn(t, server.Client())
	sub := create(h, hooks)
	path := "/api/v1/subscribers/" + sub.UUID.String()
	h.call("GET", path, "")
	h.call("GET", "/api/v1/subscribers", "")
	h.call("PATCH", path, `{"name":"y"}`)
	h.call("PATCH", path, `{"secret":"whsec_mine"}`)
	h.call("POST", "/api/v1/subscribers/add-event", `{"callbackUrl":"`+hooks+`","event":"B"}`)
	h.call("POST", "/api/v1/events", event("e")).want(http.StatusAccepted)
	h.call("GET", "/api/v1/events/e/explain", "")
	h.call("POST", path+"/test", "")
	server.Kill()
	h.call("PATCH", path, `{"name":"z"}`).want(http.StatusServiceUnavailable)
	h.call("POST", path+"/rotate-secret", "").want(http.StatusServiceUnavailable)
	if n := h.seen.count(strings.TrimPrefix(sub.Secret, "whsec_")); n != 1 {
		t.Errorf("the secret is shown %d times, want once", n)
	}
	if h.seen.count("whsec_mine") > 0 || h.seen.count(h.token) > 0 {
		t.Error("a submitted secret or a token is repeated")
	}
}
