package console

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/google/uuid"

	"spendhook/audit"
	"spendhook/console/login"
	"spendhook/console/login/logintest"
	"spendhook/internal/clientcert"
)

// door is a desk with a login provider, and a browser that keeps its cookies.
type door struct {
	*desk

	provider *logintest.Provider
	log      bytes.Buffer
	tls      bool
	cookies  map[string]*http.Cookie
}

var acme, bolt = uuid.MustParse("aaaaaaaa-0000-4000-8000-000000000001"), uuid.MustParse("bbbbbbbb-0000-4000-8000-000000000002")

func newDoor(t *testing.T, edit ...func(*login.Options)) *door {
	t.Helper()
	d := &door{provider: logintest.New(t), cookies: map[string]*http.Cookie{}}
	d.desk = newDesk(t, func(o *Options) {
		opts := login.Options{
			Issuer: d.provider.Issuer, ClientID: logintest.ClientID, ClientSecret: logintest.ClientSecret,
			RedirectURL: "https://hooks.example.com/console/login/callback", GroupsClaim: "groups", CompanyClaim: "company",
			Roles: []login.Role{{Group: "ops", Name: "operator"}, {Group: "customers", Name: "company-support"}},
			Once:  o.Sessions.FinishLogin,
		}
		for _, e := range edit {
			e(&opts)
		}
		var err error
		if o.Login, err = login.New(opts); err != nil {
			t.Fatal(err)
		}
		o.Logger = slog.New(slog.NewTextHandler(&d.log, nil))
	})
	d.provider.SignIn(map[string]any{"sub": "ann", "groups": []string{"ops"}, "email": "ann@example.com"})
	return d
}

// do sends a request of the browser. A browser leaves out strict cookies when another site began the navigation.
func (d *door) do(r *http.Request, fromAnotherSite bool) *httptest.ResponseRecorder {
	d.t.Helper()
	if d.tls {
		r.TLS = &tls.ConnectionState{}
	}
	for _, c := range d.cookies {
		if c.SameSite != http.SameSiteStrictMode || !fromAnotherSite {
			r.AddCookie(c)
		}
	}
	w := httptest.NewRecorder()
	d.handler.ServeHTTP(w, r)
	for _, c := range w.Result().Cookies() {
		if d.cookies[c.Name] = c; c.MaxAge < 0 {
			delete(d.cookies, c.Name)
		}
	}
	return w
}

func (d *door) get(path string, fromAnotherSite bool) *httptest.ResponseRecorder {
	d.t.Helper()
	return d.do(httptest.NewRequestWithContext(d.t.Context(), http.MethodGet, path, http.NoBody), fromAnotherSite)
}

// comeBack signs in at the provider, and returns the answer to the callback.
func (d *door) comeBack() *httptest.ResponseRecorder {
	d.t.Helper()
	w := d.get("/console/login", false)
	if w.Code != http.StatusSeeOther {
		d.t.Fatalf("login: %d %s", w.Code, w.Body)
	}
	return d.get("/console/login/callback?"+d.provider.Authorize(d.t, w.Header().Get("Location")).Encode(), true)
}

func TestALoginOpensASession(t *testing.T) {
	t.Parallel()
	for _, secure := range []bool{false, true} {
		d := newDoor(t)
		d.tls = secure
		first := d.get("/console/tail", false)
		if first.Code != http.StatusUnauthorized || !strings.Contains(first.Body.String(), `href="/console/login"`) {
			t.Fatalf("without a session: %d %s", first.Code, first.Body)
		}
		prefix := map[bool]string{false: "spendhook-console", true: "__Host-spendhook"}[secure]
		d.get("/console/login", false)
		c := d.cookies[prefix+"-login"]
		if c == nil || !c.HttpOnly || c.Secure != secure || c.SameSite != http.SameSiteLaxMode || c.MaxAge != 600 || c.Path != "/" || c.Domain != "" {
			t.Fatalf("the cookie of the login: %v of %v", c, d.cookies)
		}
		back := d.comeBack()
		if back.Code != http.StatusOK || back.Header().Get("Refresh") != "0; url=/console/" || !strings.Contains(back.Body.String(), "Signed in") {
			t.Fatalf("callback: %d %v %s", back.Code, back.Header(), back.Body)
		}
		c = d.cookies[prefix]
		if len(d.cookies) != 1 || c == nil || !c.HttpOnly || c.Secure != secure || c.SameSite != http.SameSiteStrictMode || c.Path != "/" {
			t.Fatalf("the cookies: %v", d.cookies)
		}
		if page := d.get("/console/tail", false); page.Code != http.StatusOK {
			t.Errorf("with the session: %d", page.Code)
		}
		if again := d.get("/console/login", false); again.Header().Get("Location") != "/console/" {
			t.Errorf("a browser with a session: %v", again.Header())
		}
		entries, err := d.audit.List(t.Context(), audit.Filter{Action: "console-session.open"})
		if err != nil || len(entries.Items) != 1 {
			t.Fatalf("%+v, %v", entries, err)
		}
		e := entries.Items[0]
		if e.Actor.Subject != d.provider.Issuer+"|ann" || e.Actor.Issuer != d.provider.Issuer || e.Detail != "ann@example.com" || e.Actor.Kind != audit.Console {
			t.Errorf("the entry does not name ann: %+v", e)
		}
		d.refused.Store(true) // the provider is no longer configured
		if page := d.get("/console/tail", false); page.Code != http.StatusUnauthorized {
			t.Errorf("a session of another provider: %d", page.Code)
		}
	}
}

