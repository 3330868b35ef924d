package api

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"spendhook/api/gen"
)

// slowReader reads nothing of an answer until its gate opens.
type slowReader struct {
	*httptest.ResponseRecorder
	begun *sync.WaitGroup
	once  sync.Once
	gate  chan struct{}
}

func (w *slowReader) WriteHeader(status int) {
	w.ResponseRecorder.WriteHeader(status)
	w.once.Do(w.begun.Done)
	<-w.gate
}

// Thirty-two large pages that one company reads at once take no more than half of
// the memory for answers, and another company is served.
func TestAnswersUnderWayAreBounded(t *testing.T) { // not parallel: it looks at the heap
	const readers = 32
	h := setup(t, func(o *Options) { o.Timeout = 10 * time.Second })
	large := `{"id":"e-%d","event":"A","timestamp":%q,"metadata":{"x":"` + strings.Repeat("x", 250<<10) + `"}}`
	for i := range 20 {
		h.call("POST", "/api/v1/events", fmt.Sprintf(large, i, now())).want(http.StatusAccepted)
	}
	page := h.call("GET", "/api/v1/events?size=100", "").want(http.StatusOK)
	list := as[gen.EventList](page)
	if list.Partial == nil || !*list.Partial || list.NextCursor == "" || page.Body.Len() > pageBytes+256<<10 {
		t.Fatalf("%d events in %d bytes, partial %v, next %q", len(list.Content), page.Body.Len(), list.Partial, list.NextCursor)
	}
	h.handler.(http.HandlerFunc)(httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), "GET", "/none", nil))
	before := heap()

	var begun, done sync.WaitGroup
	gate := make(chan struct{})
	begun.Add(readers)
	codes := make(chan int, readers)
	for range readers {
		done.Go(func() {
			w := &slowReader{ResponseRecorder: httptest.NewRecorder(), begun: &begun, gate: gate}
			r := httptest.NewRequestWithContext(t.Context(), "GET", "/api/v1/events?size=100", nil)
			bearer(h.token)(r)
			h.handler.ServeHTTP(w, r)
			codes <- w.Code
		})
	}
	// A refusal after the time-out begins an answer too.
	begun.Wait()
	if grown := heap() - before; grown > 64<<20 {
		t.Errorf("the heap grew by %d MiB", grown>>20)
	}
	other := uuid.New()
	h.call("GET", "/api/v1/events", "", bearer(h.mint(&other, allScopes))).want(http.StatusOK)
	close(gate)
	done.Wait()
	served := 0
	for range readers {
		switch code := <-codes; code {
		case http.StatusOK:
			served++
		case http.StatusServiceUnavailable:
		default:
			t.Errorf("status %d", code)
		}
	}
	if most := 64 << 20 / pageBytes; served == 0 || served > most/2+1 {
		t.Errorf("%d of %d were served at once", served, readers)
	}
	h.call("GET", "/api/v1/events?size=100", "").want(http.StatusOK)
}

func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// An answer of a list is written as it is encoded.
func TestListsAreStreams(t *testing.T) {
	t.Parallel()
	h := setup(t)
	for i := range 3 {
		body := fmt.Sprintf(`{"id":"e-%d","event":"A","timestamp":%q,"metadata":{"x":%q}}`, i, now(), strings.Repeat("x", 200<<10))
		h.call("POST", "/api/v1/events", body).want(http.StatusAccepted)
	}
	w := &largestWrite{ResponseRecorder: httptest.NewRecorder()}
	r := httptest.NewRequestWithContext(t.Context(), "GET", "/api/v1/events", nil)
	bearer(h.token)(r)
	h.handler.ServeHTTP(w, r)
	if w.Code != http.StatusOK || w.Body.Len() < 600<<10 || w.largest > 450<<10 {
		t.Errorf("%d: %d bytes, %d of them at once", w.Code, w.Body.Len(), w.largest)
	}
}

type largestWrite struct {
	*httptest.ResponseRecorder
	largest int
}

func (w *largestWrite) Write(p []byte) (int, error) {
	w.largest = max(w.largest, len(p))
	return w.ResponseRecorder.Write(p)
}

// All lists report the page size that was used in the same way.
func TestAClampedSizeIsTold(t *testing.T) {
	t.Parallel()
	h := setup(t)
	for i := range 3 {
		h.call("POST", "/api/v1/events", event(fmt.Sprint("e-", i))).want(http.StatusAccepted)
	}
	lists := 0
	for path, operations := range documentedRoutes(t) {
		get := operations[http.MethodGet]
		if get == nil || get.query["size"] == nil {
			continue
		}
		lists++
		a := h.call("GET", path+"?size=1000", "", bearer(h.tokenFor(get))).want(http.StatusOK)
		if got := a.Header().Get("X-Page-Size"); got != "100" {
			t.Errorf("%s: X-Page-Size %q", path, got)
		}
		if link := a.Header().Get("Link"); strings.Contains(link, "size=1000") {
			t.Errorf("%s: Link %s", path, link)
		}
	}
	if lists < 10 {
		t.Errorf("%d lists", lists)
	}
	a := h.call("GET", "/api/v1/events?size=2&from=2026-01-01t00:00:00z", "").want(http.StatusOK)
	if list := as[gen.EventList](a); len(list.Content) != 2 || list.NextCursor == "" || list.Partial != nil || a.Header().Get("X-Page-Size") != "2" {
		t.Errorf("%v %+v", a.Header(), list)
	}
}
