//go:build faults

package main

import (
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/google/uuid"

	"spendhook/api/gen"
	"spendhook/internal/redistest"
)

// redisMemory is the maxmemory of the Redis that one company fills, in bytes.
const redisMemory = 150 << 20

// patientRetries is a schedule that is longer than any test.
const patientRetries = `
delivery:
  schedule: [1s, 1s, 1s, 1s, 1s, 1s, 1s, 1s, 1s, 1s, 2s, 2s, 2s, 2s, 2s, 2s, 2s, 2s, 2s, 2s, 5s, 5s, 5s, 5s, 5s, 5s, 5s, 5s, 5s, 5s, 5s, 5s, 10s, 10s, 10s, 10s, 10s, 10s, 10s, 10s, 20s, 20s, 20s, 20s, 20s, 20s, 20s, 20s]
  failing_after: 1000
`

// send posts an array of big events and returns how many were accepted, and the
// codes of the others.
func (tn *tenant) send(tb testing.TB, ids ...string) (accepted int, codes map[string]int) {
	tb.Helper()
	items := make([]string, len(ids))
	for i, id := range ids {
		items[i] = bigEvent(id)
	}
	var status int
	var answer string
	eventually(tb, patience, "Redis answers in time", func() bool { // on a busy machine not always
		status, _, answer = tn.daemon.do(tb, http.MethodPost, "/api/v1/events", "["+strings.Join(items, ",")+"]")
		return status != http.StatusServiceUnavailable || !strings.Contains(answer, `"UNAVAILABLE"`)
	})
	var result gen.EventBatchResult
	if err := json.Unmarshal([]byte(answer), &result); err != nil || len(result.Results) != len(ids) {
		tb.Fatalf("an array of events: %d %s", status, answer)
	}
	codes = map[string]int{}
	for _, r := range result.Results {
		switch {
		case r.Error != nil:
			codes[string(r.Status)+" "+r.Error.Code]++
		case r.Status == gen.EventItemResultStatusACCEPTED, r.Status == gen.EventItemResultStatusDUPLICATE: // accepted by a request without an answer
			tn.accepted = append(tn.accepted, r.ID)
			accepted++
		default:
			codes[string(r.Status)]++
		}
	}
	return accepted, codes
}

// fill posts events until the company is refused: arrays until no event of an array is
// accepted, and then single events, since the free memory of Redis varies with its requests.
func (tn *tenant) fill(tb testing.TB) {
	tb.Helper()
	for i := 0; ; i += 10 {
		ids := make([]string, 10)
		for j := range ids {
			ids[j] = fmt.Sprintf("big_%d", i+j)
		}
		accepted, codes := tn.send(tb, ids...)
		if accepted == 0 && codes["REJECTED STORAGE_FULL"] == len(ids) {
			break
		}
		if len(codes) > 1 || len(codes) == 1 && codes["REJECTED STORAGE_FULL"] == 0 {
			tb.Fatalf("answered %v", codes)
		}
	}
	for i := range 100 {
		switch status, code, after := tn.one(tb, fmt.Sprint("last_", i)); {
		case status == http.StatusServiceUnavailable && code == "STORAGE_FULL" && after != "":
			return
		case status != http.StatusAccepted:
			tb.Fatalf("a new event: %d %s, Retry-After %q", status, code, after)
		}
	}
	tb.Fatal("100 more events are accepted")
}

