package api

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"spendhook/api/gen"
	"spendhook/console/session"
	"spendhook/internal/clientcert"
	"spendhook/internal/redistest"
)

// link asks for a link and opens it.
func (h *harness) link(body string, options ...option) session.Session {
	h.t.Helper()
	made := as[gen.ConsoleLink](h.call("POST", "/api/v1/console-links", body, options...).want(http.StatusCreated))
	_, secret, _ := strings.Cut(made.URL, "/console/open?link=")
	opened, _, err := h.options.Sessions.Open(h.t.Context(), secret, session.Visitor{})
	if err != nil {
		h.t.Fatal(err)
	}
	return opened
}

// A link cannot give a session more permissions than the token of its request has.
func TestAConsoleSessionHasNoMorePermissionsThanItsCreator(t *testing.T) {
	t.Parallel()
	h := setup(t)
	few := bearer(h.mint(&h.company, "events:read deliveries:read"))
	got := h.link("", few)
	if strings.Join(got.Scopes, " ") != "deliveries:read events:read" || *got.Company != h.company || got.ReadOnly {
		t.Errorf("without a body: %+v", got)
	}
	got = h.link(`{"scopes":["events:read"],"readOnly":true,"lifetimeSeconds":60}`, few)
	if strings.Join(got.Scopes, " ") != "events:read" || !got.ReadOnly || got.Lifetime.Seconds() != 60 {
		t.Errorf("with fewer: %+v", got)
	}
	if got = h.link(`{"lifetimeSeconds":43200}`, few); got.Lifetime > time.Hour || got.ExpiresAt.After(got.Until) || time.Until(got.Until) > time.Hour {
		t.Errorf("a session of %v of a token for an hour: until %v of %v", got.Lifetime, got.ExpiresAt, got.Until)
	}
	if got.Asker.KeyID == "" {
		t.Error("the session does not know the key of the token")
	}
	ask := func(body string, status int, code string, options ...option) {
		t.Helper()
		h.call("POST", "/api/v1/console-links", body, options...).want(status, code)
	}
	ask(`{"scopes":["events:write"]}`, http.StatusForbidden, "INSUFFICIENT_SCOPE", few)
	ask(`{"scopes":["events:read","root"]}`, http.StatusForbidden, "INSUFFICIENT_SCOPE", few)
	ask(`{"scopes":[]}`, http.StatusBadRequest, "VALIDATION_ERROR", few)
	ask(`{"lifetimeSeconds":59}`, http.StatusBadRequest, "VALIDATION_ERROR", few)
	ask(`{"lifetimeSeconds":43201}`, http.StatusBadRequest, "VALIDATION_ERROR", few)
	ask(`{"allCompanies":true}`, http.StatusForbidden, "COMPANY_MISMATCH", few)
	ask(`{"allCompanies":true}`, http.StatusForbidden, "INSUFFICIENT_SCOPE", bearer(h.mint(nil, "events:read")))
	platform := bearer(h.mint(nil, "events:read platform"))
	ask(`{}`, http.StatusBadRequest, "VALIDATION_ERROR", platform)
	ask(`{"allCompanies":true,"companyUuid":"`+h.company.String()+`"}`, http.StatusBadRequest, "VALIDATION_ERROR", platform)
	if got = h.link(`{"allCompanies":true}`, platform); got.Company != nil || !got.May("platform") {
		t.Errorf("of a platform: %+v", got)
	}
	if got = h.link(`{"companyUuid":"`+h.company.String()+`"}`, platform); *got.Company != h.company || got.May("platform") {
		t.Errorf("of a platform for a company: %+v", got)
	}
}

// A link opens only with the certificate of its request, if its scopes need one.
func TestALinkNeedsTheCertificateOfItsScopes(t *testing.T) {
	t.Parallel()
	h, ca := setupMutual(t)
	cert := clientCert(t, ca)
	for scopes, bound := range map[string]bool{"subscribers:read": true, "events:read": false} {
		made := as[gen.ConsoleLink](h.call("POST", "/api/v1/console-links", `{"scopes":["`+scopes+`"]}`, withCert(cert)).want(http.StatusCreated))
		_, secret, _ := strings.Cut(made.URL, "/console/open?link=")
		if grant, err := h.options.Sessions.Peek(t.Context(), secret); err != nil || grant.Bound != bound || grant.Asker.Certificate != clientcert.Thumbprint(cert) {
			t.Errorf("%s: %v %+v", scopes, err, grant)
		}
	}
}

