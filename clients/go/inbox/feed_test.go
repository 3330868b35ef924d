package inbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"spendhook/api/client"
)

// feedServer serves a feed in pages of two events. A cursor has the number and the id of the last one.
type feedServer struct {
	mu        sync.Mutex
	events    []map[string]any
	asked     []string // queries
	refusal   string   // the code of every answer; "": none
	forgotten int      // in every answer
}

func (f *feedServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked = append(f.asked, r.URL.RawQuery)
	w.Header().Set("Content-Type", "application/json")
	code, after := f.refusal, 0
	if cursor := r.FormValue("cursor"); cursor != "" {
		number, _, _ := strings.Cut(cursor, "-")
		after, _ = strconv.Atoi(number)
		if code == "" && f.cursor(after) != cursor {
			code = "FEED_CHANGED"
		}
	}
	if code != "" {
		w.WriteHeader(http.StatusConflict)
		_, _ = fmt.Fprintf(w, `{"code":%q}`, code)
		return
	}
	end := min(after+2, len(f.events))
	content, _ := json.Marshal(f.events[after:end])
	_, _ = fmt.Fprintf(w, `{"content":%s,"next":%d,"cursor":%q,"more":%v,"last":%d,"forgotten":%d}`,
		content, end, f.cursor(end), end < len(f.events), len(f.events), f.forgotten)
}

// cursor is that of a page that ends with an event; "": there is no such event.
func (f *feedServer) cursor(number int) string {
	switch {
	case number == 0:
		return "0-"
	case number > len(f.events):
		return ""
	}
	return fmt.Sprintf("%d-%s", number, f.events[number-1]["id"])
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
	if p, err := b.CatchUp(t.Context()); err != nil || p != (Progress{}) || len(server.asked) != 1 || server.asked[0] != "cursor=6-compacted&limit=100&wait=0s" {
		t.Errorf("%+v, %v, asked %q", p, err, server.asked)
	}
	if w := b.deliver(t, "evt_4", "{}"); w.Code != http.StatusNoContent || len(b.worked) != 5 {
		t.Errorf("a delivery of a known event: %d", w.Code)
	}
	server.refusal = "GONE"
	if _, err := b.CatchUp(t.Context()); err == nil {
		t.Error("no error")
	}
}

// After a failover, another event has the number of one that was lost: the inbox works on it, and on nothing twice.
func TestCatchUpAfterEventsWereLost(t *testing.T) {
	t.Parallel()
	server, feed := newFeed(t)
	b := newBox(t, &MemoryStore[any]{}, feed)
	for _, id := range []string{"evt_1", "evt_2", "lost"} {
		server.add(id, "{}")
	}
	if _, err := b.CatchUp(t.Context()); err != nil {
		t.Fatal(err)
	}
	server.events, server.asked = server.events[:2], nil
	server.add("evt_3", "{}")
	server.add("evt_4", "{}")
	if p, err := b.CatchUp(t.Context()); err != nil || p != (Progress{Missing: 2}) {
		t.Errorf("%+v, %v", p, err)
	}
	wantIDs(t, b, "evt_1", "evt_2", "lost", "evt_3", "evt_4")
	wantAsked(t, server, "cursor=3-lost", "after=0", "cursor=2-evt_2")
	if cursor, err := b.cursor(t.Context()); err != nil || cursor != "4-evt_4" {
		t.Errorf("the cursor is %q, %v", cursor, err)
	}
}

// A daemon that refuses even to begin again is no reason to ask again and again.
func TestFeedThatIsAlwaysChanged(t *testing.T) {
	t.Parallel()
	server, feed := newFeed(t)
	b := newBox(t, &MemoryStore[any]{}, feed)
	server.add("evt_1", "{}")
	if _, err := b.CatchUp(t.Context()); err != nil {
		t.Fatal(err)
	}
	server.refusal, server.asked = "FEED_CHANGED", nil
	for _, want := range [][]string{{"cursor=1-evt_1", "after=0"}, {"after=0"}} { // the second call begins at the start
		_, err := b.CatchUp(t.Context())
		if refusal, ok := errors.AsType[*client.Error](err); !ok || refusal.Code != "FEED_CHANGED" {
			t.Errorf("not reported: %v", err)
		}
		wantAsked(t, server, want...)
	}
}

// wantAsked compares the places of the requests since the last call.
func wantAsked(t *testing.T, server *feedServer, want ...string) {
	t.Helper()
	for n := range want {
		want[n] += "&limit=100&wait=0s"
	}
	if !slices.Equal(server.asked, want) {
		t.Errorf("asked %q, not %q", server.asked, want)
	}
	server.asked = nil
}

// The place in the feed stays as it is after an answer without one, or whose cursor leads to the same answer.
func TestAnswersThatAreNotFromAFeed(t *testing.T) {
	t.Parallel()
	answer := ""
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(answer))
	}))
	defer server.Close()
	api, err := client.New(server.URL, client.Options{RetryFor: -1})
	if err != nil {
		t.Fatal(err)
	}
	b := newBox(t, &MemoryStore[any]{}, &Feed{API: api})
	if err := b.setCursor(t.Context(), "1-x"); err != nil {
		t.Fatal(err)
	}
	for text, valid := range map[string]bool{
		`{"next":1,"cursor":"1-x"}`: true, `{"next":1,"cursor":"1-x","more":true}`: false, `{"next":1}`: false, `{"next":1,"cursor":1}`: false,
	} {
		answer = text
		_, err := b.page(t.Context(), "0s", &reading{})
		if cursor, _ := b.cursor(t.Context()); (err == nil) != valid || cursor != "1-x" {
			t.Errorf("%s: cursor %q, %v", text, cursor, err)
		}
	}
}

