package inbox

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"log"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

var (
	testKey = []byte("the secret of these tests, 32 B.")
	errWork = errors.New("the work fails")
)

// box is an inbox in memory, and what it worked on.
type box struct {
	*Inbox[any]
	now    time.Time
	worked []*Event
	fails  int // how often the work is still to fail
	failed []error
}

func newBox(t *testing.T, store Store[any], feed *Feed) *box {
	t.Helper()
	b := &box{now: time.Unix(1795167000, 0)}
	v, err := NewVerifier(VerifierOptions{
		Secrets: []string{base64.StdEncoding.EncodeToString(testKey)}, Now: func() time.Time { return b.now },
	})
	if err != nil {
		t.Fatal(err)
	}
	b.Inbox, err = New(Options[any]{Verifier: v, Store: store, Feed: feed, Work: b.work, Failed: func(err error) { b.failed = append(b.failed, err) }})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func (b *box) work(_ context.Context, e *Event, _ any) error {
	if b.fails > 0 {
		b.fails--
		return errWork
	}
	b.worked = append(b.worked, e)
	return nil
}

// deliver posts a signed message.
func (b *box) deliver(t *testing.T, id, body string) *httptest.ResponseRecorder {
	t.Helper()
	return b.deliverAfter(t, id, body, "4711", "4708")
}

// deliverAfter is deliver with the numbers of the event and of the one before it.
func (b *box) deliverAfter(t *testing.T, id, body, number, previous string) *httptest.ResponseRecorder {
	t.Helper()
	h := hmac.New(sha256.New, testKey)
	h.Write([]byte(id + ".1795167000." + body))
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/hooks", strings.NewReader(body))
	r.Header = http.Header{
		headerID: {id}, headerTimestamp: {"1795167000"}, headerSequence: {number}, headerPrevious: {previous},
		headerSignature: {"v1," + base64.StdEncoding.EncodeToString(h.Sum(nil))},
	}
	w := httptest.NewRecorder()
	b.ServeHTTP(w, r)
	return w
}

func (b *box) deliverUnsigned(t *testing.T, body string) *httptest.ResponseRecorder {
	t.Helper()
	w := httptest.NewRecorder()
	b.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/hooks", strings.NewReader(body)))
	return w
}

func TestInbox(t *testing.T) {
	t.Parallel()
	b := newBox(t, &MemoryStore[any]{}, nil)
	want := func(what string, w *httptest.ResponseRecorder, status int, text string) {
		t.Helper()
		if w.Code != status || !strings.Contains(w.Body.String(), text) || (text == "") != (w.Body.Len() == 0) {
			t.Errorf("%s: %d %q", what, w.Code, w.Body)
		}
	}
	full := `{"id":"pay-1","companyUuid":"c","event":"PAYMENT_PAID","timestamp":"2026-11-20T09:30:00.000Z","metadata":{"amount":12345678901234567890.10}}`
	b.fails = 2
	want("work that fails", b.deliver(t, "pay-1", full), 500, "try again")
	want("work that fails", b.deliver(t, "pay-1", full), 500, "try again")
	want("a delivery", b.deliver(t, "pay-1", full), 204, "")
	want("a repeat", b.deliver(t, "pay-1", full), 204, "")
	want("no JSON", b.deliver(t, "pay-2", "no JSON"), 204, "")
	want("a challenge", b.deliver(t, "challenge-1", `{"event":"SUBSCRIBER_CHALLENGE","metadata":{"challenge":"abc"}}`), 200, "abc")
	want("1 MiB", b.deliver(t, "pay-3", strings.Repeat(" ", 1<<20)), 204, "")
	want("more than 1 MiB", b.deliver(t, "pay-4", strings.Repeat(" ", 1<<20+1)), 413, "too large")
	want("no signature", b.deliverUnsigned(t, full), 401, "not valid")
	if len(b.worked) != 3 || len(b.failed) != 3 || !errors.Is(b.failed[0], errWork) {
		t.Fatalf("worked on %d, failed %v", len(b.worked), b.failed)
	}
	e := b.worked[0]
	if e.ID != "pay-1" || e.Type != "PAYMENT_PAID" || e.CompanyUUID != "c" || e.Sequence != 4711 || string(e.Body) != full ||
		string(e.Metadata) != `{"amount":12345678901234567890.10}` || !e.Timestamp.Equal(time.Unix(1795167000, 0)) {
		t.Errorf("%+v", e)
	}
	if e := b.worked[1]; e.ID != "pay-2" || e.Type != "" || e.Metadata != nil || string(e.Body) != "no JSON" {
		t.Errorf("%+v", e)
	}
}

// A wrong secret is noticed, and strangers cannot fill the log.
func TestRefusedDeliveriesAreReportedOnceAMinute(t *testing.T) {
	t.Parallel()
	b := newBox(t, &MemoryStore[any]{}, nil)
	for n, c := range []struct {
		later time.Duration
		want  int
	}{{0, 1}, {59 * time.Second, 1}, {time.Second, 2}, {59 * time.Second, 2}, {-time.Hour, 3}} {
		b.now = b.now.Add(c.later)
		if w := b.deliverUnsigned(t, "{}"); w.Code != http.StatusUnauthorized || len(b.failed) != c.want {
			t.Fatalf("case %d: %d, reported %v", n, w.Code, b.failed)
		}
	}
	want := "a delivery was refused: the message has no valid signature: webhook-id is missing; check the signing secret"
	if err := b.failed[0]; err.Error() != want || !errors.Is(err, ErrInvalidMessage) {
		t.Error(err)
	}
}

// Without Failed, errors go to the default logger of slog, which writes to that of log.
func TestErrorsAreLogged(t *testing.T) {
	var written bytes.Buffer
	log.SetOutput(&written)
	defer log.SetOutput(os.Stderr)
	b := newBox(t, &MemoryStore[any]{}, nil)
	o := b.o
	o.Failed = nil
	box, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	box.Follow(t.Context())
	if text := written.String(); !strings.Contains(text, `WARN spendhook inbox error="follow the feed: the inbox has no feed"`) {
		t.Errorf("%q", text)
	}
}

// A panic of the work is an error, and what was done is undone. http.ErrAbortHandler is for the server.
func TestPanics(t *testing.T) {
	t.Parallel()
	server, feed := newFeed(t)
	b := newBox(t, &MemoryStore[any]{}, feed)
	b.backoff = func(int) time.Duration { return 0 }
	work, values, stop := b.o.Work, []any{"on purpose", http.ErrAbortHandler, http.ErrAbortHandler}, func() {}
	b.o.Work = func(ctx context.Context, e *Event, tx any) error {
		if len(values) > 0 {
			value := values[0]
			values = values[1:]
			panic(value)
		}
		defer stop()
		return work(ctx, e, tx)
	}
	if w := b.deliver(t, "evt_1", "{}"); w.Code != http.StatusInternalServerError {
		t.Errorf("it answered %d", w.Code)
	}
	func() {
		defer func() {
			if value := recover(); value != any(http.ErrAbortHandler) {
				t.Errorf("the server gets %v", value)
			}
		}()
		b.deliver(t, "evt_1", "{}")
	}()
	server.add("evt_1", "{}")
	if p, err := b.CatchUp(t.Context()); err == nil || p.Missing != 0 {
		t.Errorf("caught up: %+v, %v", p, err)
	}
	for n, read := range []func(context.Context){b.Follow, b.FillGaps} {
		server.add("evt_"+strconv.Itoa(n+2), "{}")
		values = []any{"on purpose", "on purpose"}
		ctx, cancel := context.WithCancel(t.Context())
		stop = func() {
			if len(b.worked) == n+2 {
				cancel()
			}
		}
		read(ctx)
	}
	wantIDs(t, b, "evt_1", "evt_2", "evt_3")
	if len(b.failed) != 5 {
		t.Errorf("failed %v", b.failed)
	}
	for _, err := range b.failed {
		if !strings.Contains(err.Error(), ": panic: on purpose\ngoroutine ") {
			t.Error(err)
		}
	}
}

// The handshake of CloudEvents is answered with consent to the daemon alone.
func TestHandshake(t *testing.T) {
	t.Parallel()
	b := newBox(t, &MemoryStore[any]{}, nil)
	for _, c := range []struct {
		origin, method, from string
		want                 int
	}{
		{"hooks.example.com", http.MethodOptions, "hooks.example.com", 200},
		{"hooks.example.com", http.MethodOptions, "Hooks.Example.COM", 200},
		{"hooks.example.com", http.MethodOptions, "evil.example.com", 405},
		{"hooks.example.com", http.MethodOptions, "*", 405},
		{"hooks.example.com", http.MethodOptions, "", 405},
		{"hooks.example.com", http.MethodGet, "hooks.example.com", 405},
		{"", http.MethodOptions, "hooks.example.com", 405},
		{"", http.MethodOptions, "", 405},
	} {
		b.o.Origin = c.origin
		r := httptest.NewRequestWithContext(t.Context(), c.method, "/hooks", http.NoBody)
		r.Header.Set("WebHook-Request-Origin", c.from)
		w := httptest.NewRecorder()
		b.ServeHTTP(w, r)
		want := http.Header{"Allow": {"POST"}}
		if c.want == http.StatusOK {
			want["Webhook-Allowed-Origin"], want["Webhook-Allowed-Rate"] = []string{c.origin}, []string{"*"}
		}
		w.Header().Del("Content-Type")
		w.Header().Del("X-Content-Type-Options")
		if w.Code != c.want || !maps.EqualFunc(w.Header(), want, slices.Equal) {
			t.Errorf("%+v: %d %v", c, w.Code, w.Header())
		}
	}
}

// A failure of the work leaves nothing behind in a transaction, nor does a panic.
func TestMemoryStore(t *testing.T) {
	t.Parallel()
	testStore(t, &MemoryStore[any]{})
}

func testStore[T any](t *testing.T, s Store[T]) {
	t.Helper()
	ctx := t.Context()
	add := func(id string, result error) (added bool, err error) {
		err = s.Transaction(ctx, func(tx Transaction, _ T) (err error) {
			if added, err = tx.Add(ctx, id, 1); err != nil {
				return err
			}
			if again, err := tx.Add(ctx, id, 1); again || err != nil {
				t.Errorf("a second time in one transaction: %t, %v", again, err)
			}
			if err := tx.SetCursor(ctx, "7-x"); err != nil {
				return err
			}
			return result
		})
		return added, err
	}
	cursor := func() (text string) {
		t.Helper()
		err := s.Transaction(ctx, func(tx Transaction, _ T) (err error) {
			text, err = tx.Cursor(ctx)
			return err
		})
		if err != nil {
			t.Error(err)
		}
		return text
	}
	if added, err := add("a", errWork); !added || !errors.Is(err, errWork) || cursor() != "" {
		t.Errorf("failed: %v, %v, cursor %q", added, err, cursor())
	}
	func() {
		defer func() { _ = recover() }()
		_ = s.Transaction(ctx, func(tx Transaction, _ T) error {
			_, _ = tx.Add(ctx, "a", 0)
			panic("on purpose")
		})
	}()
	for _, want := range []bool{true, false} {
		if added, err := add("a", nil); added != want || err != nil || cursor() != "7-x" {
			t.Errorf("%v, %v, cursor %q", added, err, cursor())
		}
	}
	err := s.Transaction(ctx, func(tx Transaction, _ T) error { return tx.SetCursor(ctx, "") })
	if err != nil || cursor() != "" {
		t.Errorf("the cursor is %q, %v", cursor(), err)
	}
}

func TestEvents(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]Event{
		`{"event":"A","companyUuid":"c","timestamp":"2026-11-20T09:30:00Z","url":"x"}`:                             {Type: "A", CompanyUUID: "c", Timestamp: time.Unix(1795167000, 0)},
		`{"specversion":"1.0","type":"A","subject":"c","time":"2026-11-20T09:30:00Z","data":{"n":1},"id":"other"}`: {Type: "A", CompanyUUID: "c", Timestamp: time.Unix(1795167000, 0)},
		`{"event":5,"metadata":[],"timestamp":{},"companyUuid":null}`:                                              {},
		`{"Event":"A","EVENT":"B"}`: {},
		`[]`:                        {}, `null`: {}, ``: {}, "\xff": {},
	} {
		got := newEvent("evt_1", 0, []byte(body))
		if got.ID != "evt_1" || got.Type != want.Type || got.CompanyUUID != want.CompanyUUID || !got.Timestamp.Equal(want.Timestamp) ||
			!bytes.Equal(got.Metadata, want.Metadata) || string(got.Body) != body {
			t.Errorf("%s: %+v", body, got)
		}
	}
	for value, want := range map[string]int64{"": 0, "17": 17, "-1": 0, "+1": 0, "x": 0, strings.Repeat("9", 30): 0} {
		if got := numberOf(http.Header{headerSequence: {value}}, headerSequence); got != want {
			t.Errorf("%q: %d", value, got)
		}
	}
}

func TestNewNeedsItsParts(t *testing.T) {
	t.Parallel()
	if _, err := New(Options[any]{}); err == nil {
		t.Error("no error")
	}
	b := newBox(t, &MemoryStore[any]{}, nil)
	if _, err := b.CatchUp(t.Context()); !errors.Is(err, errNoFeed) {
		t.Errorf("an inbox without a feed caught up: %v", err)
	}
	b.Follow(t.Context())
	b.FillGaps(t.Context())
	if len(b.failed) != 2 || !errors.Is(b.failed[0], errNoFeed) || !errors.Is(b.failed[1], errNoFeed) {
		t.Errorf("failed %v", b.failed)
	}
}

// ids are those that were worked on.
func (b *box) ids() []string {
	var all []string
	for _, e := range b.worked {
		all = append(all, e.ID)
	}
	return all
}

func wantIDs(t *testing.T, b *box, want ...string) {
	t.Helper()
	if got := b.ids(); !slices.Equal(got, want) {
		t.Errorf("worked on %v, not %v", got, want)
	}
}
