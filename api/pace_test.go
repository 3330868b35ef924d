package api

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
)

func TestPacerDelaysBytesAboveTheRate(t *testing.T) {
	t.Parallel()
	now := time.Now()
	p := newPacer(100, func() time.Time { return now })
	for i, want := range []time.Duration{0, time.Second, 2 * time.Second} { // the first second is the burst
		if got := p.add("a", 100); got != want {
			t.Errorf("%d bytes at 100 a second: %v, want %v", (i+1)*100, got, want)
		}
	}
	if got := p.add("b", 100); got != 0 {
		t.Errorf("the delay of another account is %v", got)
	}
	now = now.Add(time.Second)
	if got := p.add("a", 0); got != time.Second {
		t.Errorf("a second later %v", got)
	}
	now = now.Add(time.Hour)
	if got := p.add("a", 100); got != 0 {
		t.Errorf("an hour later %v: the burst is not a second", got)
	}
}

func TestListsAreRefusedWhileAnAccountIsFarAboveTheRate(t *testing.T) {
	t.Parallel()
	now := time.Now()
	s := &server{pacer: newPacer(100, func() time.Time { return now })}
	s.pacer.add("a", 300)
	if err := s.checkPace("a"); err != nil {
		t.Errorf("after 2 s above the rate: %v", err)
	}
	s.pacer.add("a", 1)
	if err := s.checkPace("a"); err == nil {
		t.Error("more than 2 s above the rate, and not refused")
	}
	if err := s.checkPace("b"); err != nil {
		t.Errorf("another account: %v", err)
	}
}

// The answers of a company that reads lists above the rate end later.
func TestReadingIsPaced(t *testing.T) {
	t.Parallel()
	h := setup(t, func(o *Options) { o.AnswerBytes = 16 << 20 }) // 8 MiB a second
	large := `{"id":"e-%d","event":"A","timestamp":%q,"metadata":{"x":"` + strings.Repeat("x", 250<<10) + `"}}`
	for i := range 20 {
		h.call("POST", "/api/v1/events", fmt.Sprintf(large, i, now())).want(http.StatusAccepted)
	}
	started, read := time.Now(), 0
	for range 8 {
		read += h.call("GET", "/api/v1/events?size=100", "").want(http.StatusOK).Body.Len()
	}
	if took, want := time.Since(started), time.Duration(float64(read)/(8<<20)*float64(time.Second))-paceBurst; took < want {
		t.Errorf("%d bytes were read in %v, want %v or more", read, took, want)
	}
	other := uuid.New()
	h.call("GET", "/api/v1/events", "", bearer(h.mint(&other, allScopes))).want(http.StatusOK)
}

// Each list, the feed and the export are refused while the account is far above the rate.
func TestEveryListIsPaced(t *testing.T) {
	t.Parallel()
	h := setup(t)
	sub := create(h, hooks)
	s, err := newServer(h.options)
	if err != nil {
		t.Fatal(err)
	}
	s.pacer.add(h.company.String(), 1<<40)
	h.handler = s.outer(s.identify(s.router))
	targets := map[string]option{
		"/api/v1/audit?from=2026-01-01T00:00:00Z":            header("Accept", mediaNDJSON),
		"/api/v1/subscribers/" + sub.UUID.String() + "/feed": header("Accept", mediaJSON),
	}
	for path, operations := range documentedRoutes(t) {
		if get := operations[http.MethodGet]; get != nil && get.query["size"] != nil && !get.ofAll() {
			targets[path] = header("Accept", mediaJSON)
		}
	}
	for target, accept := range targets {
		if a := h.call("GET", target, "", accept).want(http.StatusServiceUnavailable, "OVERLOADED"); a.Header().Get("Retry-After") == "" {
			t.Errorf("%s: no Retry-After", target)
		}
	}
	other := uuid.New()
	h.call("GET", "/api/v1/events", "", bearer(h.mint(&other, allScopes))).want(http.StatusOK)
}

// The bytes of a feed and of an export count; those of a single resource do not.
func TestFeedsAndExportsCountTheirBytes(t *testing.T) {
	t.Parallel()
	h := setup(t)
	sub := create(h, hooks)
	s, err := newServer(h.options)
	if err != nil {
		t.Fatal(err)
	}
	h.handler = s.outer(s.identify(s.router))
	path := "/api/v1/subscribers/" + sub.UUID.String()
	for _, c := range []struct {
		target, accept string
		counts         bool
	}{
		{path, mediaJSON, false},
		{path + "/feed", mediaJSON, true},
		{"/api/v1/audit?from=2026-01-01T00:00:00Z", mediaNDJSON, true},
	} {
		name := h.company.String()
		before, _ := s.pacer.covered.Get(name)
		r := httptest.NewRequestWithContext(t.Context(), "GET", c.target, nil)
		bearer(h.token)(r)
		r.Header.Set("Accept", c.accept)
		w := httptest.NewRecorder()
		if h.handler.ServeHTTP(w, r); w.Code != http.StatusOK {
			t.Errorf("%s: %d", c.target, w.Code)
		}
		if after, _ := s.pacer.covered.Get(name); after.After(before) != c.counts {
			t.Errorf("%s: its bytes count: %v, want %v", c.target, after.After(before), c.counts)
		}
	}
}
