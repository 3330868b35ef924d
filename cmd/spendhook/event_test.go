package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/go-json-experiment/json"
)

// fakeAPI answers ingest requests with scripted results and records the requests.
type fakeAPI struct {
	*httptest.Server
	mu      sync.Mutex
	batches [][]map[string]any
}

// newFakeAPI calls answer with each batch. answer returns a status, and a result for each
// event.
func newFakeAPI(tb testing.TB, answer func(n int, batch []map[string]any) (status int, results []string)) *fakeAPI {
	tb.Helper()
	f := &fakeAPI{}
	f.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer secret-token" || r.URL.Path != "/api/v1/events" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		body, _ := io.ReadAll(r.Body)
		var batch []map[string]any
		if err := json.Unmarshal(body, &batch); err != nil {
			tb.Errorf("not a batch: %v", err)
		}
		f.mu.Lock()
		f.batches = append(f.batches, batch)
		n := len(f.batches)
		f.mu.Unlock()
		status, results := answer(n, batch)
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		if status/100 != 2 {
			fmt.Fprint(w, `{"code":"SOME_CODE","detail":"some detail"}`)
			return
		}
		fmt.Fprintf(w, `{"results":[%s]}`, strings.Join(results, ","))
	}))
	tb.Cleanup(f.Close)
	return f
}

func (f *fakeAPI) emit(tb testing.TB, stdin string, args ...string) result {
	tb.Helper()
	return command(tb, stdin, append([]string{"event", "send", "--url", f.URL, "--token-file", secretFile(tb, "secret-token")}, args...)...)
}

func allAccepted(_ int, batch []map[string]any) (int, []string) {
	results := make([]string, len(batch))
	for i, e := range batch {
		results[i] = fmt.Sprintf(`{"id":%q,"status":"ACCEPTED"}`, e["id"])
	}
	return http.StatusAccepted, results
}

func ndjson(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `{"id":"e%d","event":"PAYMENT_PAID","timestamp":1,"metadata":{}}`+"\n", i)
	}
	return b.String()
}

func TestEventSendOneFromFlags(t *testing.T) {
	t.Parallel()
	f := newFakeAPI(t, allAccepted)
	f.emit(t, "", "--event", "PAYMENT_PAID", "--id", "evt_1", "--metadata", `{"n":1}`,
		"--timestamp", "2026-01-02T03:04:05Z", "--error-code", "E1").
		want(t, exitOK, "status  ACCEPTED", "")
	got := fmt.Sprint(f.batches)
	want := "[[map[errorCode:E1 event:PAYMENT_PAID id:evt_1 metadata:map[n:1] timestamp:2026-01-02T03:04:05Z]]]"
	if got != want {
		t.Errorf("sent %s\nwant %s", got, want)
	}
}

