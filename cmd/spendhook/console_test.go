package main

import (
	"context"
	"fmt"
	"html"
	"io"
	"maps"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/api/gen"
	"spendhook/dispatcher/delivery/attempt"
	"spendhook/subscribers/layout"
)

// TestConsoleStory: a receiver fails; its cause is found in three clicks; it is
// mended; the dead letters are retried; all is well.
func TestConsoleStory(t *testing.T) {
	w := newStory(t)
	w.failing = w.subscribe("Ledger", "/broken/ledger", "PAYMENT_PAID")
	w.emit("evt_1", "PAYMENT_PAID", nil)
	w.emit("evt_2", "PAYMENT_PAID", nil)
	w.awaitDead("evt_1." + w.failing)
	w.awaitDead("evt_2." + w.failing)
	b := openBrowserAt(t, w.daemon.api)
	b.enter(w.daemon)
	b.eventually("the overview shows it", func() bool {
		b.visit("/console/")
		return strings.Contains(b.text(), "Failing")
	})
	b.goes("Ledger")         // 1: the subscriber
	b.goes("All deliveries") // 2: its deliveries
	b.open("tbody a")        // 3: one of them
	b.says("the ledger is closed: no connection to ledger-db-2")

	w.broken.Store(false)
	b.visit("/console/subscribers/" + w.failing)
	b.goes("Send a test delivery")
	b.says("The test delivery arrived")
	b.goes("Dead letters")
	b.says("evt_2")
	b.eventually("all are ticked", func() bool {
		return b.is(`(document.querySelector("[data-all]").checked || document.querySelector("[data-all]").click(), document.querySelector("[data-selected]").innerText.includes("(2)"))`)
	})
	b.goes("Retry the selected")
	b.says("2 deliveries are attempted again")
	b.eventually("the overview is well", func() bool {
		b.visit("/console/")
		return strings.Contains(b.text(), "Every subscriber is healthy")
	})
	b.visit("/console/audit")
	b.says("delivery.retry")
	b.goes("Sign out")
	b.says("Signed out")
	b.expect("401")
	if status := b.visit("/console/"); status != http.StatusUnauthorized {
		t.Errorf("after leaving: %d", status)
	}
	b.says("No session")
}

// visitor is an HTTP client with cookies. It runs no scripts.
type visitor struct {
	t    *testing.T
	base string
	http *http.Client
}

