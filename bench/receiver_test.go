package main

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// deliver POSTs an event to an endpoint and returns the answer's status.
func deliver(ctx context.Context, e *endpoint, id eventID) int {
	req := httptest.NewRequestWithContext(ctx, http.MethodPost, "/hook", strings.NewReader("{}"))
	req.Header.Set("webhook-id", id.String())
	w := httptest.NewRecorder()
	e.ServeHTTP(w, req)
	return w.Code
}

func newReceiver(endpoints int) *receiver {
	r := &receiver{}
	for range endpoints {
		r.endpoints = append(r.endpoints, newEndpoint(r))
	}
	r.reset(1)
	return r
}

func TestReceiverCounts(t *testing.T) {
	t.Parallel()
	r := newReceiver(2)
	now := time.Now()
	early := now.Add(-time.Second)
	deliver(t.Context(), r.endpoints[0], eventID{1, 0, early})
	deliver(t.Context(), r.endpoints[0], eventID{1, 0, early})
	deliver(t.Context(), r.endpoints[1], eventID{1, 0, early})
	deliver(t.Context(), r.endpoints[0], eventID{1, 1000, now})
	deliver(t.Context(), r.endpoints[0], eventID{2, 1, now}) // of another run
	got := r.tallyOf(r.endpoints, true, 0)
	if got.Attempts != 5 || got.Distinct != 3 || got.Repeats != 1 {
		t.Errorf("tally = %+v, want 5 attempts, 3 distinct, 1 repeat", got)
	}
	if got.P99 < time.Second.Microseconds() || got.P50 < time.Second.Microseconds() {
		t.Errorf("two of three took a second: p50 %d µs, p99 %d µs", got.P50, got.P99)
	}
	if r.reset(2); r.tallyOf(r.endpoints, true, 0) != (tally{}) {
		t.Error("a reset receiver remembers")
	}
}

func TestReceiverAfterMark(t *testing.T) {
	t.Parallel()
	r := newReceiver(1)
	now := time.Now()
	r.mark.Store(now.Add(-2 * time.Second).UnixMicro())
	deliver(t.Context(), r.endpoints[0], eventID{1, 0, now}) // sent after the mark
	if got := r.tallyOf(r.endpoints, false, 0).AfterMark; got != 0 {
		t.Errorf("after the mark: %d µs", got)
	}
	deliver(t.Context(), r.endpoints[0], eventID{1, 1, now.Add(-3 * time.Second)})
	if got := time.Duration(r.tallyOf(r.endpoints, false, 0).AfterMark) * time.Microsecond; got < 2*time.Second || got > time.Minute {
		t.Errorf("after the mark: %v, want a little over 2 s", got)
	}
}

func TestReceiverWatches(t *testing.T) {
	t.Parallel()
	r := newReceiver(1)
	now := time.Now()
	ids := [...]eventID{{1, 0, now}, {1, 1, now}}
	deliver(t.Context(), r.endpoints[0], ids[0])
	r.mark.Store(now.Add(-2 * time.Second).UnixMicro())
	req := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/watch", strings.NewReader(ids[0].String()+"\nnonsense"))
	r.controls().ServeHTTP(httptest.NewRecorder(), req)
	deliver(t.Context(), r.endpoints[0], ids[1])
	if got := r.tallyOf(r.endpoints, false, 0).Watched; got != 0 {
		t.Errorf("watched: %d µs after nothing watched came", got)
	}
	deliver(t.Context(), r.endpoints[0], ids[0])
	if got := time.Duration(r.tallyOf(r.endpoints, false, 0).Watched) * time.Microsecond; got < 2*time.Second || got > time.Minute {
		t.Errorf("watched: %v, want a little over 2 s", got)
	}
}

