package main

import (
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/google/uuid"

	"spendhook/api/gen"
	"spendhook/events"
	"spendhook/events/layout"
	"spendhook/internal/redistest"
)

// patientRetries outlast a receiver that is down for as long as a test takes.
const patientRetries = `
delivery:
  schedule: [1s, 1s, 1s, 1s, 1s, 1s, 1s, 1s, 1s, 1s, 2s, 2s, 2s, 2s, 2s, 2s, 2s, 2s, 2s, 2s, 5s, 5s, 5s, 5s, 5s, 5s, 5s, 5s, 5s, 5s, 5s, 5s, 10s, 10s, 10s, 10s, 10s, 10s, 10s, 10s, 20s, 20s, 20s, 20s, 20s, 20s, 20s, 20s]
  failing_after: 1000
`

// tenant is one company at a daemon, with its token and its endpoint.
type tenant struct {
	daemon   *running
	endpoint *endpoint
	accepted []string
}

// bigEvent has a body of some 60,000 bytes.
func bigEvent(id string) string {
	return fmt.Sprintf(`{"id":%q,"event":"PAYMENT_PAID","timestamp":%q,"metadata":{"fill":%q}}`,
		id, testTime.Format(time.RFC3339), strings.Repeat("x", 60_000))
}

var testTime = time.Now()

// send posts an array of big events and returns how many were accepted, and the
// codes of the others.
func (tn *tenant) send(tb testing.TB, ids ...string) (accepted int, codes map[string]int) {
	tb.Helper()
	items := make([]string, len(ids))
	for i, id := range ids {
		items[i] = bigEvent(id)
	}
	status, _, answer := tn.daemon.do(tb, http.MethodPost, "/api/v1/events", "["+strings.Join(items, ",")+"]")
	var result gen.EventBatchResult
	if err := json.Unmarshal([]byte(answer), &result); err != nil || status != http.StatusAccepted {
		tb.Fatalf("an array of events: %d %s", status, answer)
	}
	codes = map[string]int{}
	for _, r := range result.Results {
		switch {
		case r.Error != nil:
			codes[string(r.Status)+" "+r.Error.Code]++
		case r.Status == gen.EventItemResultStatusACCEPTED:
			tn.accepted = append(tn.accepted, r.ID)
			accepted++
		default:
			codes[string(r.Status)]++
		}
	}
	return accepted, codes
}

// one posts one big event and returns the status, and the code of a problem.
func (tn *tenant) one(tb testing.TB, id string) (status int, code, retryAfter string) {
	tb.Helper()
	status, header, answer := tn.daemon.do(tb, http.MethodPost, "/api/v1/events", bigEvent(id))
	var problem struct {
		Code string `json:"code"`
	}
	if err := json.Unmarshal([]byte(answer), &problem); err != nil { // a success has no code
		tb.Fatal(err)
	}
	if status == http.StatusAccepted {
		tn.accepted = append(tn.accepted, id)
	}
	return status, problem.Code, header.Get("Retry-After")
}

func (tn *tenant) wantRefused(tb testing.TB, id string) {
	tb.Helper()
	if status, code, after := tn.one(tb, id); status != http.StatusServiceUnavailable || code != "STORAGE_FULL" || after == "" {
		tb.Errorf("a new event: %d %s, Retry-After %q, want 503 STORAGE_FULL", status, code, after)
	}
}

// fill posts until the company gets no more: arrays until none of their events is
// accepted, then single events, for what Redis has left varies with the requests
// that it holds.
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

func (tn *tenant) awaitAll(tb testing.TB, what string) {
	tb.Helper()
	eventually(tb, deliveryPatience, what, func() bool {
		for _, id := range tn.accepted {
			if !tn.endpoint.has(id) {
				return false
			}
		}
		return true
	})
}

func metric(tb testing.TB, d *running, name string) float64 {
	tb.Helper()
	_, text := get(tb, d.admin+"/metrics")
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, name+" "); ok {
			value, _ := strconv.ParseFloat(strings.TrimSpace(rest), 64)
			return value
		}
	}
	tb.Fatalf("no metric %s", name)
	return 0
}

// One company fills Redis while its receiver fails. The others go on, also when
// Redis takes no write but those that settle, a daemon can be started then, and
// everything drains when the receiver is well.
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
	beats := func() (at float64) {
		for _, key := range keysLike(t, client, "sh:*:replicas") {
			for _, z := range client.ZRangeWithScores(t.Context(), key, 0, -1).Val() {
				at = max(at, z.Score)
			}
		}
		return at
	}
	before := beats()
	eventually(t, patience, "heartbeats go on", func() bool { return beats() > before+2000 })
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

// as is the daemon as a client of another company sees it.
func (r *running) as(tb testing.TB, in installation, company uuid.UUID) *running {
	tb.Helper()
	minted := command(tb, "", "token", "--data-dir", in.dir, "--company", company.String(),
		"--scope", "events:read events:write subscribers:read subscribers:write deliveries:read")
	minted.want(tb, exitOK, "ey", "")
	return &running{api: r.api, admin: r.admin, token: strings.TrimSpace(minted.stdout)}
}

// The daemon compacts what all subscribers have, and keeps what one that was
// disabled may still ask for.
func TestDeliveredEventsAreCompacted(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{})
	d := newInstallation(t, server.URL(), "events: {keep_delivered: 1s}\n").start(t)
	client := server.Client()
	state := func(id string) string {
		return client.GetRange(t.Context(), layout.EventKey(events.Ref{Company: developerCompany, ID: id}), 0, 0).Val()
	}
	tn := &tenant{daemon: d, endpoint: newEndpoint(t, nil)}
	tn.endpoint.subscribe(t, d, "PAYMENT_PAID")
	disabled := newEndpoint(t, nil).subscribe(t, d, "PAYMENT_PAID")
	if status, _, answer := d.do(t, http.MethodPatch, "/api/v1/subscribers/"+disabled.UUID.String(), `{"enabled":false}`); status != http.StatusOK {
		t.Fatalf("disable: %d %s", status, answer)
	}
	tn.one(t, "held")
	tn.awaitAll(t, "the event is delivered")
	if status, _, answer := d.do(t, http.MethodDelete, "/api/v1/subscribers/"+disabled.UUID.String(), ""); status != http.StatusNoContent {
		t.Fatalf("delete: %d %s", status, answer)
	}
	tn.one(t, "delivered")
	tn.awaitAll(t, "both are delivered")
	eventually(t, patience, "the event is compacted", func() bool { return state("delivered") == "C" })
	if state("held") != "S" {
		t.Errorf("the event that a disabled subscriber was to have is %s", state("held"))
	}
	if metric(t, d, "spendhook_events_compacted_total") != 1 {
		t.Error("it was not counted")
	}
	if status, _, _ := tn.one(t, "delivered"); status != http.StatusOK {
		t.Errorf("it was sent again: %d", status)
	}
	d.stop(t)
}
