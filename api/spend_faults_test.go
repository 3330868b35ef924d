package api

import (
	"database/sql"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"spendhook/internal/pgtest"
	"spendhook/storage"
	"spendhook/storage/storagetest"
)

// spendRequests is one request to each operation on the spend data.
func spendRequests() map[string]string {
	id := uuid.NewString()
	card := fmt.Sprintf(`{"type":"VIRTUAL","alias":"x","userUuid":%q}`, id)
	return map[string]string{
		"GET /api/v3/cards": "", "POST /api/v3/cards": card, "POST /api/v3/cards/bulk-create": bulkOf(card),
		"GET /api/v3/cards/bulk-create/" + id: "", "GET /api/v3/cards/" + id: "", "DELETE /api/v3/cards/" + id: "",
		"PATCH /api/v3/cards/" + id + "/threshold": `{"threshold":1}`, "PATCH /api/v3/cards/" + id + "/lock": `{"lock":true}`,
		"POST /api/v3/cards/delete": `{"uuids":["` + id + `"]}`, "GET /api/v3/reimbursements": "",
		"GET /api/v1/locations": "", "GET /api/v1/locations/" + id: "", "GET /api/v2/locations": "", "GET /api/v2/locations/" + id: "",
		"GET /api/v2/billing-statements/current": "", "GET /api/v2/billing-statements/7/2026": "",
	}
}

// soon is the time-out of a call to an unreachable database.
const soon = 1500 * time.Millisecond

// TestDatabaseIsDown stops PostgreSQL: the spend API answers 503 within 2 s, and
// events are accepted and delivered as ever.
func TestDatabaseIsDown(t *testing.T) {
	t.Parallel()
	server := pgtest.Start(t)
	store := storagetest.Open(t, storage.Options{URL: server.URL(), Timeout: soon})
	h := setup(t, func(o *Options) { *o = withSpend(store, *o) })
	received := make(chan string, 10)
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { received <- r.Header.Get("webhook-id") }))
	t.Cleanup(receiver.Close)
	create(h, receiver.URL)

	server.Stop()
	var took []time.Duration
	for request, body := range spendRequests() {
		method, target, _ := strings.Cut(request, " ")
		for _, key := range []option{func(*http.Request) {}, header(idempotencyHeader, uuid.NewString())} {
			began := time.Now()
			a := h.call(method, target, body, key).want(http.StatusServiceUnavailable, "UNAVAILABLE")
			took = append(took, time.Since(began))
			if a.Header().Get("Retry-After") == "" {
				t.Errorf("%s: %v", request, a.Header())
			}
		}
	}
	wantInTime(t, took)
	h.call("POST", "/api/v1/events", event("meanwhile")).want(http.StatusAccepted)
	select {
	case id := <-received:
		if id != "meanwhile" {
			t.Errorf("received %s", id)
		}
	case <-time.After(2 * time.Minute):
		t.Error("the event was not delivered")
	}

	server.Restart()
	eventually(t, func() bool { return h.call("GET", "/api/v3/cards", "").Code == http.StatusOK })
	for request, body := range spendRequests() {
		method, target, _ := strings.Cut(request, " ")
		t.Log(request)
		eventually(t, func() bool { return h.call(method, target, body).Code < 500 }) // a busy machine may not answer soon
	}
	if h.seen.count("postgres://") > 0 {
		t.Error("an answer or a log line has the database's address")
	}
}

// wantInTime checks that answers came within two seconds. On a busy machine half of them may take
// two seconds more, and a single one longer.
func wantInTime(t *testing.T, took []time.Duration) {
	t.Helper()
	slices.Sort(took)
	if took[len(took)/2] > 4*time.Second || took[len(took)-1] > 20*time.Second {
		t.Errorf("answered after %v, want 2 s", took)
	}
}

// silencer is a proxy before PostgreSQL that can hold all traffic.
type silencer struct{ gate sync.RWMutex }

// before returns the URL of a socket that leads to the server's.
func (s *silencer) before(t *testing.T, server *pgtest.Server) string {
	t.Helper()
	u, err := url.Parse(server.URL())
	if err != nil {
		t.Fatal(err)
	}
	q := u.Query()
	behind := filepath.Join(q.Get("host"), ".s.PGSQL.5432")
	q.Set("host", t.TempDir())
	l, err := net.Listen("unix", filepath.Join(q.Get("host"), ".s.PGSQL.5432"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			go s.connect(client, behind)
		}
	}()
	u.RawQuery = q.Encode()
	return u.String()
}

func (s *silencer) connect(client net.Conn, behind string) {
	defer client.Close()
	server, err := net.Dial("unix", behind)
	if err != nil {
		return
	}
	defer server.Close()
	go func() {
		defer server.Close()
		s.pass(server, client)
	}()
	s.pass(client, server)
}