// TestConsoleSessionsOfOthers: an operator sees and ends those of the company, any
// other credential its own.
func TestConsoleSessionsOfOthers(t *testing.T) {
	t.Parallel()
	h := setup(t)
	ann, ben := bearer(h.mintAs("ann", &h.company, "events:read")), bearer(h.mintAs("ben", &h.company, "events:read"))
	mine, other := h.link("", ann), h.link("", ben)
	listed := func(options ...option) (ids []string) {
		t.Helper()
		for _, s := range as[gen.ConsoleSessionList](h.call("GET", "/api/v1/console-sessions", "", options...).want(http.StatusOK)).Content {
			ids = append(ids, s.UUID.String())
		}
		return ids
	}
	if got := listed(ann); len(got) != 1 || got[0] != mine.ID.String() {
		t.Errorf("ann sees %v", got)
	}
	if got := listed(); len(got) != 2 {
		t.Errorf("an operator sees %v", got)
	}
	h.call("DELETE", "/api/v1/console-sessions/"+other.ID.String(), "", ann).want(http.StatusNotFound, "NOT_FOUND")
	h.call("DELETE", "/api/v1/console-sessions/"+mine.ID.String(), "", ann).want(http.StatusNoContent)
	h.call("DELETE", "/api/v1/console-sessions/"+other.ID.String(), "").want(http.StatusNoContent)
	if got := listed(); len(got) != 0 {
		t.Errorf("after their ends: %v", got)
	}
	platform := bearer(h.mint(nil, "events:read platform"))
	all := h.link(`{"allCompanies":true}`, platform)
	h.call("DELETE", "/api/v1/console-sessions/"+all.ID.String(), "").want(http.StatusNotFound)
	h.call("DELETE", "/api/v1/console-sessions/"+all.ID.String()+"?allCompanies=true", "", platform).want(http.StatusNoContent)
}

// TestTooManyConsoleLinks: the number of unopened links is bounded.
func TestTooManyConsoleLinks(t *testing.T) {
	t.Parallel()
	client, at := redistest.New(t), time.Now()
	// The clock stands still: no link expires while the others are made.
	links := session.NewStore(client, func() time.Time { return at })
	h := setupOn(t, client, func(o *Options) { o.Sessions = links })
	h.call("POST", "/api/v1/console-links", "").want(http.StatusCreated)
	for i := 1; i < 500; i++ {
		if _, err := links.CreateLink(t.Context(), session.Grant{Company: &h.company, Lifetime: time.Hour}); err != nil {
			t.Fatal(err)
		}
		if i%10 == 9 { // nor in Redis, where a link lasts a minute
			_, err := client.Pipelined(t.Context(), func(pipe redis.Pipeliner) error {
				for _, key := range client.Keys(t.Context(), "*link:*").Val() {
					pipe.Persist(t.Context(), key)
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	h.call("POST", "/api/v1/console-links", "").want(http.StatusTooManyRequests, "TOO_MANY_CONSOLE_LINKS")
}

// Whoever opens the address of the daemon in a browser gets to the console, if there is one.
func TestTheRootLeadsToTheConsole(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.call("GET", "/", "", noToken).want(http.StatusNotFound, "NO_SUCH_ROUTE")
	h.options.Console = http.NotFoundHandler()
	handler, err := New(h.options)
	if err != nil {
		t.Fatal(err)
	}
	for method, want := range map[string]int{http.MethodGet: http.StatusSeeOther, http.MethodHead: http.StatusSeeOther, http.MethodPost: http.StatusMethodNotAllowed} {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), method, "/", http.NoBody))
		if to := w.Header().Get("Location"); w.Code != want || want == http.StatusSeeOther && to != "/console/" {
			t.Errorf("%s: %d %q", method, w.Code, to)
		}
	}
}
