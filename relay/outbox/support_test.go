package outbox

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"spendhook/api/client"
	"spendhook/internal/pgtest"
	"spendhook/internal/secret"
	"spendhook/internal/waittest"
	"spendhook/relay"
)

const (
	keys  = 16
	never = 24 * time.Hour
	// insertRows inserts rows with consecutive numbers.
	insertRows = `INSERT INTO spendhook_outbox (id, event, key, metadata, error_code, error_message)
		SELECT 'row-' || n, 'PAYMENT_PAID', 'key-' || n % 16, ('{"n": ' || n || '.50}')::json, 'CODE', 'message'
		FROM generate_series($1::int, $2::int) n ORDER BY n`
)

// database is one with an outbox.
type database struct {
	tb  testing.TB
	url string
}

func newDatabase(tb testing.TB) *database {
	tb.Helper()
	return openDatabase(tb, pgtest.New(tb))
}

func openDatabase(tb testing.TB, url string) *database {
	tb.Helper()
	db := &database{tb, url}
	sql, err := Schema("")
	if err != nil {
		tb.Fatal(err)
	}
	for range 2 { // the second finds the tables
		if _, err := db.conn().Exec(tb.Context(), sql); err != nil {
			tb.Fatal(err)
		}
	}
	return db
}

// conn opens a connection that ends with the test.
func (db *database) conn() *pgx.Conn {
	db.tb.Helper()
	conn, err := pgx.Connect(db.tb.Context(), db.url)
	if err != nil {
		db.tb.Fatal(err)
	}
	db.tb.Cleanup(func() { disconnect(db.tb.Context(), conn) })
	return conn
}

func (db *database) insert(first, last int) {
	db.tb.Helper()
	if _, err := db.conn().Exec(db.tb.Context(), insertRows, first, last); err != nil {
		db.tb.Fatal(err)
	}
}

// count counts the rows of a table, or of a part of it.
func (db *database) count(from string) (n int) {
	db.tb.Helper()
	conn := db.conn()
	defer disconnect(db.tb.Context(), conn)
	if err := conn.QueryRow(db.tb.Context(), `SELECT count(*) FROM `+from).Scan(&n); err != nil {
		db.tb.Fatal(err)
	}
	return n
}

func (db *database) waitEmpty() {
	db.tb.Helper()
	waittest.Until(db.tb, "rows are left", func() bool { return db.count("spendhook_outbox") == 0 })
}

// name is that of the database.
func (db *database) name() string {
	_, rest, _ := strings.Cut(db.url, "@/")
	name, _, _ := strings.Cut(rest, "?")
	return name
}

// as makes a role of the server, unless it exists, runs SQL, and returns a source with the role.
func (db *database) as(role, sql string) *Source {
	db.tb.Helper()
	_, err := db.conn().Exec(db.tb.Context(), `DO $$ BEGIN
		CREATE ROLE `+role+`; EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END $$; `+sql)
	if err != nil {
		db.tb.Fatal(err)
	}
	s := db.source()
	s.opts.URL = secret.Text(db.url + "&options=-c%20role%3D" + role)
	return s
}

func (db *database) source() *Source {
	db.tb.Helper()
	s, err := New(Options{URL: secret.Text(db.url)})
	if err != nil {
		db.tb.Fatal(err)
	}
	return s
}

// reader returns one without a lock. Its stream does not run.
func (db *database) reader(e relay.Emitter) *reader {
	db.tb.Helper()
	r := newReader(db.source().names, db.conn(), db.conn())
	r.stream = db.sender(e).sender.Stream(r.settle)
	return r
}

// serving is a sender, and the source that it serves, if any.
type serving struct {
	tb       testing.TB
	sender   *relay.Sender
	registry *prometheus.Registry
	log      buffer
	stop     func() // ends the source; it may be called twice
}

func (db *database) sender(e relay.Emitter) *serving {
	s := &serving{tb: db.tb, registry: prometheus.NewRegistry()}
	s.sender = relay.New(relay.Options{
		Name: "outbox", Emitter: e, Mapper: mapper{}, Now: time.Now, Metrics: relay.NewMetrics(s.registry),
		Log: slog.New(slog.NewTextHandler(io.MultiWriter(&s.log, db.tb.Output()), nil)),
	})
	return s
}

// serve reads the table until the test ends.
func (db *database) serve(e relay.Emitter) *serving {
	db.tb.Helper()
	return db.serveSource(db.source(), e)
}

