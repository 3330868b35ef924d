package conformance

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// item is one event or result of an emitter.
type item map[string]any

// outcome is a result as the program answers it.
type outcome struct {
	ID     string          `json:"id"`
	Status string          `json:"status"`
	Error  json.RawMessage `json:"error"`
}

// accept answers 202: all events are accepted.
func accept(w http.ResponseWriter, got ingested) { results(nil)(w, got) }

// results answers with a result for each event: ACCEPTED unless it is given.
func results(given map[string]item) answerer {
	return func(w http.ResponseWriter, got ingested) {
		status, all := http.StatusAccepted, make([]item, len(got.ids))
		for i, id := range got.ids {
			all[i] = item{"id": id, "status": "ACCEPTED"}
			if result, ok := given[id]; ok {
				all[i] = result
				if _, refused := result["error"]; refused {
					status = http.StatusMultiStatus
				}
			}
		}
		reply(w, status, item{"results": all})
	}
}

func refused(id, status string, retryAfter int) item {
	failure := item{"code": "ON_PURPOSE", "message": "on purpose"}
	if retryAfter > 0 {
		failure["retryAfter"] = retryAfter
	}
	return item{"id": id, "status": status, "error": failure}
}

// fails answers with a problem.
func fails(status int, headers ...string) answerer {
	return func(w http.ResponseWriter, _ ingested) {
		for i := 0; i < len(headers); i += 2 {
			w.Header().Set(headers[i], headers[i+1])
		}
		problem(w, status, "ON_PURPOSE")
	}
}

// cut closes the connection without an answer.
func cut(http.ResponseWriter, ingested) { panic(http.ErrAbortHandler) }

// cutShort closes the connection within the answer.
func cutShort(w http.ResponseWriter, _ ingested) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", "1000")
	w.WriteHeader(http.StatusAccepted)
	_, _ = w.Write([]byte(`{"results":[{"id"`))
	_ = http.NewResponseController(w).Flush()
	panic(http.ErrAbortHandler)
}

// made makes events that are to be emitted.
func (r *run) made(count int, filling string) (events []item, ids []string) {
	for range count {
		r.last++
		id := fmt.Sprintf("out_%d", r.last)
		ids = append(ids, id)
		events = append(events, item{
			"id": id, "event": "PAYMENT_PAID", "timestamp": "2026-11-20T09:30:00.000Z", "metadata": item{"name": "Zoë", "filling": filling},
		})
	}
	return events, ids
}

// emit lets the program send events while the daemon answers as the script says.
func (r *run) emit(events []item, want int, script ...answerer) (all []outcome) {
	if r.err != nil {
		return nil
	}
	r.daemon.change(func(d *daemon) { d.script, d.got = script, nil })
	body, err := json.Marshal(events)
	if err != nil {
		r.fail(err)
		return nil
	}
	var answer json.RawMessage
	status, err := r.program.call(r.ctx, http.MethodPost, "/emit", body, &answer)
	r.fail(err)
	if status != want {
		r.failf("POST /emit was answered %d, not %d: %.300s", status, want, answer)
	}
	if want == http.StatusOK {
		err = json.Unmarshal(answer, &all)
	} else {
		var gaveUp struct {
			Error   string
			Results []outcome
		}
		err = json.Unmarshal(answer, &gaveUp)
		if all = gaveUp.Results; err == nil && gaveUp.Error == "" {
			r.failf("POST /emit gave up without an error: %.300s", answer)
		}
	}
	r.fail(err)
	return all
}

// statuses checks the results: one for each id, in this order. Each has the status ACCEPTED, or that in others.
func (r *run) statuses(got []outcome, ids []string, others map[string]string) {
	if r.err != nil {
		return
	}
	if len(got) != len(ids) {
		r.failf("got %d results for %d events", len(got), len(ids))
		return
	}
	for i, o := range got {
		want := "ACCEPTED"
		if other, ok := others[ids[i]]; ok {
			want = other
		}
		if o.ID != ids[i] || o.Status != want {
			r.failf("result %d is %s %s, not %s %s", i, o.ID, o.Status, ids[i], want)
		}
		if hasError := len(o.Error) > 0 && string(o.Error) != "null"; hasError != (want == "CONFLICT" || want == "REJECTED") {
			r.failf("the error of %s, %s, is %s", o.ID, o.Status, o.Error)
		}
	}
}

