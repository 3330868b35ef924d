package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// intake is a daemon that accepts events. It drops the answer of every third request.
type intake struct {
	mu       sync.Mutex
	requests int
	seen     map[string]int
}

func (in *intake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	list := []struct{ ID string }{{}}
	into := any(&list)
	if body[0] != '[' {
		into = &list[0]
	}
	if err := json.Unmarshal(body, into); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	for _, e := range list {
		in.seen[e.ID]++
	}
	if in.requests++; in.requests%3 == 0 {
		panic(http.ErrAbortHandler)
	}
	w.WriteHeader(http.StatusAccepted)
	fmt.Fprint(w, strings.Repeat(`{"status":"ACCEPTED"}`, len(list)))
}

// runLoad runs a load to its end.
func runLoad(t *testing.T, spec loadSpec) loadResult {
	t.Helper()
	l, err := newLoad(spec)
	if err != nil {
		t.Fatal(err)
	}
	return l.run(t.Context())
}

// TestLoadAcceptsEachOnce: after a lost answer, an event is sent again with the same id. Each of
// these requests is counted, and the numbers of the events have no gap.
func TestLoadAcceptsEachOnce(t *testing.T) {
	t.Parallel()
	for _, plain := range []bool{false, true} {
		for _, batch := range []int{1, 10} {
			testAcceptsEachOnce(t, plain, batch)
		}
	}
}

func testAcceptsEachOnce(t *testing.T, plain bool, batch int) {
	t.Helper()
	in := &intake{seen: map[string]int{}}
	server := httptest.NewServer(in)
	server.Config.ErrorLog = nil
	got := runLoad(t, loadSpec{
		Targets: []target{{URL: server.URL}}, Plain: plain, Run: 4, First: 100, Companies: 3,
		Clients: 8, Batch: batch, Count: 200, For: time.Minute,
	})
	server.Close()
	if got.Accepted != 200 || got.Lost != 0 || got.Retried == 0 || got.Trouble == "" {
		t.Errorf("plain %t, batch %d: %+v", plain, batch, got)
	}
	if sent := 200/batch + int(got.Retried); in.requests != sent {
		t.Errorf("plain %t, batch %d: %d requests came, %d were sent", plain, batch, in.requests, sent)
	}
	numbers := map[int64]bool{}
	for text := range in.seen {
		id, ok := parseEventID(text)
		if !ok || id.run != 4 || id.n < 100 || id.n >= 300 {
			t.Errorf("sent %q", text)
		}
		numbers[id.n] = true
	}
	if len(numbers) != 200 || len(in.seen) != 200 {
		t.Errorf("plain %t, batch %d: %d numbers, %d ids, want 200", plain, batch, len(numbers), len(in.seen))
	}
	if got.clean() == nil {
		t.Error("repeated requests count as clean")
	}
}

func TestLoadKeepsItsRate(t *testing.T) {
	t.Parallel()
	in := &intake{seen: map[string]int{}}
	server := httptest.NewServer(in)
	defer server.Close()
	got := runLoad(t, loadSpec{
		Targets: []target{{URL: server.URL}}, Companies: 1, Clients: 4, Batch: 1,
		Rate: 100, Count: 1000, For: 495 * time.Millisecond,
	})
	if got.Accepted != 50 {
		t.Errorf("%d events in 0.5 s at 100/s", got.Accepted)
	}
	if got.Took < 450*time.Millisecond {
		t.Errorf("took %v, want 50 events spread over 0.5 s", got.Took)
	}
}

func TestLoadEndsInTime(t *testing.T) {
	t.Parallel()
	in := &intake{seen: map[string]int{}}
	server := httptest.NewServer(in)
	defer server.Close()
	got := runLoad(t, loadSpec{
		Targets: []target{{URL: server.URL}}, Companies: 1, Clients: 2, Batch: 1,
		Count: maxEvents, For: 50 * time.Millisecond,
	})
	if got.Accepted == 0 || got.Took > 10*time.Second {
		t.Errorf("%+v", got)
	}
}

// TestLoadRefusedItem: an array of which one event is refused was not accepted.
func TestLoadRefusedItem(t *testing.T) {
	t.Parallel()
	var asked atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader([]int{http.StatusMultiStatus, http.StatusAccepted}[min(asked.Add(1), 2)-1])
	}))
	defer server.Close()
	got := runLoad(t, loadSpec{Targets: []target{{URL: server.URL}}, Companies: 1, Clients: 1, Batch: 2, Count: 2, For: 10 * time.Second})
	if got.Accepted != 2 || got.Retried != 1 {
		t.Errorf("%+v", got)
	}
}

func TestLoadChoosesCompanyAndType(t *testing.T) {
	t.Parallel()
	first := loadSpec{Companies: 3}
	if first.company(5) != 2 || first.eventType(5) != eventType {
		t.Errorf("company %d, type %s", first.company(5), first.eventType(5))
	}
	some := loadSpec{Of: []int{7, 9}, Types: 4}
	if some.company(5) != 9 || some.eventType(5) != "BENCH_1" {
		t.Errorf("company %d, type %s", some.company(5), some.eventType(5))
	}
}

// TestLoadCountsRefusals: answers 429 and 503 are counted separately from other errors.
func TestLoadCountsRefusals(t *testing.T) {
	t.Parallel()
	answers := []int{http.StatusTooManyRequests, http.StatusInternalServerError, http.StatusServiceUnavailable, http.StatusAccepted}
	var asked int
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(answers[asked])
		asked++
	}))
	defer server.Close()
	got := runLoad(t, loadSpec{
		Targets: []target{{URL: server.URL}}, Companies: 1, Clients: 1, Batch: 1, Count: 1, For: time.Minute,
	})
	if got.Refused != 2 || got.Retried != 3 || got.Accepted != 1 {
		t.Errorf("%+v, want 2 refused, 3 sent again, 1 accepted", got)
	}
}

// TestLoadEndsWhatItBegan: a cancelled load finishes its requests and loses no event.
func TestLoadEndsWhatItBegan(t *testing.T) {
	t.Parallel()
	ctx, stop := context.WithCancel(t.Context())
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		stop()
		time.Sleep(20 * time.Millisecond)
		w.WriteHeader(http.StatusAccepted)
	}))
	defer server.Close()
	l, err := newLoad(loadSpec{
		Targets: []target{{URL: server.URL}}, Companies: 1, Clients: 1, Batch: 1, Rate: 1, Count: 100, For: time.Minute,
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := l.run(ctx); got.Accepted != 1 || got.Lost != 0 {
		t.Errorf("%+v, want one event accepted and none lost", got)
	}
}