func (db *database) serveSource(source *Source, e relay.Emitter) *serving {
	s := db.sender(e)
	ctx, cancel := context.WithCancel(db.tb.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.sender.Serve(ctx, source)
	}()
	s.stop = func() {
		cancel()
		<-ended
	}
	db.tb.Cleanup(s.stop)
	return s
}

func (s *serving) active() float64 {
	families, err := s.registry.Gather()
	if err != nil {
		s.tb.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "spendhook_relay_active" {
			return f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	s.tb.Fatal("no metric")
	return 0
}

func (s *serving) waitActive(want float64) {
	s.tb.Helper()
	waittest.Until(s.tb, "active", func() bool { return s.active() == want })
}

func (s *serving) waitLog(text string) {
	s.tb.Helper()
	waittest.Until(s.tb, text, func() bool { return strings.Contains(s.log.String(), text) })
}

// buffer is a bytes.Buffer for concurrent use.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// mapper takes the value of a record as an event.
type mapper struct{}

func (mapper) Event(_ context.Context, r *relay.Record) (event client.EventInput, key string, err error) {
	d := json.NewDecoder(bytes.NewReader(r.Value))
	d.DisallowUnknownFields()
	err = d.Decode(&event)
	return event, r.Key, err
}

// emitter is a daemon that accepts each id once. Its fields are set before it is used.
type emitter struct {
	reject   func(id string) bool
	tooOld   string        // the id of an event that is refused as too old
	refusals int           // of the first requests
	held     chan struct{} // unless nil, requests wait until it is closed

	mu        sync.Mutex // guards all below
	requests  int
	ids       []string // that were accepted, in order
	known     map[string]bool
	duplicate int
}

// SendAll implements relay.Emitter.
func (e *emitter) SendAll(ctx context.Context, events []client.EventInput) ([]client.EventItemResult, error) {
	results := make([]client.EventItemResult, len(events))
	e.mu.Lock()
	e.requests++
	refused := e.requests <= e.refusals
	e.mu.Unlock()
	if e.held != nil {
		select {
		case <-e.held:
		case <-ctx.Done():
			return results, ctx.Err()
		}
	}
	if refused {
		return results, &client.Error{Status: http.StatusServiceUnavailable}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for i := range events {
		results[i] = e.accept(&events[i])
	}
	return results, nil
}

func (e *emitter) accept(event *client.EventInput) client.EventItemResult {
	id := event.ID
	switch {
	case e.reject != nil && e.reject(id):
		return client.EventItemResult{
			Status: client.EventItemResultStatusREJECTED,
			Error:  &client.ItemError{Code: "INVALID", Message: "\x00on purpose\xff"},
		}
	case e.tooOld == id:
		return client.EventItemResult{
			Status: client.EventItemResultStatusREJECTED,
			Error:  &client.ItemError{Code: "EVENT_TOO_OLD"},
		}
	case e.known[id]:
		e.duplicate++
		return client.EventItemResult{Status: client.EventItemResultStatusDUPLICATE}
	}
	if e.known == nil {
		e.known = make(map[string]bool)
	}
	e.known[id] = true
	e.ids = append(e.ids, id)
	return client.EventItemResult{Status: client.EventItemResultStatusACCEPTED}
}

func (e *emitter) accepted() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]string{}, e.ids...)
}

func (e *emitter) repeated() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.duplicate
}

// wait waits until so many events were accepted.
func (e *emitter) wait(tb testing.TB, n int) {
	tb.Helper()
	waittest.Until(tb, func() string { return fmt.Sprintf("%d of %d accepted", len(e.accepted()), n) },
		func() bool { return len(e.accepted()) >= n })
}

// waitSent waits until so many requests were begun.
func (e *emitter) waitSent(tb testing.TB, n int) {
	tb.Helper()
	waittest.Until(tb, "a request", func() bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		return e.requests >= n
	})
}

// checkOrder checks that the rows of each key were accepted in the order of their numbers.
func (e *emitter) checkOrder(tb testing.TB) {
	tb.Helper()
	last := map[int]int{}
	for _, id := range e.accepted() {
		n, err := strconv.Atoi(strings.TrimPrefix(id, "row-"))
		if err != nil {
			tb.Fatal(err)
		}
		if before := last[n%keys]; before > n {
			tb.Errorf("row %d came after %d", n, before)
		}
		last[n%keys] = n
	}
}
