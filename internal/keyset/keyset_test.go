package keyset

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

func TestLife(t *testing.T) {
	t.Parallel()
	for header, want := range map[string]time.Duration{
		"":                             5 * time.Minute,
		"no-store":                     5 * time.Minute,
		"public, max-age=300":          5 * time.Minute,
		"max-age=10":                   5 * time.Minute,
		"public,Max-Age=3600":          time.Hour,
		"max-age=99999999":             24 * time.Hour,
		"max-age=99999999999999999999": 5 * time.Minute,
		"max-age=-1":                   5 * time.Minute,
	} {
		if got := life(header); got != want {
			t.Errorf("%q: %s", header, got)
		}
	}
}

// A redirect, a failure or something else than a JWK Set is an error, which is kept for five seconds.
func TestUnreadable(t *testing.T) {
	t.Parallel()
	reads := 0
	status, body := http.StatusFound, ""
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		reads++
		w.Header().Set("Location", "/elsewhere")
		w.WriteHeader(status)
		_, _ = w.Write([]byte(body))
	}))
	defer server.Close()
	from := Source{URL: server.URL, Now: time.Unix(1795167000, 0)}
	var s Set
	for range 3 {
		if _, err := s.Known(t.Context(), from); err == nil {
			t.Error("a redirect is taken")
		}
	}
	if reads != 1 {
		t.Errorf("it was read %d times", reads)
	}
	from.Now = from.Now.Add(pause)
	status, body = http.StatusOK, "no JSON"
	if _, err := s.Known(t.Context(), from); err == nil {
		t.Error("no JSON is taken")
	}
	from.Now = from.Now.Add(pause)
	body = "{}"
	for range 3 {
		if keys, err := s.Known(t.Context(), from); err != nil || len(keys) != 0 {
			t.Error(keys, err)
		}
	}
	if reads != 3 {
		t.Errorf("it was read %d times", reads)
	}
}

// When the clock is set back, neither keys nor a failure are kept for as long. A caller may be a little earlier than the one
// that read.
func TestTheClockIsSetBack(t *testing.T) {
	t.Parallel()
	reads, status := 0, http.StatusOK
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		reads++
		w.WriteHeader(status)
		_, _ = io.WriteString(w, `{"keys":[]}`)
	}))
	defer server.Close()
	var s Set
	from := Source{URL: server.URL, Now: time.Unix(1795167000, 0)}
	for n, c := range []struct {
		back   time.Duration
		status int
		reads  int
	}{
		{0, http.StatusOK, 1},
		{time.Second, http.StatusOK, 1},
		{time.Hour, http.StatusOK, 2},
		{0, http.StatusOK, 2},
		{time.Hour, http.StatusServiceUnavailable, 3},
		{time.Second, http.StatusOK, 3},
		{time.Hour, http.StatusOK, 4},
	} {
		from.Now, status = from.Now.Add(-c.back), c.status
		_, err := s.Known(t.Context(), from)
		if failed := c.reads == 3; reads != c.reads || (err != nil) != failed {
			t.Errorf("case %d: %d reads, %v", n, reads, err)
		}
	}
}

// A message by a known key does not wait while the keys are read for another one, by an unknown key.
func TestKnownKeysDoNotWait(t *testing.T) {
	t.Parallel()
	began, gate := make(chan struct{}), make(chan struct{})
	reads := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if reads++; reads == 2 {
			close(began)
			<-gate
		}
		_, _ = io.WriteString(w, `{"keys":[]}`)
	}))
	defer server.Close()
	var s Set
	from := Source{URL: server.URL, Now: time.Unix(1795167000, 0)}
	if _, err := s.Known(t.Context(), from); err != nil {
		t.Fatal(err)
	}
	from.Now = from.Now.Add(pause)
	ended := make(chan error)
	go func() {
		_, err := s.Again(t.Context(), from)
		ended <- err
	}()
	<-began
	if _, err := s.Known(t.Context(), from); err != nil {
		t.Error(err)
	}
	close(gate)
	if err := <-ended; err != nil || reads != 2 {
		t.Errorf("%v, %d reads", err, reads)
	}
}
