package main

import (
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"spendhook/audit"
)

// adminTable lists the routes of the admin listener. They need no authentication: anyone who
// reaches the listener can use them.
var adminTable = []string{
	"GET /debug/pprof/", "GET /debug/pprof/profile", "GET /debug/pprof/symbol", "GET /debug/pprof/trace",
	"GET /healthz", "GET /metrics", "GET /readyz", "POST /-/reload",
}

// adminOfAll returns an admin with all routes enabled.
func adminOfAll() *admin {
	a := newAdmin(nil, nil, newRegistry())
	a.profiles, a.reload = true, func(audit.Actor, string) (reloaded, error) { return reloaded{}, nil }
	return a
}

// The API's listener serves no admin route, and the admin listener no API route.
func TestListenersServeOnlyTheirOwnRoutes(t *testing.T) {
	t.Parallel()
	routes := slices.Sorted(maps.Keys(adminOfAll().routes()))
	if !slices.Equal(routes, adminTable) {
		t.Errorf("the admin listener serves %q, the table has %q", routes, adminTable)
	}
	d := newInstallation(t, sharedRedis(t), "").start(t)
	for _, route := range routes {
		method, path, _ := strings.Cut(route, " ")
		if status, _, _ := d.do(t, method, path, ""); status != http.StatusNotFound {
			t.Errorf("the API's listener answers %s with %d", route, status)
		}
	}
	for _, path := range []string{"/", "/docs", "/openapi.json", "/api/v1/events", "/api/v1/subscribers", "/.well-known/jwks.json", "/debug/vars", "/debug/pprof/cmdline"} {
		if status, body := get(t, d.admin+path); status != http.StatusNotFound {
			t.Errorf("the admin listener answers %s with %d %s", path, status, body)
		}
	}
	for host, want := range map[string]int{
		"localhost:9090": 200, "127.0.0.1": 200, "[::1]:9090": 200, "[::1]": 200,
		"evil.example": 403, "evil.example:9090": 403, "127.0.0.1.evil.example": 403, "192.0.2.1": 403, "": 403,
	} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/healthz", http.NoBody)
		r.Host = host
		rec := httptest.NewRecorder()
		loopbackOnly(newAdmin(nil, nil, newRegistry()).handler()).ServeHTTP(rec, r)
		if rec.Code != want {
			t.Errorf("the admin listener answers the host %q with %d, want %d", host, rec.Code, want)
		}
	}
	r, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, d.admin+"/metrics", http.NoBody)
	r.Host = "evil.example"
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusForbidden {
		t.Errorf("a request with another Host header reads the metrics: %d", resp.StatusCode)
	}
	if _, metrics := get(t, d.admin+"/metrics"); strings.Contains(metrics, testCompany) {
		t.Error("the metrics name a company")
	}
}