// requests checks how many requests with events there were, and that they have the same bytes unless that is not wanted.
func (r *run) requests(want int, same bool) []ingested {
	got := r.daemon.requests()
	if len(got) != want {
		r.failf("there were %d requests with events, not %d", len(got), want)
	}
	for _, g := range got[:min(len(got), want)] {
		if same && !bytes.Equal(g.body, got[0].body) {
			r.failf("a repeat has other bytes: %.300s instead of %.300s", g.body, got[0].body)
		}
	}
	if r.err != nil {
		return make([]ingested, want)
	}
	return got
}

func emitting() []testCase {
	cases := []testCase{
		{"emit: an event", func(r *run) {
			events, ids := r.made(1, "")
			r.statuses(r.emit(events, http.StatusOK), ids, nil)
			r.sent(events, r.requests(1, true)[0].body)
		}},
		{"emit: an array with DUPLICATE, CONFLICT and REJECTED", func(r *run) {
			events, ids := r.made(4, "")
			got := r.emit(events, http.StatusOK, results(map[string]item{
				ids[0]: {"id": ids[0], "status": "DUPLICATE"}, ids[1]: refused(ids[1], "CONFLICT", 0), ids[3]: refused(ids[3], "REJECTED", 0),
			}))
			r.statuses(got, ids, map[string]string{ids[0]: "DUPLICATE", ids[1]: "CONFLICT", ids[3]: "REJECTED"})
			r.requests(1, true)
		}},
		{"emit: events that are refused for a while are sent again, alone", func(r *run) {
			events, ids := r.made(5, "")
			got := r.emit(events, http.StatusOK,
				results(map[string]item{ids[1]: refused(ids[1], "REJECTED", 1), ids[2]: refused(ids[2], "CONFLICT", 0), ids[4]: refused(ids[4], "REJECTED", 1)}),
				results(map[string]item{ids[4]: refused(ids[4], "REJECTED", 1)}))
			r.statuses(got, ids, map[string]string{ids[2]: "CONFLICT"})
			requests := r.requests(3, false)
			if r.err == nil && (!slices.Equal(requests[1].ids, []string{ids[1], ids[4]}) || !slices.Equal(requests[2].ids, []string{ids[4]})) {
				r.failf("these were sent again: %v, then %v", requests[1].ids, requests[2].ids)
			}
			r.apart(requests, time.Second)
		}},
		{"emit: 429 with Retry-After in seconds", func(r *run) {
			events, ids := r.made(2, "")
			r.statuses(r.emit(events, http.StatusOK, fails(http.StatusTooManyRequests, "Retry-After", "2")), ids, nil)
			r.apart(r.requests(2, true), 2*time.Second)
		}},
		{"emit: 503 with Retry-After as a date", func(r *run) {
			events, ids := r.made(2, "")
			at := r.o.Now().Add(3 * time.Second).UTC().Format(http.TimeFormat)
			r.statuses(r.emit(events, http.StatusOK, fails(http.StatusServiceUnavailable, "Retry-After", at)), ids, nil)
			r.apart(r.requests(2, true), time.Second)
		}},
		{"emit: 502, 503, 504, then accepted", func(r *run) {
			events, ids := r.made(2, "")
			got := r.emit(events, http.StatusOK, fails(http.StatusServiceUnavailable), fails(http.StatusBadGateway), fails(http.StatusGatewayTimeout))
			r.statuses(got, ids, nil)
			r.requests(4, true)
		}},
		{"emit: a connection that is cut after the request", func(r *run) {
			events, ids := r.made(3, "")
			duplicate := results(map[string]item{ids[0]: {"id": ids[0], "status": "DUPLICATE"}})
			r.statuses(r.emit(events, http.StatusOK, cut, duplicate), ids, map[string]string{ids[0]: "DUPLICATE"})
			r.requests(2, true)
		}},
		{"emit: a connection that is cut within the answer", func(r *run) {
			events, ids := r.made(3, "")
			r.statuses(r.emit(events, http.StatusOK, cutShort), ids, nil)
			r.requests(2, true)
		}},
		{"emit: a token that is not valid any longer", func(r *run) {
			events, ids := r.made(2, "")
			r.daemon.revoke()
			r.statuses(r.emit(events, http.StatusOK), ids, nil)
			r.requests(1, true)
		}},
		{"emit: each token is refused", func(r *run) {
			events, _ := r.made(1, "")
			r.emit(events, http.StatusInternalServerError, slices.Repeat([]answerer{fails(http.StatusUnauthorized)}, 10)...)
			r.requests(2, true)
		}},
		{"emit: one token serves several requests", func(r *run) {
			before := r.daemon.issued()
			for range 3 {
				events, ids := r.made(1, "")
				r.statuses(r.emit(events, http.StatusOK), ids, nil)
			}
			if issued := r.daemon.issued() - before; issued > 1 {
				r.failf("%d tokens were fetched for 3 requests", issued)
			}
		}},
		{"emit: more than 1,000 events are sent in several arrays", func(r *run) {
			events, ids := r.made(2500, "")
			r.statuses(r.emit(events, http.StatusOK, accept, fails(http.StatusServiceUnavailable)), ids, nil)
			r.bounded(ids)
		}},
		{"emit: more than 4 MiB are sent in several arrays", func(r *run) {
			events, ids := r.made(25, strings.Repeat("x", 250_000))
			r.statuses(r.emit(events, http.StatusOK), ids, nil)
			r.bounded(ids)
		}},
		{"emit: no events", func(r *run) {
			r.statuses(r.emit([]item{}, http.StatusOK), nil, nil)
			r.requests(0, true)
		}},
	}
	for _, status := range []int{http.StatusBadRequest, http.StatusForbidden, http.StatusInternalServerError, http.StatusTemporaryRedirect} {
		cases = append(cases, testCase{"emit: " + strconv.Itoa(status) + " ends it, with the results so far", func(r *run) {
			events, ids := r.made(1500, "")
			got := r.emit(events, http.StatusInternalServerError, accept, fails(status, "Location", r.daemon.url+"/elsewhere"))
			if r.err == nil && len(got) != len(ids) { // those that are not known have no status
				r.failf("there are %d results", len(got))
			}
			r.statuses(got[:min(len(got), 1000)], ids[:1000], nil)
			r.requests(2, false)
			r.daemon.change(func(d *daemon) {
				if len(d.other) > 0 {
					r.failf("the redirect was followed: %v", d.other)
				}
			})
		}})
	}
	return cases
}