func TestReceiverModes(t *testing.T) {
	t.Parallel()
	r := newReceiver(1)
	e := r.endpoints[0]
	e.mode.Store(&mode{Fail: 1})
	if code := deliver(t.Context(), e, eventID{1, 0, time.Now()}); code != http.StatusInternalServerError {
		t.Errorf("failing: %d", code)
	}
	e.mode.Store(&mode{Delay: 20 * time.Millisecond})
	start := time.Now()
	if deliver(t.Context(), e, eventID{1, 1, start}); time.Since(start) < 20*time.Millisecond {
		t.Error("no delay")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	e.mode.Store(&mode{Hang: true})
	deliver(ctx, e, eventID{1, 2, start})
	if ctx.Err() == nil {
		t.Error("a hanging receiver answered")
	}
	if got := r.tallyOf(r.endpoints, false, 0); got.Attempts != 3 || got.Distinct != 1 {
		t.Errorf("tally = %+v, want 3 attempts, 1 acknowledged", got)
	}
}

func TestReceiverControls(t *testing.T) {
	t.Parallel()
	r := newReceiver(3)
	server := httptest.NewServer(r.controls())
	defer server.Close()
	p := &receiverProcess{addresses: addresses{Control: server.URL, Endpoints: make([]string, 3)}}
	ctx := t.Context()
	if err := p.set(ctx, 2, mode{Hang: true}); err != nil {
		t.Fatal(err)
	}
	if !r.endpoints[1].mode.Load().Hang || r.endpoints[2].mode.Load().Hang {
		t.Error("the first two should hang")
	}
	if err := p.reset(ctx, 7); err != nil || r.run.Load() != 7 {
		t.Errorf("reset: run %d, %v", r.run.Load(), err)
	}
	if err := p.mark(ctx); err != nil || r.mark.Load() == 0 {
		t.Errorf("mark: %d, %v", r.mark.Load(), err)
	}
	deliver(ctx, r.endpoints[2], eventID{7, 5, time.Now()})
	if got, err := p.tally(ctx); err != nil || got.Distinct != 1 {
		t.Errorf("tally = %+v, %v", got, err)
	}
	if got, err := p.latency(ctx, 0, 2, 0); err != nil || got.Distinct != 0 {
		t.Errorf("tally of the others = %+v, %v", got, err)
	}
	if _, err := p.latency(ctx, 0, 4, 0); err == nil {
		t.Error("there is no fourth endpoint")
	}
}

// TestReceiverMissing: a missing event counts as late.
func TestReceiverMissing(t *testing.T) {
	t.Parallel()
	r := newReceiver(1)
	r.began.Store(time.Now().Add(-time.Minute).UnixMicro())
	deliver(t.Context(), r.endpoints[0], eventID{1, 0, time.Now()})
	got := r.tallyOf(r.endpoints, true, 2)
	if got.Distinct != 1 || got.P50 > time.Second.Microseconds() || got.Max < time.Minute.Microseconds() {
		t.Errorf("tally = %+v, want 1 of 2, the other a minute late", got)
	}
}

func TestReceiverGap(t *testing.T) {
	t.Parallel()
	r := newReceiver(2)
	if got := r.tallyOf(r.endpoints, false, 0).Gap; got != 0 {
		t.Errorf("a gap of %d µs without a mark", got)
	}
	now := time.Now()
	r.mark.Store(now.Add(-time.Minute).UnixMicro())
	id := eventID{1, 0, now}
	busy, idle := r.endpoints[0], r.endpoints[1]
	for i, seconds := range []int64{-70, -40, -35, -1} {
		id.n = int64(i)
		busy.take(id, time.UnixMicro(now.UnixMicro()+seconds*1e6), r.mark.Load(), false)
	}
	if got := r.tallyOf(r.endpoints[:1], false, 0).Gap; got != (34 * time.Second).Microseconds() {
		t.Errorf("gap = %d µs, want 34 s", got)
	}
	idle.take(id, now, r.mark.Load(), false)
	if got := time.Duration(r.tallyOf(r.endpoints, false, 0).Gap) * time.Microsecond; got != time.Minute {
		t.Errorf("gap = %v, want a minute", got)
	}
}

func TestReceiverRoutesPaths(t *testing.T) {
	t.Parallel()
	r := newReceiver(2)
	for path, want := range map[string]int{"/hook/1": http.StatusNoContent, "/hook/2": http.StatusNotFound, "/": http.StatusNotFound} {
		w := httptest.NewRecorder()
		r.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, path, strings.NewReader("{}")))
		if w.Code != want {
			t.Errorf("%s: %d, want %d", path, w.Code, want)
		}
	}
	if got := r.endpoints[1].attempts.Load(); got != 1 {
		t.Errorf("the second endpoint had %d attempts", got)
	}
}