func TestALoginWithoutARoleOpensNothing(t *testing.T) {
	t.Parallel()
	d := newDoor(t)
	d.provider.SignIn(map[string]any{"sub": "eve", "groups": []string{"guests"}})
	back := d.comeBack()
	if back.Code != http.StatusForbidden || !strings.Contains(back.Body.String(), "has no access") || len(d.cookies) != 0 {
		t.Errorf("%d %s, cookies %v", back.Code, back.Body, d.cookies)
	}
	if log := d.log.String(); !strings.Contains(log, "console login refused") || !strings.Contains(log, "|eve") || !strings.Contains(log, "guests") {
		t.Errorf("the log: %s", log)
	}
	if keys := d.client.Keys(t.Context(), "sh:{console}:session*").Val(); len(keys) != 0 {
		t.Errorf("there are sessions: %v", keys)
	}
}

var linkField = regexp.MustCompile(`name="link" value="([^"]+)"`)

func TestAUserChoosesACompany(t *testing.T) {
	t.Parallel()
	d := newDoor(t)
	d.provider.SignIn(map[string]any{"sub": "ann", "groups": []string{"customers"}, "company": []any{acme, bolt}})
	back := d.comeBack()
	links := linkField.FindAllStringSubmatch(back.Body.String(), -1)
	if back.Code != http.StatusOK || len(links) != 2 || len(d.cookies) != 0 || back.Header().Get("Refresh") != "" {
		t.Fatalf("%d %s, cookies %v", back.Code, back.Body, d.cookies)
	}
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/console/open", strings.NewReader(url.Values{"link": {links[1][1]}}.Encode()))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	if w := d.do(r, false); w.Code != http.StatusSeeOther {
		t.Fatalf("open: %d %s", w.Code, w.Body)
	}
	if page := d.get("/console/tail", false); !strings.Contains(page.Body.String(), "Company bbbbbbbb") && !strings.Contains(page.Body.String(), bolt.String()) {
		t.Errorf("the session: %s", page.Body)
	}
	if page := d.get("/console/tail?company="+acme.String(), false); page.Code != http.StatusNotFound {
		t.Errorf("another company: %d", page.Code)
	}
}

// A callback that the browser did not begin opens nothing: with the address of an attacker, and with a cookie that the
// attacker has set.
func TestALoginIsBoundToItsBrowser(t *testing.T) {
	t.Parallel()
	d := newDoor(t)
	begun := d.get("/console/login", false)
	attackers := d.provider.Authorize(t, begun.Header().Get("Location")).Encode()
	d.cookies = map[string]*http.Cookie{}
	if w := d.get("/console/login/callback?"+attackers, true); w.Code != http.StatusBadRequest || len(d.cookies) != 0 || !strings.Contains(w.Body.String(), "Sign in again") {
		t.Errorf("in another browser: %d, %v", w.Code, d.cookies)
	}
	d.cookies["spendhook-console"] = &http.Cookie{Name: "spendhook-console", Value: "known to the attacker"}
	if w := d.comeBack(); w.Code != http.StatusOK || d.cookies["spendhook-console"].Value == "known to the attacker" {
		t.Errorf("with a cookie that was set before: %d, %v", w.Code, d.cookies)
	}
	if strings.Contains(d.log.String(), "refused") {
		t.Errorf("anybody can fill the log: %s", d.log.String())
	}
}

