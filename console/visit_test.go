package console

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

// A period begins at the time of its first page. A time in seconds, which would be in 1970, is not taken.
func TestPeriodOfAList(t *testing.T) {
	t.Parallel()
	now := time.UnixMilli(1795201200000)
	s := &server{opts: Options{Now: func() time.Time { return now }}}
	for query, want := range map[string]time.Time{
		"since=1h": now.Add(-time.Hour), "since=1h&from=1795190000123": time.UnixMilli(1795190000123),
		"since=1h&from=1795190000": now.Add(-time.Hour), "since=1h&from=-1": now.Add(-time.Hour), "since=1h&from=x": now.Add(-time.Hour),
	} {
		v := &visit{server: s, r: httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/console/deliveries?"+query, http.NoBody)}
		if got := v.since(); got == nil || !got.Equal(want) {
			t.Errorf("%s: %v, want %v", query, got, want)
		}
	}
	v := &visit{server: s, r: httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/console/deliveries?from=1795190000123", http.NoBody)}
	if got := v.since(); got != nil {
		t.Errorf("without a period: %v", got)
	}
}