// Some editors begin a file with a byte order mark.
func TestEventSendSkipsByteOrderMarks(t *testing.T) {
	t.Parallel()
	f := newFakeAPI(t, allAccepted)
	metadata, lines := filepath.Join(t.TempDir(), "metadata.json"), filepath.Join(t.TempDir(), "events.ndjson")
	for file, text := range map[string]string{metadata: `{"n":1}`, lines: `{"id":"e1"}`} {
		if err := os.WriteFile(file, []byte("\ufeff"+text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	f.emit(t, "", "--event", "PAYMENT_PAID", "--metadata-file", metadata).want(t, exitOK, "status  ACCEPTED", "")
	f.emit(t, "", "-f", lines).want(t, exitOK, "accepted 1  duplicate 0  refused 0", "")
	if got := fmt.Sprint(f.batches[0][0]["metadata"], f.batches[1][0]["id"]); got != "map[n:1]e1" {
		t.Errorf("sent %s", got)
	}
	f.emit(t, "", "--event", "PAYMENT_PAID", "--metadata-file", metadata+".none").want(t, exitUsage, "", "no such file")
}

func TestEventSendRefusesBadMetadata(t *testing.T) {
	t.Parallel()
	f := newFakeAPI(t, allAccepted)
	f.emit(t, "", "--event", "PAYMENT_PAID", "--metadata", `{"n":`).want(t, exitUsage, "", "--metadata is not a JSON object")
}

func TestEventSendBatches(t *testing.T) {
	t.Parallel()
	f := newFakeAPI(t, allAccepted)
	f.emit(t, ndjson(2500), "-f", "-").want(t, exitOK, "accepted 2500  duplicate 0  refused 0", "")
	if len(f.batches) != 3 || len(f.batches[0]) != 1000 || len(f.batches[2]) != 500 {
		t.Errorf("%d batches", len(f.batches))
	}
}

func TestEventSendPrintsRefusedLines(t *testing.T) {
	t.Parallel()
	f := newFakeAPI(t, func(int, []map[string]any) (int, []string) {
		return http.StatusMultiStatus, []string{
			`{"id":"e0","status":"DUPLICATE"}`,
			`{"id":"e1","status":"CONFLICT","error":{"code":"EVENT_CONFLICT","message":"known with another content"}}`,
		}
	})
	r := f.emit(t, `{"id":"e0"}`+"\n\n"+`{"id":`+"\n"+`{"id":"e1"}`, "-f", "-")
	r.want(t, exitFailure, "accepted 0  duplicate 1  refused 2", `line 3: not a JSON object: {"id":`)
	r.want(t, exitFailure, "", "line 4: e1: EVENT_CONFLICT: known with another content")
}

// An event that was refused for a reason that passes is sent again, and the others are not.
func TestEventSendRepeatsWhatMayPass(t *testing.T) {
	t.Parallel()
	full := `{"status":"REJECTED","error":{"code":"BACKLOG_FULL","message":"full","retryAfter":5}}`
	f := newFakeAPI(t, func(n int, batch []map[string]any) (int, []string) {
		switch n {
		case 1:
			return http.StatusMultiStatus, []string{`{"status":"ACCEPTED"}`, full, `{"status":"REJECTED","error":{"code":"EVENT_TOO_OLD","message":"old"}}`, full}
		case 2:
			return http.StatusTooManyRequests, nil
		}
		return allAccepted(n, batch)
	})
	f.emit(t, ndjson(4), "-f", "-").want(t, exitFailure, "accepted 3  duplicate 0  refused 1", "line 3: : EVENT_TOO_OLD: old")
	if got := fmt.Sprintln(len(f.batches), len(f.batches[2]), f.batches[2][1]["id"]); got != "3 2 e3\n" {
		t.Errorf("sent %s", got)
	}
	// Different reasons, and nothing accepted: the command does not repeat it for ever.
	f = newFakeAPI(t, func(int, []map[string]any) (int, []string) { return http.StatusMultiStatus, []string{full, full} })
	f.emit(t, ndjson(2), "-f", "-").want(t, exitFailure, "accepted 0  duplicate 0  refused 2", "BACKLOG_FULL")
}

func TestEventSendRetriesWhenTheDaemonIsDown(t *testing.T) {
	t.Parallel()
	f := newFakeAPI(t, func(n int, batch []map[string]any) (int, []string) {
		if n == 1 {
			return http.StatusServiceUnavailable, nil
		}
		return allAccepted(n, batch)
	})
	f.emit(t, ndjson(3), "-f", "-").want(t, exitOK, "accepted 3", "")
}

func TestEventSendStopsAfterRetryFor(t *testing.T) {
	t.Parallel()
	f := newFakeAPI(t, func(int, []map[string]any) (int, []string) { return http.StatusServiceUnavailable, nil })
	f.emit(t, ndjson(3), "-f", "-", "--retry-for", "1ms").want(t, exitUnavailable, "", "503 SOME_CODE: some detail")
	f.Close()
	f.emit(t, ndjson(3), "-f", "-", "--retry-for", "1ms").want(t, exitUnavailable, "", "connection refused")
}

// A batch refused as a whole is halved until the refusal names one line.
func TestEventSendFindsTheBadLineOfABatch(t *testing.T) {
	t.Parallel()
	f := newFakeAPI(t, func(n int, batch []map[string]any) (int, []string) {
		for _, e := range batch {
			if e["id"] == "e5" {
				return http.StatusBadRequest, nil
			}
		}
		return allAccepted(n, batch)
	})
	f.emit(t, ndjson(9), "-f", "-").want(t, exitFailure, "accepted 8  duplicate 0  refused 1", "line 6: 400 SOME_CODE")
}

func TestEventSendStopsOnABadToken(t *testing.T) {
	t.Parallel()
	f := newFakeAPI(t, allAccepted)
	r := f.emit(t, ndjson(2), "-f", "-", "--token-file", secretFile(t, "wrong"))
	r.want(t, exitNotAllowed, "", "401")
	if strings.Contains(r.stderr, "wrong") {
		t.Error("the token is in the error")
	}
}