// sent checks that a body is a JSON array with the values of the events.
func (r *run) sent(events []item, body []byte) {
	if r.err != nil {
		return
	}
	var got []item
	if err := json.Unmarshal(body, &got); err != nil || len(got) != len(events) {
		r.failf("the request is no array of %d events: %.300s", len(events), body)
		return
	}
	for i, e := range events {
		for _, name := range []string{"id", "event", "metadata"} {
			want, _ := json.Marshal(e[name])
			if text, _ := json.Marshal(got[i][name]); !bytes.Equal(text, want) {
				r.failf("%s was sent as %s, not %s", name, text, want)
			}
		}
		at, err := time.Parse(time.RFC3339, fmt.Sprint(got[i]["timestamp"]))
		if want, _ := time.Parse(time.RFC3339, fmt.Sprint(e["timestamp"])); err != nil || !at.Equal(want) {
			r.failf("the timestamp was sent as %v", got[i]["timestamp"])
		}
	}
}

// apart checks that the repeats waited.
func (r *run) apart(requests []ingested, least time.Duration) {
	for i := 1; i < len(requests) && r.err == nil; i++ {
		if waited := requests[i].at.Sub(requests[i-1].at); waited < least-100*time.Millisecond {
			r.failf("a repeat came after %s, not after %s", waited, least)
		}
	}
}

// bounded checks that no request has too many events or bytes, and that each event was accepted.
func (r *run) bounded(ids []string) {
	seen := map[string]bool{}
	for _, got := range r.daemon.requests() {
		if len(got.ids) > 1000 || len(got.body) > 4<<20 {
			r.failf("a request has %d events and %d bytes", len(got.ids), len(got.body))
		}
		for _, id := range got.ids {
			seen[id] = true
		}
	}
	if len(seen) != len(ids) {
		r.failf("%d of %d events were sent", len(seen), len(ids))
	}
}
