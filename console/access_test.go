package console

import (
	"crypto/x509"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/audit"
	"spendhook/console/session"
	"spendhook/internal/clientcert"
	"spendhook/internal/peer"
	"spendhook/internal/ratelimit"
	"spendhook/internal/redistest"
	"spendhook/storage"
	"spendhook/storage/companies"
	"spendhook/storage/storagetest"
)

// desk is a console whose sessions are the test's.
type desk struct {
	t        *testing.T
	client   redis.UniversalClient
	audit    *audit.Log
	handler  http.Handler
	sessions *session.Store
	refused  atomic.Bool // the tokens of all askers
}

func newDesk(t *testing.T, edit ...func(*Options)) *desk {
	t.Helper()
	client := redistest.New(t)
	d := &desk{t: t, client: client, sessions: session.NewStore(client, nil)}
	log := audit.Open(audit.Options{Client: client, Dir: t.TempDir()})
	t.Cleanup(log.Close)
	d.audit = log
	opts := Options{
		Companies: companies.New(storagetest.Open(t, storage.Options{})),
		Sessions:  d.sessions, Audit: log, Accepts: func(session.Asker) bool { return !d.refused.Load() },
		Peers: peer.New(peer.Options{}), Limiter: ratelimit.New(client, nil), Logger: slog.New(slog.DiscardHandler),
	}
	for _, e := range edit {
		e(&opts)
	}
	var err error
	if d.handler, err = New(opts); err != nil {
		t.Fatal(err)
	}
	return d
}

func (d *desk) link(g session.Grant) string {
	d.t.Helper()
	g.Lifetime, g.Scopes = time.Hour, []string{readDeliveries}
	link, err := d.sessions.CreateLink(d.t.Context(), g)
	if err != nil {
		d.t.Fatal(err)
	}
	return link.Secret
}

// open opens a link in a browser with a certificate, and returns the status and the cookies.
func (d *desk) open(link string, cert *x509.Certificate) (int, []*http.Cookie) {
	d.t.Helper()
	r := httptest.NewRequestWithContext(d.t.Context(), http.MethodPost, "/console/open", strings.NewReader(url.Values{"link": {link}}.Encode()))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	if cert != nil {
		r = r.WithContext(clientcert.With(r.Context(), cert))
	}
	w := httptest.NewRecorder()
	d.handler.ServeHTTP(w, r)
	return w.Code, w.Result().Cookies()
}

// page requests a page that needs no data.
func (d *desk) page(w http.ResponseWriter, cookies []*http.Cookie) {
	r := httptest.NewRequestWithContext(d.t.Context(), http.MethodGet, "/console/tail", nil)
	for _, c := range cookies {
		r.AddCookie(c)
	}
	d.handler.ServeHTTP(w, r)
}

func (d *desk) status(cookies []*http.Cookie) int {
	w := httptest.NewRecorder()
	d.page(w, cookies)
	return w.Code
}

// A link that needed a certificate does not give the session to a browser without it.
func TestALinkOpensWithItsCertificate(t *testing.T) {
	t.Parallel()
	d, mine, other := newDesk(t), &x509.Certificate{Raw: []byte("mine")}, &x509.Certificate{Raw: []byte("other")}
	link := d.link(session.Grant{Bound: true, Asker: session.Asker{Certificate: clientcert.Thumbprint(mine)}})
	for _, wrong := range []*x509.Certificate{nil, other} {
		if status, _ := d.open(link, wrong); status != http.StatusForbidden {
			t.Errorf("with another certificate, or none: %d", status)
		}
	}
	if status, _ := d.open(link, mine); status != http.StatusSeeOther { // the refusals did not use it up
		t.Errorf("with the certificate: %d", status)
	}
}

func TestASessionEndsWithTheTokenThatAskedForIt(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	_, cookies := d.open(d.link(session.Grant{}), nil)
	waiting := d.link(session.Grant{})
	if status := d.status(cookies); status != http.StatusOK {
		t.Fatalf("before: %d", status)
	}
	d.refused.Store(true)
	if status := d.status(cookies); status != http.StatusUnauthorized {
		t.Errorf("after the token was revoked: %d", status)
	}
	if status, _ := d.open(waiting, nil); status != http.StatusNotFound {
		t.Errorf("a link of a revoked token: %d", status)
	}
}

// unread is the answer to a browser that does not read.
type unread struct {
	http.ResponseWriter

	writing func()
	closed  <-chan struct{}
}

func (u *unread) Write([]byte) (int, error) {
	u.writing()
	<-u.closed
	return 0, http.ErrHandlerTimeout
}

// The pages that one company does not read leave places to other companies.
func TestUnreadPagesHoldNoPlaceOfOthers(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	one, two := uuid.New(), uuid.New()
	_, greedy := d.open(d.link(session.Grant{Company: &one}), nil)
	_, other := d.open(d.link(session.Grant{Company: &two}), nil)
	closed := make(chan struct{})
	var pages sync.WaitGroup
	defer pages.Wait()
	defer close(closed)
	var answered sync.WaitGroup
	for range 2 * allPages / pageMemory {
		answered.Add(1)
		pages.Go(func() { d.page(&unread{httptest.NewRecorder(), sync.OnceFunc(answered.Done), closed}, greedy) })
	}
	answered.Wait() // each is unread, or refused
	if status := d.status(greedy); status != http.StatusServiceUnavailable {
		t.Errorf("the company itself: %d", status)
	}
	if status := d.status(other); status != http.StatusOK {
		t.Errorf("another company: %d", status)
	}
}
