package main

import (
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
)

// adminTable is what the admin listener shows to everyone who reaches it. Think
// of that before a line is added.
var adminTable = []string{
	"GET /debug/pprof/", "GET /debug/pprof/profile", "GET /debug/pprof/symbol", "GET /debug/pprof/trace",
	"GET /healthz", "GET /metrics", "GET /readyz",
}

// Neither listener serves what is the other's, with the best token or without.
func TestTheListenersAreApart(t *testing.T) {
	t.Parallel()
	routes := slices.Sorted(maps.Keys(newAdmin(nil, nil, newRegistry()).routes()))
	if !slices.Equal(routes, adminTable) {
		t.Errorf("the admin listener serves %q, the table has %q", routes, adminTable)
	}
	d := newHouse(t, sharedRedis(t), "").start(t)
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
	if _, metrics := get(t, d.admin+"/metrics"); strings.Contains(metrics, testCompany) {
		t.Error("the metrics name a company")
	}
}
