package inbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"spendhook/api/client"
)

// feedServer serves a feed in pages of two events.
type feedServer struct {
	mu     sync.Mutex
	events []map[string]any
	asked  []string // queries
	gone   bool
}

func (f *feedServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked = append(f.asked, r.URL.RawQuery)
	w.Header().Set("Content-Type", "application/json")
	if f.gone {
		w.WriteHeader(http.StatusBadRequest)
		_, _ = w.Write([]byte(`{"code":"GONE"}`))
		return
	}
	after, _ := strconv.Atoi(r.FormValue("after"))
	end := min(after+2, len(f.events))
	content, _ := json.Marshal(f.events[after:end])
	_, _ = fmt.Fprintf(w, `{"content":%s,"next":%d,"more":%v,"last":%d,"forgotten":0}`, content, end, end < len(f.events), len(f.events))
}

func (f *feedServer) add(id string, body any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	at := "2026-11-20T09:30:00.000Z"
	e := map[string]any{"sequence": len(f.events) + 1, "id": id, "event": "PAYMENT_PAID", "timestamp": at, "acceptedAt": at}
	if body == nil {
		e["gone"] = "COMPACTED"
	} else {
		e["body"] = body
	}
	f.events = append(f.events, e)
}

func newFeed(t *testing.T) (*feedServer, *Feed) {
	t.Helper()
	f := &feedServer{}
	server := httptest.NewServer(f)
	t.Cleanup(server.Close)
	api, err := client.New(server.URL, client.Options{RetryFor: -1})
	if err != nil {
		t.Fatal(err)
	}
	return f, &Feed{API: api, Subscriber: uuid.MustParse("0197a1b2-0000-7000-8000-000000000002")}
}

func TestCatchUp(t *testing.T) {
	t.Parallel()
	server, feed := newFeed(t)
	b := newBox(t, &MemoryStore[any]{}, feed)
	for i := range 5 {
		server.add("evt_"+strconv.Itoa(i), `{"event":"PAYMENT_PAID","metadata":{}}`)
	}
	server.add("compacted", nil)
	b.deliver(t, "evt_1", "{}")
	b.fails = 1
	if p, err := b.CatchUp(t.Context()); !errors.Is(err, errWork) || p.Missing != 0 {
		t.Errorf("work fails: %+v, %v", p, err)
	}
	if p, err := b.CatchUp(t.Context()); err != nil || p != (Progress{Missing: 4, Gone: 1}) {
		t.Errorf("%+v, %v", p, err)
	}
	wantIDs(t, b, "evt_1", "evt_0", "evt_2", "evt_3", "evt_4")
	if e := b.worked[2]; e.Sequence != 3 || string(e.Metadata) != "{}" {
		t.Errorf("%+v", e)
	}
	server.asked = nil
	if p, err := b.CatchUp(t.Context()); err != nil || p != (Progress{}) || len(server.asked) != 1 || server.asked[0] != "after=6&limit=100&wait=0s" {
		t.Errorf("%+v, %v, asked %q", p, err, server.asked)
	}
	if w := b.deliver(t, "evt_4", "{}"); w.Code != http.StatusNoContent || len(b.worked) != 5 {
		t.Errorf("a delivery of a known event: %d", w.Code)
	}
	server.gone = true
	if _, err := b.CatchUp(t.Context()); err == nil {
		t.Error("no error")
	}
}

// Follow goes on after failures of the feed and of the work.
func TestFollow(t *testing.T) {
	t.Parallel()
	server, feed := newFeed(t)
	b := newBox(t, &MemoryStore[any]{}, feed)
	server.gone = true
	b.fails = 2
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var waited []int
	b.backoff = func(failures int) time.Duration {
		waited = append(waited, failures)
		if len(waited) == 3 {
			server.mu.Lock()
			server.gone = false
			server.mu.Unlock()
			server.add("evt_1", "{}")
			server.add("evt_2", "{}")
		}
		return 0
	}
	work := b.o.Work
	b.o.Work = func(ctx context.Context, e *Event, tx any) error {
		if e.ID == "evt_2" {
			defer stop()
		}
		return work(ctx, e, tx)
	}
	b.Follow(ctx)
	wantIDs(t, b, "evt_1", "evt_2")
	if want := []int{0, 1, 2, 3, 4}; fmt.Sprint(waited) != fmt.Sprint(want) || len(b.failed) != len(want) {
		t.Errorf("waited after %v failures: %v", waited, b.failed)
	}
}

func TestBackoff(t *testing.T) {
	t.Parallel()
	for failures, want := range map[int]time.Duration{0: time.Second, 1: 2 * time.Second, 5: 32 * time.Second, 6: time.Minute, 100: time.Minute} {
		if got := backoff(failures); got != want {
			t.Errorf("%d: %s", failures, got)
		}
	}
}
