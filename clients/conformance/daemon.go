package conformance

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"spendhook/internal/httpsig"
)

const (
	company      = "0197a1b2-0000-7000-8000-000000000001"
	subscriber   = "0197a1b2-0000-7000-8000-000000000002"
	clientID     = "conformance"
	clientSecret = "the-secret-of-the-client"
	fixedToken   = "the-fixed-token"

	keysPath   = "/.well-known/webhook-keys/" + company
	feedPath   = "/api/v1/subscribers/" + subscriber + "/feed"
	eventsPath = "/api/v1/events"
	tokenPath  = "/oauth/token" //nolint:gosec // no credential
)

// daemon is the HTTP server of the misbehaving Spendhook.
type daemon struct {
	url    string
	server *http.Server
	now    func() time.Time
	sender sender // changed between deliveries only

	mu        sync.Mutex
	published []crypto.Signer
	keysGone  bool // the JWK Set is answered with 503
	tokens    int  // issued
	revoked   int  // the tokens up to this number are refused
	log       []*event
	pageSize  int
	feedGone  int        // requests of the feed that are to be answered with 503
	onPage    func()     // called with each request of the feed
	after     []int64    // of the requests of the feed
	script    []answerer // of the requests with events; beyond them all events are accepted
	got       []ingested
	other     []string // requests that nobody should send
}

// ingested is a request with events.
type ingested struct {
	at   time.Time
	auth string
	body []byte
	ids  []string
}

// answerer answers a request with events.
type answerer func(w http.ResponseWriter, got ingested)

func newDaemon(ctx context.Context, now func() time.Time) (*daemon, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	d := &daemon{url: "http://" + listener.Addr().String(), now: now}
	signing, v1a := newECDSA(), newEd25519()
	d.published = []crypto.Signer{newEd25519(), newECDSA(), signing, v1a}
	d.sender = sender{secrets: []string{newSecret()}, v1a: v1a, key: signing}
	d.reset()
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+keysPath, d.serveKeys)
	mux.HandleFunc("POST "+tokenPath, d.serveToken)
	mux.HandleFunc("GET "+feedPath, d.authorized(d.serveFeed))
	mux.HandleFunc("POST "+eventsPath, d.authorized(d.serveEvents))
	mux.HandleFunc("/", d.serveOther)
	d.server = &http.Server{Handler: mux, ReadHeaderTimeout: patience}
	go func() { _ = d.server.Serve(listener) }()
	return d, nil
}

func newEd25519() ed25519.PrivateKey {
	_, private, _ := ed25519.GenerateKey(rand.Reader) // never fails
	return private
}

func newECDSA() *ecdsa.PrivateKey {
	private, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader) // never fails
	return private
}

func (d *daemon) close() { _ = d.server.Close() }

// reset ends the misbehaviour of a case.
func (d *daemon) reset() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.keysGone, d.pageSize, d.feedGone, d.onPage, d.script = false, 100, 0, nil, nil
	d.after, d.got, d.other = nil, nil, nil
}

// change changes the behaviour.
func (d *daemon) change(f func(*daemon)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f(d)
}

// reads is how many pages of the feed were asked for.
func (d *daemon) reads() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.after)
}

func (d *daemon) serveKeys(w http.ResponseWriter, _ *http.Request) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.keysGone {
		problem(w, http.StatusServiceUnavailable, "UNAVAILABLE")
		return
	}
	keys := make([]httpsig.JWK, 0, len(d.published))
	for _, private := range d.published {
		key, err := httpsig.PublicJWK(private.Public())
		if err != nil {
			problem(w, http.StatusInternalServerError, err.Error())
			return
		}
		keys = append(keys, key)
	}
	w.Header().Set("Cache-Control", "public, max-age=300")
	reply(w, http.StatusOK, map[string]any{"keys": keys})
}

// serveToken issues an access token for the credentials.
func (d *daemon) serveToken(w http.ResponseWriter, r *http.Request) {
	id, secret, ok := r.BasicAuth()
	if !ok || id != clientID || secret != clientSecret || r.PostFormValue("grant_type") != "client_credentials" {
		reply(w, http.StatusUnauthorized, map[string]any{"error": "invalid_client", "error_description": "want HTTP Basic and grant_type=client_credentials"})
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.tokens++
	reply(w, http.StatusOK, map[string]any{"access_token": fmt.Sprintf("token-%d", d.tokens), "token_type": "Bearer", "expires_in": 3600, "scope": ""})
}

// authorized refuses requests without a token that is still valid.
func (d *daemon) authorized(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		token, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		text, issued := strings.CutPrefix(token, "token-")
		number, err := strconv.Atoi(text)
		d.mu.Lock()
		valid := token == fixedToken || (issued && err == nil && number > d.revoked && number <= d.tokens)
		d.mu.Unlock()
		if !valid {
			problem(w, http.StatusUnauthorized, "INVALID_TOKEN")
			return
		}
		next(w, r)
	}
}