func newVisitor(t *testing.T, base string) *visitor {
	t.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	return &visitor{t, base, &http.Client{Jar: jar, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}
}

// get and post return the status, the headers and the page.
// get requests a page. It repeats the request while the answer is 503: the daemon was too busy
// to make the page in time.
func (v *visitor) get(path string) (status int, header http.Header, page string) {
	v.t.Helper()
	eventually(v.t, patience, path+" is answered", func() bool {
		status, header, page = v.send(http.MethodGet, path, nil)
		return status != http.StatusServiceUnavailable
	})
	return status, header, page
}

func (v *visitor) post(path string, form url.Values, headers ...string) (int, http.Header, string) {
	v.t.Helper()
	return v.send(http.MethodPost, path, form, headers...)
}

func (v *visitor) send(method, path string, form url.Values, headers ...string) (int, http.Header, string) {
	v.t.Helper()
	req, err := http.NewRequestWithContext(v.t.Context(), method, v.base+path, strings.NewReader(form.Encode()))
	if err != nil {
		v.t.Fatal(err)
	}
	if form != nil {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := v.http.Do(req)
	if err != nil {
		v.t.Fatal(err)
	}
	defer resp.Body.Close()
	page, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, resp.Header, string(page)
}

// enter opens a session by a link, which is the address or its secret.
func (v *visitor) enter(link string) (int, http.Header) {
	v.t.Helper()
	_, secret, _ := strings.Cut(link, "?link=")
	status, header, _ := v.post("/console/open", url.Values{"link": {secret}})
	return status, header
}

var tokenField = regexp.MustCompile(`name="token" value="([^"]+)"`)

// token returns the CSRF token in the forms of the session.
func (v *visitor) token() string {
	v.t.Helper()
	_, _, page := v.get("/console/")
	found := tokenField.FindStringSubmatch(page)
	if found == nil {
		v.t.Fatalf("no token in %s", page)
	}
	return found[1]
}

// TestConsoleSessionNeedsALink: a link opens one session with a protected cookie. Without a
// link there is no session, not even with a cookie that the visitor has chosen.
func TestConsoleSessionNeedsALink(t *testing.T) {
	t.Parallel()
	w := newStory(t)
	link := w.daemon.consoleLink(t)
	v := newVisitor(t, w.daemon.api)
	for _, path := range []string{"/console/", "/console/subscribers", "/console/no-such-page"} {
		if status, _, page := v.get(path); status != http.StatusUnauthorized || !strings.Contains(page, "No session") {
			t.Errorf("%s without a session: %d", path, status)
		}
	}
	for range 3 { // looking does not use it up
		if status, _, page := v.get(strings.TrimPrefix(link, w.daemon.api)); status != http.StatusOK || !strings.Contains(page, developerCompany.String()) {
			t.Fatalf("the link: %d %s", status, page)
		}
	}
	// Session fixation: opening a link ignores a cookie that the browser already has.
	address, _ := url.Parse(w.daemon.api)
	v.http.Jar.SetCookies(address, []*http.Cookie{{Name: "spendhook-console", Value: "known-to-me", Path: "/"}})
	status, header := v.enter(link)
	cookie := header.Get("Set-Cookie")
	if status != http.StatusSeeOther || header.Get("Location") != "/console/" {
		t.Fatalf("open: %d %v", status, header)
	}
	for _, attribute := range []string{"spendhook-console=", "Path=/", "HttpOnly", "SameSite=Strict"} {
		if !strings.Contains(cookie, attribute) {
			t.Errorf("the cookie lacks %s: %s", attribute, cookie)
		}
	}
	if strings.Contains(cookie, "known-to-me") || strings.Contains(cookie, "Domain") {
		t.Errorf("cookie %s", cookie)
	}
	status, header, _ = v.get("/console/")
	policy := header.Get("Content-Security-Policy")
	if status != http.StatusOK || header.Get("Cache-Control") != "no-store" || strings.Contains(policy, "unsafe") || !strings.Contains(policy, "default-src 'none'") {
		t.Errorf("the overview: %d %v", status, header)
	}
	if status, _ := newVisitor(t, w.daemon.api).enter(link); status != http.StatusNotFound {
		t.Errorf("the link again: %d", status)
	}
	if status, _ := newVisitor(t, w.daemon.api).enter("?link="); status != http.StatusNotFound {
		t.Errorf("no link: %d", status)
	}
	// Opening another one ends the session that the browser had.
	old := v.http.Jar.Cookies(address)
	if status, _ := v.enter(w.daemon.consoleLink(t)); status != http.StatusSeeOther {
		t.Fatalf("another link: %d", status)
	}
	v.http.Jar.SetCookies(address, old)
	if status, _, _ := v.get("/console/"); status != http.StatusUnauthorized {
		t.Errorf("with the former session: %d", status)
	}
}

// TestConsoleSessionIsEnded: the command ends a session, which is refused from then on.
// Other clients do not see the session in the list.
func TestConsoleSessionIsEnded(t *testing.T) {
	t.Parallel()
	w := newStory(t)
	v := newVisitor(t, w.daemon.api)
	v.enter(w.daemon.consoleLink(t, "--read-only"))
	listed := w.daemon.cli(t, "", "console-session", "list")
	listed.want(t, exitOK, "developer", "")
	id := strings.TrimSpace(w.daemon.cli(t, "", "console-session", "list", "-o", "name").stdout)
	if _, err := uuid.Parse(id); err != nil || !strings.Contains(listed.stdout, id) || !strings.Contains(listed.stdout, "true") {
		t.Fatalf("%q in %s", id, listed.stdout)
	}
	other := []string{"--url", w.daemon.api, "--token-file", secretFile(t, w.mint(uuid.NewString()))}
	command(t, "", append([]string{"console-session", "list", "-o", "json"}, other...)...).want(t, exitOK, "[]", "")
	command(t, "", append([]string{"console-session", "end", id, "--yes"}, other...)...).want(t, exitNotFound, "", "")
	end := func(flags ...string) result {
		return w.daemon.cli(t, "", "console-session", append([]string{"end", id}, flags...)...)
	}
	end().want(t, exitUsage, "", "Add --yes")
	end("--dry-run").want(t, exitOK, "DELETE "+w.daemon.api+"/api/v1/console-sessions/"+id, "")
	if status, _, _ := v.get("/console/"); status != http.StatusOK {
		t.Fatalf("a session that was not ended: %d", status)
	}
	end("--yes").want(t, exitOK, "ended", "")
	if status, _, _ := v.get("/console/"); status != http.StatusUnauthorized {
		t.Errorf("an ended session: %d", status)
	}
	end("--yes").want(t, exitNotFound, "", "")
	_, _, log := w.daemon.do(t, http.MethodGet, "/api/v1/audit?action=console-session.end", "")
	if strings.Count(log, `"console-session.end"`) != 1 || !strings.Contains(log, id) {
		t.Errorf("the audit log: %s", log)
	}
}

// TestConsoleChangesNeedTheirForm: a change is refused from another site, with another
// session's token, without a token, in a read-only session, and without the scope.
func TestConsoleChangesNeedTheirForm(t *testing.T) {
	t.Parallel()
	w := newStory(t)
	id := w.subscribe("Ledger", "/well/ledger", "PAYMENT_PAID")
	path := "/console/subscribers/" + id + "/pause"
	v, other := newVisitor(t, w.daemon.api), newVisitor(t, w.daemon.api)
	v.enter(w.daemon.consoleLink(t))
	other.enter(w.daemon.consoleLink(t))
	refused := func(what string, who *visitor, token string, headers ...string) {
		t.Helper()
		if status, _, _ := who.post(path, url.Values{"token": {token}}, headers...); status != http.StatusForbidden {
			t.Errorf("%s: %d", what, status)
		}
		var sub struct{ Paused bool }
		w.daemon.read(t, "/api/v1/subscribers/"+id, &sub)
		if sub.Paused {
			t.Fatalf("%s has paused it", what)
		}
	}
	refused("no token", v, "")
	refused("another session's token", v, other.token())
	refused("another site", v, v.token(), "Sec-Fetch-Site", "cross-site")
	refused("another origin", v, v.token(), "Origin", "https://evil.example")
	readOnly, few := newVisitor(t, w.daemon.api), newVisitor(t, w.daemon.api)
	readOnly.enter(w.daemon.consoleLink(t, "--read-only"))
	refused("a read-only session", readOnly, readOnly.token())
	few.enter(w.daemon.consoleLink(t, "--scope", "subscribers:read"))
	refused("a session without the scope", few, few.token())
	if _, _, page := readOnly.get("/console/subscribers/" + id); !strings.Contains(page, "Ledger") || strings.Contains(page, "Pause") || strings.Contains(page, "/edit") {
		t.Error("a read-only session sees buttons")
	}
	for _, path := range []string{"/console/audit", "/console/events", "/console/dead", "/console/system"} {
		if status, _, page := few.get(path); status != http.StatusForbidden || !strings.Contains(page, "Not allowed") {
			t.Errorf("%s without the scope: %d", path, status)
		}
	}
	if status, _, page := v.post(path, url.Values{"token": {v.token()}}, "Sec-Fetch-Site", "same-origin"); status != http.StatusSeeOther {
		t.Fatalf("with the right form: %d %s", status, page)
	}
	_, _, log := w.daemon.do(t, http.MethodGet, "/api/v1/audit?action=subscriber.pause", "")
	if !strings.Contains(log, `"kind":"console"`) || !strings.Contains(log, `"subject":"developer"`) || strings.Count(log, "subscriber.pause") != 1 {
		t.Errorf("the audit log: %s", log)
	}
}

// TestConsoleSetsAnAccessToken: the form sets, keeps and removes a client secret, and never shows it.
func TestConsoleSetsAnAccessToken(t *testing.T) {
	t.Parallel()
	w := newStory(t)
	e := w.editor()
	save := func(wanted int, fields url.Values) string {
		t.Helper()
		page := e.save(wanted, fields)
		if strings.Contains(page, "hunter22") {
			t.Fatalf("%v: %s", fields, page)
		}
		return page
	}
	shown := func() *gen.OAuth { return e.shown().OAuth }
	form := func(tokenURL, clientID, secret string) url.Values {
		return url.Values{"tokenUrl": {tokenURL}, "clientId": {clientID}, "clientSecret": {secret}, "scope": {"hooks"}, "audience": {""}}
	}
	save(http.StatusSeeOther, form("", "", "")) // none, as before
	if page := save(http.StatusBadRequest, form("http://", "us", "hunter22")); strings.Contains(page, "Unchanged") {
		t.Errorf("there is no secret yet: %s", page)
	}
	save(http.StatusSeeOther, form("https://login.example.com/token", "us", "hunter22"))
	if o := shown(); o == nil || o.ClientID != "us" || *o.Scope != "hooks" || o.Audience != nil {
		t.Fatalf("%+v", o)
	}
	for _, page := range []string{e.path, e.path + "/edit"} {
		if _, _, text := e.visitor.get(page); !strings.Contains(text, "https://login.example.com/token") || strings.Contains(text, "hunter22") {
			t.Errorf("%s: %s", page, text)
		}
	}
	save(http.StatusSeeOther, form("https://login.example.com/token", "we", "")) // the secret stays
	if page := save(http.StatusBadRequest, form("https://evil.example/token", "we", "")); !strings.Contains(page, "Unchanged") || !strings.Contains(page, "must be given again") || !strings.Contains(page, "https://evil.example/token") {
		t.Errorf("another origin: %s", page)
	}
	if o := shown(); o == nil || o.ClientID != "we" || o.TokenURL != "https://login.example.com/token" {
		t.Errorf("%+v", o)
	}
	save(http.StatusSeeOther, form("", "we", ""))
	if o := shown(); o != nil {
		t.Errorf("removed: %+v", o)
	}
	_, _, log := w.daemon.do(t, http.MethodGet, "/api/v1/audit?action=subscriber.update", "")
	if strings.Contains(log, "hunter22") || !strings.Contains(log, "tokenUrl") {
		t.Errorf("the audit log: %s", log)
	}
}

func TestConsoleSetsHowDeliveriesAreRetried(t *testing.T) {
	t.Parallel()
	e := newStory(t).editor()
	e.save(http.StatusSeeOther, url.Values{"stopOn": {" 422, 404\n"}})
	if got := e.shown().StopOn; got == nil || !slices.Equal(*got, []int{404, 422}) {
		t.Errorf("%v", got)
	}
	if _, _, page := e.visitor.get(e.path); !strings.Contains(page, "an answer with 404, 422") {
		t.Error(page)
	}
	e.save(http.StatusSeeOther, url.Values{"retrySchedule": {"5 3600"}})
	if got := e.shown(); got.RetrySchedule == nil || !slices.Equal(*got.RetrySchedule, []int{5, 3600}) || got.StopOn == nil {
		t.Errorf("%v", got)
	}
	for _, page := range []string{e.path, e.path + "/edit"} {
		if _, _, text := e.visitor.get(page); !strings.Contains(text, "5.0 s, 1 h") && !strings.Contains(text, `value="5 3600"`) {
			t.Errorf("%s: %s", page, text)
		}
	}
	for _, wrong := range []string{"422 x", "410"} {
		if page := e.save(http.StatusBadRequest, url.Values{"stopOn": {wrong}}); !strings.Contains(page, "stopOn") {
			t.Errorf("%s: %s", wrong, page)
		}
	}
	if _, _, page := e.visitor.get(e.path + "/edit"); !strings.Contains(page, `value="404 422"`) {
		t.Error(page)
	}
	e.save(http.StatusSeeOther, url.Values{"stopOn": {""}})
	if got := e.shown().StopOn; got != nil {
		t.Errorf("%v", got)
	}
}

// The form shows what a transform makes of the latest events before it is saved.
func TestConsoleTriesATransform(t *testing.T) {
	t.Parallel()
	w := newStory(t)
	e := w.editor()
	w.emit("evt-1", "PAYMENT_PAID", map[string]any{"amount": "12.50", "payee": "<b>Alice</b>"})
	try := func(transform string) string {
		_, _, page := e.visitor.post(e.path+"/filter-test", url.Values{
			"token": {e.visitor.token()}, "events": {"PAYMENT_PAID"}, "filter": {`metadata.amount == "12.50"`}, "transform": {transform},
		}, "Sec-Fetch-Site", "same-origin")
		return html.UnescapeString(page)
	}
	for transform, want := range map[string]string{
		`{"text": "Paid " + metadata.amount + " to " + metadata.payee}`: `{"text":"Paid 12.50 to <b>Alice</b>"}`,
		`{"text": metadata.refund}`:                                     "no such key: refund",
		`{"text": `:                                                     "transform: line 1",
	} {
		if page := try(transform); !strings.Contains(page, want) {
			t.Errorf("%s: no %s in %s", transform, want, page)
		}
	}
	e.save(http.StatusSeeOther, url.Values{"transform": {`{"text": event}`}})
	if got := e.shown().Transform; got == nil || *got != `{"text": event}` {
		t.Errorf("saved: %v", got)
	}
	for _, page := range []string{e.path, e.path + "/edit", "/console/events/" + developerCompany.String() + "/evt-1"} {
		if _, _, text := e.visitor.get(page); !strings.Contains(html.UnescapeString(text), `{"text": event}`) && !strings.Contains(html.UnescapeString(text), `{"text":"PAYMENT_PAID"}`) {
			t.Errorf("%s: %s", page, text)
		}
	}
}

// TestConsoleSetsTheSignatures: the form shows how deliveries are signed, and with which algorithm.
func TestConsoleSetsTheSignatures(t *testing.T) {
	t.Parallel()
	e := newStory(t).editor()
	form := func(chosen ...string) {
		t.Helper()
		_, _, page := e.visitor.get(e.path + "/edit")
		if !strings.Contains(page, `<label for="f-signatures">Signatures</label><select id="f-signatures" name="signatures">`) {
			t.Errorf("no field for the signatures: %s", page)
		}
		for _, value := range chosen {
			if !strings.Contains(page, `value="`+value+`" selected`) {
				t.Errorf("%s is not chosen: %s", value, page)
			}
		}
	}
	form("standard")
	e.save(http.StatusBadRequest, url.Values{"signatures": {"none"}})
	e.save(http.StatusSeeOther, url.Values{"signatures": {"standard http-message"}, "signatureAlgorithm": {"ecdsa-p256-sha256"}})
	if got := e.shown(); got.Signatures == nil || !slices.Equal(*got.Signatures, gen.Signatures{"standard", "http-message"}) || got.SignatureAlgorithm == nil || *got.SignatureAlgorithm != "ecdsa-p256-sha256" {
		t.Errorf("saved: %v %v", got.Signatures, got.SignatureAlgorithm)
	}
	form("standard http-message")
	if _, _, page := e.visitor.get(e.path); !strings.Contains(page, "<dt>Signatures</dt><dd>standard, http-message</dd>") {
		t.Errorf("the page of the subscriber: %s", page)
	}
}

// TestConsoleFiltersByFailure: deliveries can be found by every failure that is recorded.
func TestConsoleFiltersByFailure(t *testing.T) {
	t.Parallel()
	w := newStory(t)
	v := newVisitor(t, w.daemon.api)
	v.enter(w.daemon.consoleLink(t))
	_, _, page := v.get("/console/deliveries")
	_, field, _ := strings.Cut(page, `<select id="error"`)
	field, _, _ = strings.Cut(field, "</select>")
	for _, class := range attempt.ErrorClasses() {
		r := attempt.Result{Class: class}
		recorded := !r.Success() && !r.Aborted() // the class of a delivery is that of its last counted attempt
		if class != attempt.ClassNone && strings.Contains(field, `<option value="`+string(class)+`">`) != recorded {
			t.Errorf("%s: want it offered: %v", class, recorded)
		}
	}
}

// editor saves the form of a subscriber.
type editor struct {
	story   *story
	visitor *visitor
	id      string
	path    string // of its page
}

func (w *story) editor() *editor {
	w.t.Helper()
	e := &editor{story: w, visitor: newVisitor(w.t, w.daemon.api), id: w.subscribe("Ledger", "/well/ledger", "PAYMENT_PAID")}
	e.path = "/console/subscribers/" + e.id
	e.visitor.enter(w.daemon.consoleLink(w.t))
	return e
}

// save sends the form, and returns the page of the answer.
func (e *editor) save(wanted int, fields url.Values) string {
	e.story.t.Helper()
	return e.visitor.submit(wanted, e.path+"/edit", fields)
}

func (e *editor) shown() (sub gen.Subscriber) {
	e.story.t.Helper()
	e.story.daemon.read(e.story.t, "/api/v1/subscribers/"+e.id, &sub)
	return sub
}

// TestConsoleShowsADamagedCertificate: its subscriber's page is still shown.
func TestConsoleShowsADamagedCertificate(t *testing.T) {
	t.Parallel()
	w := newStory(t)
	id := uuid.MustParse(w.subscribe("Ledger", "/well/ledger", "PAYMENT_PAID"))
	options, err := redis.ParseURL(w.home.redis)
	if err != nil {
		t.Fatal(err)
	}
	client := redis.NewClient(options)
	defer func() { _ = client.Close() }()
	if err := client.HSet(t.Context(), layout.CompanyKey(developerCompany), layout.CertificateFieldOf(id), "{").Err(); err != nil {
		t.Fatal(err)
	}
	v := newVisitor(t, w.daemon.api)
	v.enter(w.daemon.consoleLink(t))
	if status, _, page := v.get("/console/subscribers/" + id.String()); status != http.StatusOK || !strings.Contains(page, "cannot be read") {
		t.Errorf("%d %s", status, page)
	}
}

// TestConsoleShowsNoOtherCompany: no URL shows a company's session data of another company.
func TestConsoleShowsNoOtherCompany(t *testing.T) {
	t.Parallel()
	w := newStory(t)
	w.failing = w.subscribe("Secret ledger of ours", "/broken/ledger", "PAYMENT_PAID")
	w.emit("evt_ours", "PAYMENT_PAID", map[string]any{"our": "secret"})
	w.awaitDead("evt_ours." + w.failing)
	keys := kids(t, w.daemon.cli(t, "", "webhook-key", "list", "-o", "json"))
	key := keys["ed25519 SIGNING"]
	ours, theirs := developerCompany.String(), uuid.NewString()
	v := newVisitor(t, w.daemon.api)
	v.enter(w.linkFor(theirs))
	token := v.token()
	for _, base := range []string{
		"/console/", "/console/subscribers", "/console/subscribers/" + w.failing, "/console/subscribers/" + w.failing + "/edit",
		"/console/events", "/console/events/" + ours + "/evt_ours", "/console/events/" + ours + "/evt_ours/body", "/console/events/" + theirs + "/evt_ours",
		"/console/events?id=evt_ours", "/console/deliveries", "/console/deliveries?subscriber=" + w.failing, "/console/dead",
		"/console/deliveries/evt_ours." + w.failing, "/console/deliveries/evt_ours." + w.failing + "/body", "/console/audit", "/console/quarantine", "/console/access", "/console/jobs/" + w.failing,
		"/console/jobs", "/console/jobs?subscriber=" + w.failing, "/console/tail",
	} {
		for _, query := range []string{"", "company=" + ours, "company=" + strings.ToUpper(ours), "company=", "company=" + theirs + "&company=" + ours} {
			path := base
			if strings.Contains(path, "?") {
				path += "&" + query
			} else {
				path += "?" + query
			}
			status, _, page := v.get(path)
			if strings.Contains(page, "Secret ledger") || strings.Contains(page, `"our"`) || strings.Contains(page, "evt_ours</code>") || status >= 500 {
				t.Errorf("%s: %d shows %s", path, status, page)
			}
			if strings.Contains(query, "company="+ours) && !strings.Contains(query, theirs) && status != http.StatusNotFound && status != http.StatusSeeOther {
				t.Errorf("%s: %d", path, status)
			}
		}
	}
	for path, form := range map[string]url.Values{
		"/console/subscribers/" + w.failing + "/pause":                         {"company": {ours}},
		"/console/subscribers/" + w.failing + "/rotate-secret":                 {},
		"/console/deliveries/evt_ours." + w.failing + "/retry":                 {},
		"/console/deliveries/evt_ours." + w.failing + "/retry?company=" + ours: {},
		"/console/deliveries/evt_ours." + w.failing + "/verify":                {"timestamp": {"1"}, "signature": {"v1,AAAA"}},
		"/console/deliveries/retry":                                            {"id": {ours + "/evt_ours." + w.failing}},
		"/console/events/" + ours + "/evt_ours/replay":                         {},
		"/console/quarantine/drop":                                             {"of": {ours}, "id": {"evt_ours"}},
		"/console/deliveries/count":                                            {"company": {ours}, "status": {"DEAD"}, "kind": {"RETRY"}},
		"/console/jobs/" + w.failing + "/start":                                {},
		"/console/jobs/" + w.failing + "/cancel":                               {},
		"/console/subscribers/" + w.failing + "/delete":                        {"revision": {"1"}},
		"/console/subscribers/" + w.failing + "/certificate/delete":            {},
		"/console/events/" + ours + "/evt_ours/erase":                          {},
		"/console/subscribers/new":                                             {"company": {ours}, "name": {"Ours"}},
		"/console/webhook-keys/rotate":                                         {"company": {ours}},
		"/console/webhook-keys/" + key + "/revoke":                             {},
		"/console/webhook-keys/" + key + "/revoke?company=" + ours:             {},
		"/console/events/new":                                                  {"company": {ours}, "id": {"theirs"}},
	} {
		form.Set("token", token)
		if status, _, page := v.post(path, form); status != http.StatusNotFound {
			t.Errorf("POST %s: %d %s", path, status, page)
		}
	}
	if n := w.came.Load(); n != 0 {
		t.Errorf("%d deliveries were made", n)
	}
	if now := kids(t, w.daemon.cli(t, "", "webhook-key", "list", "-o", "json")); !maps.Equal(now, keys) {
		t.Errorf("the keys were changed from %v to %v", keys, now)
	}
}

// linkFor returns a link for another company.
func (w *story) linkFor(company string) string {
	w.t.Helper()
	token := w.mint(company)
	printed := command(w.t, "", "console", "--url", w.daemon.api, "--token-file", secretFile(w.t, token))
	printed.want(w.t, exitOK, "/console/open?link=", "")
	return strings.TrimSpace(printed.stdout)
}

// mint makes a token of a company, or of none for "".
func (w *story) mint(company string) string {
	w.t.Helper()
	scopes := "subscribers:read subscribers:write events:read events:write deliveries:read deliveries:write cards:read operator"
	args := []string{"token", "--data-dir", w.home.dir, "--scope", scopes}
	if company != "" {
		args = append(args, "--company", company)
	} else {
		args[len(args)-1] += " platform"
	}
	printed := command(w.t, "", args...)
	printed.want(w.t, exitOK, "", "")
	return strings.TrimSpace(printed.stdout)
}

// TestConsoleOfManySubscribers: pages have a bounded length, and together they show all
// subscribers.
func TestConsoleOfManySubscribers(t *testing.T) {
	t.Parallel()
	w := newStory(t, "subscribers: {max_per_company: 200}\n")
	const many = 120
	var ids []string
	for i := range many {
		ids = append(ids, w.subscribe(fmt.Sprintf("Number %d.", i), fmt.Sprintf("/well/%d", i), fmt.Sprintf("KIND_%d", i)))
	}
	w.emit("evt_1", "KIND_119", nil)
	eventually(t, patience, "it is delivered", func() bool { return w.came.Load() == 1 })
	for _, id := range []string{ids[3], ids[77]} {
		if status, _, text := w.daemon.do(t, "POST", "/api/v1/subscribers/"+id+"/pause", ""); status != http.StatusOK {
			t.Fatalf("pause: %d %s", status, text)
		}
	}
	v := newVisitor(t, w.daemon.api)
	v.enter(w.daemon.consoleLink(t))
	page := func(path string) string {
		t.Helper()
		status, _, text := v.get(path)
		if status != http.StatusOK {
			t.Fatalf("%s: %d", path, status)
		}
		return text
	}
	event := "/console/events/" + developerCompany.String() + "/evt_1"
	names := regexp.MustCompile(`Number \d+\.`)
	first, second := page(event), page(event+"?page=1")
	on := names.FindAllString(first, -1)
	if len(on) != 100 || on[0] != "Number 119." || !strings.Contains(first, "120 subscribers: 1 Delivered, 119 Not subscribed") || !strings.Contains(first, "page=1") {
		t.Errorf("the first page has %d, %q first: %s", len(on), on[0], first)
	}
	for _, name := range names.FindAllString(second, -1) {
		if slices.Contains(on, name) {
			t.Errorf("%s is on both pages", name)
		}
		on = append(on, name)
	}
	if len(on) != many || !strings.Contains(second, "Previous page") || strings.Contains(second, "Next page") {
		t.Errorf("%d on both pages; the second: %s", len(on), second)
	}
	if beyond := page(event + "?page=7"); !strings.Contains(beyond, "This page is empty") {
		t.Errorf("beyond the end: %s", beyond)
	}
	if text := page("/console/"); !strings.Contains(text, "of 120") || !strings.Contains(text, `<b>2</b><span><a href="/console/subscribers?state=paused">paused</a>`) {
		t.Errorf("the overview: %s", text)
	}
	if on := names.FindAllString(page("/console/subscribers?state=paused"), -1); !slices.Equal(on, []string{"Number 3.", "Number 77."}) {
		t.Errorf("paused: %v", on)
	}
	if text := page("/console/subscribers?state=failing"); !strings.Contains(text, "No subscriber matches") {
		t.Errorf("failing: %s", text)
	}
	if text := page("/console/subscribers/" + ids[3]); !strings.Contains(text, "paused for") || !strings.Contains(text, "Latest changes: Paused") {
		t.Errorf("a paused one: %s", text)
	}
}

// TestConsoleListsOfAPeriod: a list of a period goes on with its second page.
func TestConsoleListsOfAPeriod(t *testing.T) {
	t.Parallel()
	w := newStory(t)
	w.failing = w.subscribe("Ledger", "/broken/ledger", "PAYMENT_PAID")
	const many = 51
	for i := range many {
		w.emit(fmt.Sprintf("evt_%d", i), "PAYMENT_PAID", nil)
	}
	for i := range many {
		w.awaitDead(fmt.Sprintf("evt_%d.%s", i, w.failing))
	}
	v := newVisitor(t, w.daemon.api)
	v.enter(w.daemon.consoleLink(t))
	next := regexp.MustCompile(`<a href="([^"]+)" rel="next">`)
	for _, path := range []string{"/console/events", "/console/deliveries", "/console/dead"} {
		_, _, first := v.get(path + "?since=1h")
		link := next.FindStringSubmatch(first)
		if link == nil {
			t.Errorf("%s has no second page: %s", path, first)
			continue
		}
		if status, _, second := v.get(html.UnescapeString(link[1])); status != http.StatusOK || strings.Count(second, "evt_") == 0 {
			t.Errorf("the second page of %s: %d %s", path, status, second)
		}
	}
}

// TestConsoleOfAllCompanies: a platform session can choose the company.
func TestConsoleOfAllCompanies(t *testing.T) {
	t.Parallel()
	w := newStory(t, "egress: {addresses: [{cidr: 93.184.216.34, valid_from: '2099-12-01T00:00:00Z'}, {cidr: 93.184.216.33, valid_until: '2026-01-01T00:00:00Z'}]}\n")
	w.well = w.subscribe("Ours", "/well/x", "PAYMENT_PAID")
	w.emit("evt_1", "PAYMENT_PAID", nil)
	printed := command(t, "", "console", "--url", w.daemon.api, "--token-file", secretFile(t, w.mint("")), "--all-companies")
	printed.want(t, exitOK, "/console/open?link=", "")
	v := newVisitor(t, w.daemon.api)
	v.enter(strings.TrimSpace(printed.stdout))
	query := "company=" + developerCompany.String()
	for path, says := range map[string]string{
		"/console/":            "Companies with the largest backlog",
		"/console/?" + query:   "Subscribers with problems",
		"/console/system":      "answers this page",
		"/console/subscribers": "Ours",
		"/console/subscribers/" + w.well + "?" + query: "Ours",
		"/console/events": "evt_1",
		"/console/events/" + developerCompany.String() + "/evt_1": "Outcome for each subscriber",
		"/console/deliveries?" + query:                            "Deliveries",
		"/console/dead":                                           "Dead letters",
		"/console/audit":                                          "console-session.open",
		"/console/quarantine":                                     "The quarantine is empty",
		"/console/event-types":                                    "PAYMENT_PAID",
		"/console/jobs":                                           "Jobs are listed by company",
		"/console/jobs?" + query:                                  "No job was started",
	} {
		if status, _, page := v.get(path); status != http.StatusOK || !strings.Contains(page, says) {
			t.Errorf("%s: %d does not say %q:\n%s", path, status, says, page)
		}
	}
	if _, _, page := v.get("/console/system"); !strings.Contains(page, "<h2>Addresses of deliveries</h2>") || !strings.Contains(page, "93.184.216.34/32") || !strings.Contains(page, "2099-12-01 00:00:00 UTC") || strings.Contains(page, "93.184.216.33") {
		t.Errorf("the addresses of deliveries are not, or not only the coming one:\n%s", page)
	}
	form := url.Values{"token": {v.token()}, "company": {developerCompany.String()}}
	if status, header, page := v.post("/console/subscribers/"+w.well+"/pause", form); status != http.StatusSeeOther || !strings.Contains(header.Get("Location"), query) {
		t.Errorf("pause: %d %v %s", status, header, page)
	}
}

// TestConsoleJobs: what a subscriber missed is counted first, and sent when that is
// confirmed.
func TestConsoleJobs(t *testing.T) {
	t.Parallel()
	w := newStory(t)
	w.failing = w.subscribe("Ledger", "/broken/ledger", "PAYMENT_PAID")
	for i := range 3 {
		w.emit(fmt.Sprintf("evt_%d", i), "PAYMENT_PAID", nil)
		w.awaitDead(fmt.Sprintf("evt_%d.%s", i, w.failing))
	}
	w.broken.Store(false)
	v := newVisitor(t, w.daemon.api)
	v.enter(w.daemon.consoleLink(t))
	start := func(form url.Values) string {
		t.Helper()
		form.Set("token", v.token())
		status, header, page := v.post("/console/subscribers/"+w.failing+"/recover", form)
		if status != http.StatusSeeOther || !strings.HasPrefix(header.Get("Location"), "/console/jobs/") {
			t.Fatalf("recover: %d %v %s", status, header, page)
		}
		return header.Get("Location")
	}
	var page string
	counted := start(url.Values{"since": {"1h"}})
	eventually(t, browserPatience, "it is counted", func() bool {
		_, _, page = v.get(counted)
		return strings.Contains(page, "Send 3 deliveries again")
	})
	if w.came.Load() != 0 {
		t.Fatal("counting has sent something")
	}
	hidden := func(name string) string {
		found := regexp.MustCompile(`name="` + name + `" value="([^"]+)"`).FindStringSubmatch(page)
		if found == nil {
			t.Fatalf("no %s in %s", name, page)
		}
		return found[1]
	}
	start(url.Values{"confirmed": {"true"}, "from": {hidden("from")}, "to": {hidden("to")}})
	eventually(t, browserPatience, "all three are sent", func() bool { return w.came.Load() == 3 })
}

// TestConsoleRetriesAllThatMatch: they are counted first, the list of jobs has both
// jobs, and one that is done cannot be cancelled.
func TestConsoleRetriesAllThatMatch(t *testing.T) {
	t.Parallel()
	w := newStory(t)
	w.failing = w.subscribe("Ledger", "/broken/ledger", "PAYMENT_PAID", "CARD_CREATION_REQUEST_ERROR")
	for i, kind := range []string{"PAYMENT_PAID", "CARD_CREATION_REQUEST_ERROR", "PAYMENT_PAID"} {
		w.emit(fmt.Sprintf("evt_%d", i), kind, nil)
		w.awaitDead(fmt.Sprintf("evt_%d.%s", i, w.failing))
	}
	w.broken.Store(false)
	v := newVisitor(t, w.daemon.api)
	v.enter(w.daemon.consoleLink(t))
	token := v.token()
	press := func(path string, form url.Values) string {
		t.Helper()
		form.Set("token", token)
		status, header, page := v.post(path, form)
		if status != http.StatusSeeOther || !strings.HasPrefix(header.Get("Location"), "/console/jobs/") {
			t.Fatalf("%s: %d %v %s", path, status, header, page)
		}
		return header.Get("Location")
	}
	if status, _, _ := v.post("/console/deliveries/count", url.Values{"token": {token}, "kind": {"RETRY"}}); status != http.StatusBadRequest {
		t.Errorf("a retry of whatever there is: %d", status)
	}
	counted, _, _ := strings.Cut(press("/console/deliveries/count", url.Values{"kind": {"RETRY"}, "status": {"DEAD"}, "event": {"PAYMENT_PAID"}}), "?")
	if _, _, page := v.get(counted); !strings.Contains(page, "Attempt 2 deliveries again") {
		t.Fatalf("the count: %s", page)
	}
	if w.came.Load() != 0 {
		t.Fatal("counting has sent something")
	}
	job := press(counted+"/start", url.Values{})
	eventually(t, browserPatience, "both are sent", func() bool { return w.came.Load() == 2 })
	eventually(t, browserPatience, "the job is done", func() bool {
		_, _, page := v.get(job)
		return strings.Contains(page, "of 2 counted") && strings.Contains(page, "Completed")
	})
	job, _, _ = strings.Cut(job, "?")
	if status, _, page := v.post(job+"/cancel", url.Values{"token": {token}}); status != http.StatusConflict || !strings.Contains(page, "has completed") {
		t.Errorf("cancel what is done: %d", status)
	}
	_, _, page := v.get("/console/jobs?kind=RETRY&status=COMPLETED")
	if !strings.Contains(page, counted) || !strings.Contains(page, job) {
		t.Errorf("the jobs: %s", page)
	}
	if w.came.Load() != 2 {
		t.Errorf("%d were sent", w.came.Load())
	}
}

// TestConsoleCancelsAllThatMatch: they are counted first, too.
func TestConsoleCancelsAllThatMatch(t *testing.T) {
	t.Parallel()
	w := newStory(t)
	e := w.editor()
	post := func(path string, form url.Values) string {
		t.Helper()
		form.Set("token", e.visitor.token())
		status, header, page := e.visitor.post(path, form, "Sec-Fetch-Site", "same-origin")
		if status != http.StatusSeeOther {
			t.Fatalf("%s: %d %s", path, status, page)
		}
		return header.Get("Location")
	}
	post(e.path+"/pause", url.Values{})
	w.emit("evt_1", "PAYMENT_PAID", nil)
	w.emit("evt_2", "PAYMENT_PAID", nil)
	eventually(t, browserPatience, "both wait", func() bool {
		_, _, page := e.visitor.get("/console/deliveries?status=PENDING")
		return strings.Contains(page, "evt_1") && strings.Contains(page, "evt_2") && strings.Contains(page, "Cancel all: count them first")
	})
	counted, _, _ := strings.Cut(post("/console/deliveries/count", url.Values{"kind": {"CANCEL"}, "status": {"PENDING"}, "event": {"PAYMENT_*"}}), "?")
	if _, _, page := e.visitor.get(counted); !strings.Contains(page, "Cancel 2 deliveries") {
		t.Fatalf("the count: %s", page)
	}
	job := post(counted+"/start", url.Values{})
	eventually(t, browserPatience, "both are cancelled", func() bool {
		_, _, list := w.daemon.do(t, http.MethodGet, "/api/v1/deliveries?status=CANCELLED", "")
		return strings.Contains(list, "evt_1") && strings.Contains(list, "evt_2")
	})
	if _, _, page := e.visitor.get(job); !strings.Contains(page, "cancelled; 2 were counted before") {
		t.Error(page)
	}
	if _, _, page := e.visitor.get("/console/deliveries?status=PENDING"); !strings.Contains(page, "Cancel all: count them first") || strings.Contains(page, "Retry all") {
		t.Errorf("without rows: %s", page)
	}
	none, _, _ := strings.Cut(post("/console/deliveries/count", url.Values{"kind": {"CANCEL"}, "status": {"PENDING"}}), "?")
	if _, _, page := e.visitor.get(none); !strings.Contains(page, "Cancel all that match") {
		t.Errorf("nothing was counted: %s", page)
	}
	_, _, log := w.daemon.do(t, http.MethodGet, "/api/v1/audit?action=delivery.cancel-all", "")
	if strings.Count(log, `"delivery.cancel-all"`) != 3 {
		t.Errorf("the audit log: %s", log)
	}
}

// TestConsoleTail: the stream has the attempts of the session's company that match the query,
// and ends with the session.
func TestConsoleTail(t *testing.T) {
	t.Parallel()
	w := newStory(t)
	w.failing = w.subscribe("Ledger", "/broken/ledger", "PAYMENT_PAID")
	w.well = w.subscribe("Warehouse", "/well/warehouse", "PAYMENT_PAID")
	v, stranger := newVisitor(t, w.daemon.api), newVisitor(t, w.daemon.api)
	if status, _, _ := stranger.get("/console/tail/stream"); status != http.StatusUnauthorized {
		t.Errorf("without a session: %d", status)
	}
	v.enter(w.daemon.consoleLink(t))
	stranger.enter(w.linkFor(uuid.NewString()))
	if status, _, _ := stranger.get("/console/tail/stream?company=" + developerCompany.String()); status != http.StatusNotFound {
		t.Errorf("another company's: %d", status)
	}
	failures, others := v.stream(t, "?result=failed"), stranger.stream(t, "")
	failures.says(t, "event: open")
	others.says(t, "event: open")
	for i := 0; !failures.has("the receiver failed"); i++ { // the replica learns within a second that somebody looks
		w.emit(fmt.Sprintf("evt_%d", i), "PAYMENT_PAID", nil)
		waitABit(t)
	}
	if failures.has("Warehouse") {
		t.Error("it shows what was delivered")
	}
	if others.has("evt_") {
		t.Error("it shows another company's attempts")
	}
	token := v.token()
	v.post("/console/leave", url.Values{"token": {token}})
	failures.says(t, "event: ended")
}

// stream reads server-sent events.
type stream struct {
	mu   sync.Mutex
	text strings.Builder
}

func (v *visitor) stream(t *testing.T, query string) *stream {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, v.base+"/console/tail/stream"+query, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := v.http.Do(req)
	if err != nil || resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Type") != "text/event-stream" {
		t.Fatalf("the stream: %v %+v", err, resp)
	}
	s := &stream{}
	var reading sync.WaitGroup
	reading.Go(func() {
		buffer := make([]byte, 4096)
		for {
			n, err := resp.Body.Read(buffer)
			s.mu.Lock()
			s.text.Write(buffer[:n])
			s.mu.Unlock()
			if err != nil {
				return
			}
		}
	})
	t.Cleanup(func() {
		cancel()
		reading.Wait()
		resp.Body.Close()
	})
	return s
}

func (s *stream) has(text string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Contains(s.text.String(), text)
}

func (s *stream) says(t *testing.T, text string) {
	t.Helper()
	eventually(t, browserPatience, "the stream says "+text, func() bool { return s.has(text) })
}

// TestConsoleShowsAnAttemptInParts, and checks a signature that its receiver has got.
func TestConsoleShowsAnAttemptInParts(t *testing.T) {
	t.Parallel()
	w := newStory(t)
	var headers atomic.Pointer[http.Header]
	var body atomic.Pointer[[]byte]
	receiver := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		got, _ := io.ReadAll(r.Body)
		header := r.Header.Clone()
		body.Store(&got)
		headers.Store(&header)
		rw.WriteHeader(http.StatusNoContent)
	}))
	t.Cleanup(receiver.Close)
	w.receiver = receiver.URL
	id := w.subscribe("Ledger", "/well", "PAYMENT_PAID")
	w.emit("evt_1", "PAYMENT_PAID", map[string]any{"amount": "1.00"})
	v := newVisitor(t, w.daemon.api)
	v.enter(w.daemon.consoleLink(t, "--read-only"))
	path, page := "/console/deliveries/evt_1."+id, ""
	eventually(t, browserPatience, "it is delivered", func() bool {
		_, _, page = v.get(path)
		return strings.Contains(page, "Waiting for the answer")
	})
	if !strings.Contains(page, "TCP") || !strings.Contains(page, "webhook-signature: [redacted]") {
		t.Errorf("the page: %s", page)
	}
	var shown struct {
		Attempts []struct {
			Timing struct {
				ConnectMs   float64          `json:"connectMs"`
				FirstByteMs float64          `json:"firstByteMs"`
				WaitedMs    map[string]int64 `json:"waitedMs"`
			} `json:"timing"`
		} `json:"attempts"`
	}
	w.daemon.read(t, "/api/v1/deliveries/evt_1."+id, &shown)
	if len(shown.Attempts) != 1 || shown.Attempts[0].Timing.ConnectMs <= 0 || shown.Attempts[0].Timing.FirstByteMs <= 0 || shown.Attempts[0].Timing.WaitedMs == nil {
		t.Errorf("the API: %+v", shown)
	}
	if status, header, got := v.get(path + "/body"); status != http.StatusOK || got != string(*body.Load()) || !strings.Contains(header.Get("Content-Disposition"), "attachment") {
		t.Errorf("the bytes: %d %s, were %s", status, got, *body.Load())
	}
	got, token := *headers.Load(), v.token()
	verdict := func(timestamp, signature string) string {
		t.Helper()
		_, _, page := v.post(path+"/verify", url.Values{"token": {token}, "timestamp": {timestamp}, "signature": {signature}})
		return page
	}
	if page := verdict(got.Get("webhook-timestamp"), got.Get("webhook-signature")); !strings.Contains(page, "It matches") {
		t.Errorf("the signature that was sent: %s", page)
	}
	for _, wrong := range []string{"v1,AAAA", strings.ToLower(got.Get("webhook-signature"))} {
		if page := verdict(got.Get("webhook-timestamp"), wrong); !strings.Contains(page, "It does not match") {
			t.Errorf("%s: %s", wrong, page)
		}
	}
	if page := verdict("1", got.Get("webhook-signature")); !strings.Contains(page, "It does not match") {
		t.Errorf("another time: %s", page)
	}
	if page := verdict("soon", "v1,AAAA"); !strings.Contains(page, "must be the number") {
		t.Errorf("no time: %s", page)
	}
}