// Events without a body are passed, again if the page is read again, and a panic of the callback is an error.
func TestPassed(t *testing.T) {
	t.Parallel()
	server, feed := newFeed(t)
	b := newBox(t, &MemoryStore[any]{}, feed)
	server.add("evt_1", "{}")
	var want []Passed
	for n, reason := range []string{"COMPACTED", "CANCELLED", "QUARANTINED"} {
		id := strings.ToLower(reason)
		server.add(id, nil)
		server.events[n+1]["gone"] = reason
		want = append(want, Passed{ID: id, Sequence: int64(n + 2), Reason: reason})
	}
	var passed []Passed
	b.o.Passed = func(p Passed) {
		if passed = append(passed, p); len(passed) == 1 {
			panic("on purpose")
		}
	}
	if _, err := b.CatchUp(t.Context()); err == nil || !strings.HasPrefix(err.Error(), "event compacted: panic: on purpose\ngoroutine ") {
		t.Errorf("the callback panics: %v", err)
	}
	if p, err := b.CatchUp(t.Context()); err != nil || p != (Progress{Gone: 3}) {
		t.Errorf("%+v, %v", p, err)
	}
	if want = append(want[:1:1], want...); !slices.Equal(passed, want) {
		t.Errorf("passed %v, not %v", passed, want)
	}
	wantIDs(t, b, "evt_1")
}

// What the daemon has forgotten since the last reading is reported, for each page; not what it forgot before the first one.
func TestForgotten(t *testing.T) {
	t.Parallel()
	server, feed := newFeed(t)
	b := newBox(t, &MemoryStore[any]{}, feed)
	server.forgotten = 3
	for n := range 3 {
		server.add("evt_"+strconv.Itoa(n+1), "{}")
	}
	if p, err := b.CatchUp(t.Context()); err != nil || p != (Progress{Missing: 3, Forgotten: 6}) || len(b.failed) > 0 {
		t.Errorf("the first reading: %+v, %v, failed %v", p, err, b.failed)
	}
	for n := range 3 {
		server.add("evt_"+strconv.Itoa(n+4), "{}")
	}
	if p, err := b.CatchUp(t.Context()); err != nil || p != (Progress{Missing: 3, Forgotten: 6}) || len(b.failed) != 2 {
		t.Errorf("the second reading: %+v, %v, failed %v", p, err, b.failed)
	}
	// A feed that is followed from its start is read to its end at first.
	followed := newBox(t, &MemoryStore[any]{}, feed)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	work := followed.o.Work
	followed.o.Work = func(ctx context.Context, e *Event, tx any) error {
		if e.ID == "evt_6" {
			server.add("evt_7", "{}")
		}
		if e.ID == "evt_7" {
			defer stop()
		}
		return work(ctx, e, tx)
	}
	followed.Follow(ctx)
	if len(followed.worked) != 7 || len(followed.failed) != 1 {
		t.Errorf("followed %v, failed %v", followed.ids(), followed.failed)
	}
	for _, err := range append(b.failed, followed.failed...) {
		if err.Error() != "3 events since the last reading are no longer kept by the service" {
			t.Error(err)
		}
	}
}

// Rewind leads to what was retried after it was passed, and to nothing twice; also while the feed is read.
func TestRewind(t *testing.T) {
	t.Parallel()
	server, feed := newFeed(t)
	b := newBox(t, &MemoryStore[any]{}, feed)
	server.add("evt_1", "{}")
	if _, err := b.CatchUp(t.Context()); err != nil {
		t.Fatal(err)
	}
	server.add("quarantined", nil)
	b.o.Passed = func(Passed) {
		if err := b.Rewind(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if p, err := b.CatchUp(t.Context()); err != nil || p != (Progress{Gone: 1}) {
		t.Errorf("%+v, %v", p, err)
	}
	delete(server.events[1], "gone")
	server.events[1]["body"] = "{}"
	server.asked = nil
	if p, err := b.CatchUp(t.Context()); err != nil || p != (Progress{Missing: 1}) {
		t.Errorf("after Rewind: %+v, %v", p, err)
	}
	wantAsked(t, server, "after=0")
	wantIDs(t, b, "evt_1", "quarantined")
	if err := b.Rewind(t.Context()); err != nil {
		t.Error(err)
	}
	if cursor, err := b.cursor(t.Context()); err != nil || cursor != "" {
		t.Errorf("the cursor is %q, %v", cursor, err)
	}
}

// Follow goes on after failures of the feed and of the work.
func TestFollow(t *testing.T) {
	t.Parallel()
	server, feed := newFeed(t)
	b := newBox(t, &MemoryStore[any]{}, feed)
	server.refusal = "GONE"
	b.fails = 2
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var waited []int
	b.backoff = func(failures int) time.Duration {
		waited = append(waited, failures)
		if len(waited) == 3 {
			server.mu.Lock()
			server.refusal = ""
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
