package main

import (
	"net/http"
	"strings"
	"testing"
)

// Requests that net/http would answer itself are answered with problem documents.
func TestTheListenerAnswersProblems(t *testing.T) {
	t.Parallel()
	r := newInstallation(t, sharedRedis(t), "").start(t)
	for name, change := range map[string]struct {
		request func(*http.Request)
		status  int
	}{
		"OPTIONS *":         {func(r *http.Request) { r.Method, r.URL.Opaque = http.MethodOptions, "*" }, http.StatusNotFound},
		"a head of 80 KiB":  {func(r *http.Request) { r.Header.Set("X-Long", strings.Repeat("x", 80<<10)) }, http.StatusRequestHeaderFieldsTooLarge},
		"a query of 60 KiB": {func(r *http.Request) { r.URL.RawQuery = "x=" + strings.Repeat("x", 60<<10) }, http.StatusNotFound},
	} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, r.api+"/none", nil)
		if err != nil {
			t.Fatal(err)
		}
		change.request(request)
		answer, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		_ = answer.Body.Close()
		if answer.StatusCode != change.status || answer.Header.Get("Content-Type") != "application/problem+json" || answer.Header.Get("X-Request-Id") == "" {
			t.Errorf("%s: %d %v", name, answer.StatusCode, answer.Header)
		}
	}
}