// No parameter leads elsewhere.
func TestALoginLeadsToTheConsoleOnly(t *testing.T) {
	t.Parallel()
	d := newDoor(t)
	w := d.get("/console/login?next=https://evil.example.com&redirect_uri=https://evil.example.com&iss=x", false)
	to, err := url.Parse(w.Header().Get("Location"))
	if err != nil || to.Host != strings.TrimPrefix(d.provider.Issuer, "http://") || strings.Contains(to.String(), "evil") {
		t.Fatalf("begin: %v, %v", to, err)
	}
	query := d.provider.Authorize(t, to.String())
	query.Set("next", "https://evil.example.com")
	if back := d.get("/console/login/callback?"+query.Encode(), true); back.Header().Get("Refresh") != "0; url=/console/" || strings.Contains(back.Body.String(), "evil") {
		t.Errorf("callback: %v %s", back.Header(), back.Body)
	}
}

// Whoever floods the login stores nothing, and does not reach the provider.
func TestAFloodOfLoginsIsLimited(t *testing.T) {
	t.Parallel()
	d := newDoor(t)
	refused := 0
	for range 100 {
		d.cookies = map[string]*http.Cookie{}
		if d.get("/console/login", false).Code == http.StatusTooManyRequests {
			refused++
		}
		if d.get("/console/login/callback?state=a&code=b", true).Code == http.StatusTooManyRequests {
			refused++
		}
	}
	if refused == 0 { // a busy machine takes so long that many are allowed
		t.Errorf("%d of 200 were refused", refused)
	}
	if keys := d.client.Keys(t.Context(), "sh:{console}:*").Val(); len(keys) != 0 {
		t.Errorf("they stored %v", keys)
	}
	if calls := d.provider.Calls("/token"); calls != 0 {
		t.Errorf("the provider got %d requests for tokens", calls)
	}
}

func TestALoginMayNeedACertificate(t *testing.T) {
	t.Parallel()
	d := newDoor(t, func(o *login.Options) { o.NeedsCertificate = map[string]bool{"subscribers": true} })
	if back := d.comeBack(); back.Code != http.StatusForbidden || !strings.Contains(back.Body.String(), "client certificate") || len(d.cookies) != 0 {
		t.Fatalf("without one: %d %s", back.Code, back.Body)
	}
	w := d.get("/console/login", false)
	back := "/console/login/callback?" + d.provider.Authorize(t, w.Header().Get("Location")).Encode()
	with := func(path string) *http.Request {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, http.NoBody)
		return r.WithContext(clientcert.With(r.Context(), &x509.Certificate{Raw: []byte("mine")}))
	}
	if got := d.do(with(back), true); got.Code != http.StatusOK {
		t.Fatalf("with one: %d %s", got.Code, got.Body)
	}
	if got := d.do(with("/console/tail"), false); got.Code != http.StatusOK {
		t.Errorf("the session with its certificate: %d", got.Code)
	}
	if got := d.get("/console/tail", false); got.Code != http.StatusForbidden {
		t.Errorf("the session without its certificate: %d", got.Code)
	}
}

// The console works without the provider, and says so to whoever wants to sign in.
func TestTheLoginProviderIsAway(t *testing.T) {
	t.Parallel()
	d := newDoor(t)
	away := func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "away", http.StatusBadGateway) }
	d.provider.Set(func(s *logintest.State) {
		s.Routes = map[string]http.HandlerFunc{"/.well-known/openid-configuration": away}
	})
	if w := d.get("/console/login", false); w.Code != http.StatusServiceUnavailable || !strings.Contains(w.Body.String(), "not possible now") || w.Header().Get("Retry-After") == "" {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

func TestWithoutAProviderThereIsNoLogin(t *testing.T) {
	t.Parallel()
	d := &door{desk: newDesk(t), cookies: map[string]*http.Cookie{}}
	for _, path := range []string{"/console/login", "/console/login/callback?state=a&code=b"} {
		if w := d.get(path, false); w.Code != http.StatusNotFound {
			t.Errorf("%s: %d", path, w.Code)
		}
	}
	if w := d.get("/console/tail", false); w.Code != http.StatusUnauthorized || strings.Contains(w.Body.String(), "/console/login") || !strings.Contains(w.Body.String(), "Ask for a new link") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}