// serveFeed answers with a page of the events.
func (d *daemon) serveFeed(w http.ResponseWriter, r *http.Request) {
	d.mu.Lock()
	after, refused := d.begin(r.FormValue("after"), r.FormValue("cursor"))
	onPage, gone := d.onPage, d.feedGone > 0
	d.after = append(d.after, after)
	d.feedGone = max(d.feedGone-1, 0)
	page := d.page(after)
	d.mu.Unlock()
	if onPage != nil {
		onPage()
	}
	if refused != nil {
		refused(w)
		return
	}
	if gone {
		problem(w, http.StatusServiceUnavailable, "UNAVAILABLE")
		return
	}
	reply(w, http.StatusOK, page)
}

// begin returns the number after which a page begins, or how the request is refused. It is called with the lock held.
func (d *daemon) begin(after, cursor string) (number int64, refused func(http.ResponseWriter)) {
	if after != "" && cursor == "" {
		if number, err := strconv.ParseInt(after, 10, 64); err == nil {
			return number, nil
		}
	}
	text, _, _ := strings.Cut(cursor, "-")
	number, err := strconv.ParseInt(text, 10, 64)
	if err != nil || after != "" {
		return 0, func(w http.ResponseWriter) { problem(w, http.StatusBadRequest, "VALIDATION_FAILED") }
	}
	if cursor != d.cursor(number) {
		return 0, func(w http.ResponseWriter) { problem(w, http.StatusConflict, "FEED_CHANGED") }
	}
	return number, nil
}

// cursor names the event with a number, of those that there are now. It is called with the lock held.
func (d *daemon) cursor(number int64) string {
	mark := ""
	for _, e := range d.log {
		if e.sequence == number {
			mark = e.id
		}
	}
	return fmt.Sprintf("%d-%s", number, mark)
}

// page is called with the lock held.
func (d *daemon) page(after int64) map[string]any {
	content, next, last := []map[string]any{}, after, int64(0)
	for _, e := range d.log {
		last = e.sequence
		if e.sequence <= after || len(content) == d.pageSize {
			continue
		}
		item := map[string]any{
			"sequence": e.sequence, "id": e.id, "event": e.kind, "timestamp": "2026-11-20T09:30:00.000Z", "acceptedAt": "2026-11-20T09:30:00.000Z",
		}
		if e.gone {
			item["gone"] = "COMPACTED"
		} else {
			item["body"], item["contentType"] = string(e.body), e.contentType
		}
		content, next = append(content, item), e.sequence
	}
	return map[string]any{"content": content, "next": next, "cursor": d.cursor(next), "more": next < last, "last": last, "forgotten": 0}
}

// serveEvents answers as the script says.
func (d *daemon) serveEvents(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	var items []struct {
		ID string `json:"id"`
	}
	if err == nil {
		err = json.Unmarshal(body, &items)
	}
	if err != nil {
		problem(w, http.StatusBadRequest, "INVALID_JSON")
		return
	}
	got := ingested{at: d.now(), auth: r.Header.Get("Authorization"), body: body}
	for _, item := range items {
		got.ids = append(got.ids, item.ID)
	}
	answer := accept
	d.mu.Lock()
	d.got = append(d.got, got)
	if len(d.script) > 0 {
		answer, d.script = d.script[0], d.script[1:]
	}
	d.mu.Unlock()
	answer(w, got)
}

func (d *daemon) serveOther(w http.ResponseWriter, r *http.Request) {
	d.mu.Lock()
	d.other = append(d.other, r.Method+" "+r.URL.Path)
	d.mu.Unlock()
	problem(w, http.StatusNotFound, "NOT_FOUND")
}

// requests returns the requests with events since the case began.
func (d *daemon) requests() []ingested {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.got)
}

// issued returns how many tokens were issued.
func (d *daemon) issued() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.tokens
}

func reply(w http.ResponseWriter, status int, value any) {
	text, err := json.Marshal(value)
	if err != nil {
		status, text = http.StatusInternalServerError, []byte("{}")
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = io.Copy(w, bytes.NewReader(text))
}

// problem answers with a problem document.
func problem(w http.ResponseWriter, status int, code string) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{"status": status, "code": code, "title": http.StatusText(status), "detail": "on purpose"})
}