// One company fills Redis while its receiver fails. Other companies are served. At maxmemory
// deliveries are still recorded, and a daemon can be started. Everything is delivered once the
// receiver works again.
func TestOneCompanyFillsRedis(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{Args: []string{"--maxmemory", strconv.Itoa(redisMemory), "--maxmemory-policy", "noeviction"}})
	client := server.Client()
	tr := &trial{t: t, client: client}
	limit := func(bytes int64) {
		t.Helper()
		if err := client.ConfigSet(t.Context(), "maxmemory", strconv.FormatInt(bytes, 10)).Err(); err != nil {
			t.Fatal(err)
		}
	}
	in := newInstallation(t, server.URL(), patientRetries)
	d := in.start(t)
	var well atomic.Bool
	greedy := &tenant{daemon: d, endpoint: newEndpoint(t, func(string) int {
		if well.Load() {
			return http.StatusNoContent
		}
		return http.StatusInternalServerError
	})}
	other := &tenant{daemon: d.as(t, in, uuid.New()), endpoint: newEndpoint(t, nil)}
	for _, tn := range []*tenant{greedy, other} {
		tn.endpoint.subscribe(t, tn.daemon, "PAYMENT_PAID")
	}

	greedy.fill(t)
	if kept := len(greedy.accepted) * 60_000; kept < redisMemory/5 || kept > redisMemory/2 {
		t.Errorf("the company got %d bytes of %d", kept, redisMemory)
	}
	if metric(t, d, `spendhook_events_total{result="storage_full"}`) < 10 {
		t.Error("nothing was counted as refused")
	}
	for i := range 20 {
		if status, code, _ := other.one(t, fmt.Sprint("small_", i)); status != http.StatusAccepted {
			t.Errorf("the other company: %d %s", status, code)
		}
	}
	other.awaitAll(t, "the other company's events are delivered")

	limit(metricBytes(t, d)*100/95 + 1) // 95 % are used
	eventually(t, patience, "readiness warns of the high-water mark", func() bool {
		code, body := get(t, d.admin+"/readyz")
		return code == http.StatusOK && strings.Contains(body, "high-water mark")
	})
	if used, mark := metric(t, d, "spendhook_redis_memory_bytes"), metric(t, d, "spendhook_redis_high_water_bytes"); used < mark || mark == 0 {
		t.Errorf("%v bytes used, a high-water mark of %v", used, mark)
	}
	other.wantRefused(t, "refused")

	limit(1 << 20) // nothing but what settles is taken
	for _, tn := range []*tenant{greedy, other} {
		tn.wantRefused(t, "refused")
		if status, code, _ := tn.one(t, tn.accepted[0]); status != http.StatusOK {
			t.Errorf("a known event: %d %s", status, code)
		}
	}
	lastHeartbeat := func() (at float64) {
		for _, key := range keysLike(t, client, "sh:*:replicas") {
			for _, z := range client.ZRangeWithScores(t.Context(), key, 0, -1).Val() {
				at = max(at, z.Score)
			}
		}
		return at
	}
	before := lastHeartbeat()
	eventually(t, patience, "heartbeats go on", func() bool { return lastHeartbeat() > before+2000 })
	d.stop(t)
	if n := len(regexp.MustCompile(`"level":"WARN".*"library":"asynq"`).FindAllString(d.stderr.String(), -1)); n == 0 || n > 2 {
		t.Errorf("asynq logged %d problems", n)
	}
	d = in.start(t)
	well.Store(true)
	greedy.awaitAll(t, "everything is delivered by a full Redis")
	eventually(t, deliveryPatience, "everything is settled", func() bool { return tr.pending() == 0 })

	limit(redisMemory * 4)
	greedy.daemon, other.daemon = d, d.as(t, in, uuid.New())
	eventually(t, patience, "readiness does not warn any more", func() bool {
		_, body := get(t, d.admin+"/readyz")
		return !strings.Contains(body, "high-water mark")
	})
	for _, tn := range []*tenant{greedy, other} {
		if status, code, _ := tn.one(t, "after"); status != http.StatusAccepted {
			t.Errorf("with memory again: %d %s", status, code)
		}
	}
	greedy.awaitAll(t, "events are delivered as before")
	d.stop(t)
}

// metricBytes is what Redis uses, as the daemon read it last.
func metricBytes(tb testing.TB, d *running) int64 {
	tb.Helper()
	return int64(metric(tb, d, "spendhook_redis_memory_bytes"))
}