func (s *silencer) pass(to io.Writer, from io.Reader) {
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		s.gate.RLock()
		_, failure := to.Write(buffer[:n])
		s.gate.RUnlock()
		if err != nil || failure != nil {
			return
		}
	}
}

// TestHangingDatabaseIs503InTime: the database keeps its connections open and does not answer. Every
// spend request is answered 503 in time, and events are accepted and delivered.
func TestHangingDatabaseIs503InTime(t *testing.T) {
	t.Parallel()
	var s silencer
	store := storagetest.Open(t, storage.Options{URL: s.before(t, pgtest.Start(t)), Timeout: soon})
	h := setup(t, func(o *Options) { *o = withSpend(store, *o) })
	received := make(chan string, 10)
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { received <- r.Header.Get("webhook-id") }))
	t.Cleanup(receiver.Close)
	create(h, receiver.URL)
	eventually(t, func() bool { return h.call("GET", "/api/v3/cards", "").Code == http.StatusOK })

	s.gate.Lock()
	var all sync.WaitGroup
	for request, body := range spendRequests() {
		method, target, _ := strings.Cut(request, " ")
		all.Go(func() {
			began := time.Now()
			h.call(method, target, body).want(http.StatusServiceUnavailable, "UNAVAILABLE")
			if took := time.Since(began); took > 2*time.Second+busy {
				t.Errorf("%s: %v", request, took)
			}
		})
	}
	h.call("POST", "/api/v1/events", event("meanwhile")).want(http.StatusAccepted)
	select {
	case <-received:
	case <-time.After(2 * time.Minute):
		t.Error("the event was not delivered")
	}
	all.Wait()
	s.gate.Unlock()
	eventually(t, func() bool { return h.call("GET", "/api/v3/cards", "").Code == http.StatusOK })
}

// busy is what a machine that runs other tests may add to a time-out.
const busy = 18 * time.Second

// TestDatabaseLocked: another process holds the write lock of the SQLite file. Changes are answered
// with 503; reads succeed.
func TestDatabaseLocked(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	store, err := storage.Open(storage.Options{DataDir: dir})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	if err := store.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	h := setup(t, func(o *Options) { *o = withSpend(store, *o) })
	other, err := sql.Open("sqlite", "file:"+filepath.Join(dir, "spend.db")+"?_txlock=immediate")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = other.Close() })
	tx, err := other.Begin()
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for request, body := range spendRequests() {
		method, target, _ := strings.Cut(request, " ")
		all.Go(func() {
			began := time.Now()
			switch a := h.call(method, target, body); {
			case method == http.MethodGet && a.Code >= 500:
				t.Errorf("%s: %d %s", request, a.Code, a.Body)
			case method != http.MethodGet:
				a.want(http.StatusServiceUnavailable, "UNAVAILABLE")
			}
			if took := time.Since(began); took > 2*time.Second+busy {
				t.Errorf("%s: %v", request, took)
			}
		})
	}
	all.Wait()
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	for request, body := range spendRequests() {
		method, target, _ := strings.Cut(request, " ")
		if a := h.call(method, target, body); a.Code >= 500 {
			t.Errorf("%s: %d after the other has ended", request, a.Code)
		}
	}
}

// TestUnavailableKeyCanBeTriedAgain: an answer of 503 is not kept for the key.
func TestUnavailableKeyCanBeTriedAgain(t *testing.T) {
	t.Parallel()
	h := spendSetup(t, storagetest.Open(t, storage.Options{}))
	closed := storagetest.Open(t, storage.Options{})
	if err := closed.Close(); err != nil {
		t.Fatal(err)
	}
	broken := *h.harness
	broken.options = withSpend(closed, h.options)
	var err error
	if broken.handler, err = New(broken.options); err != nil {
		t.Fatal(err)
	}
	key := header(idempotencyHeader, "again")
	if a := broken.call("POST", cardsPath, h.plainCard(), key); a.Code < 500 {
		t.Fatalf("%d: %s", a.Code, a.Body)
	}
	h.call("POST", cardsPath, h.plainCard(), key).want(http.StatusCreated)
	h.call("POST", cardsPath, h.plainCard(), key).want(http.StatusCreated)
	if got := h.call("GET", cardsPath, "").Header().Get("X-Total-Count"); got != "1" {
		t.Errorf("%s cards", got)
	}
}

// TestDatabaseNotMigrated is a database that answers but cannot be used yet.
func TestDatabaseNotMigrated(t *testing.T) {
	t.Parallel()
	store, err := storage.Open(storage.Options{DataDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	h := setup(t, func(o *Options) { *o = withSpend(store, *o) })
	for request, body := range spendRequests() {
		method, target, _ := strings.Cut(request, " ")
		h.call(method, target, body).want(http.StatusServiceUnavailable, "UNAVAILABLE")
	}
}
