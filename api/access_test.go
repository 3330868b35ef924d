package api

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/mux"

	"spendhook/auth"
	"spendhook/internal/redistest"
)

// kind determines the answers to a token of another company and to a token of no company.
type kind int

const (
	public kind = iota // needs no token, and shows nothing of any company
	shared             // is the same for every company
	global             // concerns every company: a company's token gets 403, also with the scope platform
	list               // another's: 200 with its own; none: 403 without the scope platform
	thing              // another's: 404; none: 400 unless it names one
	makes              // another's: makes, or has, a thing of its own; none: 400 unless it names one
)

// access is a row of the table of routes: the request with the right token, its answer,
// and the answers to other tokens.
type access struct {
	route  string // method and path of the document
	kind   kind
	target string // the path of the request, when it has parameters, with acme's {things}
	body   string
	status int      // of the right token's answer
	shows  []string // acme's things that it shows
	filter string   // of a list: a query with an id of acme
	other  int      // the answer to another company's token; 0 means the one of the kind
}

// TestAccess sends the right token to the routes in the order of the table. Rows that
// remove a thing come last.
var table = []access{
	{route: "GET /docs", status: 200},
	{route: "GET /docs/", status: 200},
	{route: "GET /contacts/", target: "/contacts/confirm", status: 404},
	{route: "POST /contacts/", target: "/contacts/unsubscribe", status: 404},
	{route: "GET /docs/init.js", status: 200},
	{route: "GET /docs/docs.css", status: 200},
	{route: "GET /docs/errors", status: 200},
	{route: "GET /docs/swagger-ui-bundle.js", status: 200},
	{route: "GET /docs/swagger-ui.css", status: 200},
	{route: "GET /docs/favicon-32x32.png", status: 200},
	{route: "GET /openapi.json", status: 200},
	{route: "GET /webhooks.json", status: 200},
	{route: "GET /.well-known/jwks.json", status: 200},
	{route: "GET /.well-known/oauth-authorization-server", status: 200},
	{route: "GET /.well-known/egress-addresses.json", status: 200},
	{route: "POST /oauth/token", status: 401},
	{route: "GET /.well-known/webhook-keys/{companyUuid}", target: "/.well-known/webhook-keys/{company}", status: 200, shows: []string{"webhookKey"}},

	{route: "GET /api/v1/subscribers", kind: list, status: 200, shows: []string{"subscriber", "callback"}, filter: "uuid={subscriber}"},
	{route: "GET /api/v1/subscribers/{uuid}", kind: thing, target: "/api/v1/subscribers/{subscriber}", status: 200, shows: []string{"subscriber", "callback"}},
	{route: "GET /api/v1/subscribers/{uuid}/stats", kind: thing, target: "/api/v1/subscribers/{subscriber}/stats", status: 200, shows: []string{"subscriber"}},
	{route: "GET /api/v1/subscribers/{uuid}/egress-certificate", kind: thing, target: "/api/v1/subscribers/{subscriber}/egress-certificate", status: 200, shows: []string{"subscriber"}},
	{route: "GET /api/v1/subscribers/{uuid}/feed", kind: thing, target: "/api/v1/subscribers/{subscriber}/feed", status: 200, shows: []string{"event"}},
	{route: "GET /api/v1/jobs", kind: makes, status: 200, shows: []string{"job", "recoverJob", "subscriber"}},
	{route: "GET /api/v1/jobs/{jobUuid}", kind: thing, target: "/api/v1/jobs/{recoverJob}", status: 200, shows: []string{"recoverJob"}},
	{route: "GET /api/v1/events", kind: list, status: 200, shows: []string{"event", "company"}, filter: "event=PAYMENT_PAID"},
	{route: "GET /api/v1/events/{id}", kind: thing, target: "/api/v1/events/{event}", status: 200, shows: []string{"event", "name"}},
	{route: "GET /api/v1/events/{id}/deliveries", kind: thing, target: "/api/v1/events/{event}/deliveries", status: 200, shows: []string{"delivery"}},
	{route: "GET /api/v1/events/{id}/explain", kind: thing, target: "/api/v1/events/{event}/explain", status: 200, shows: []string{"delivery", "callback"}},
	{route: "GET /api/v1/egress-addresses", kind: shared, status: 200},
	{route: "GET /api/v1/egress-certificate", kind: thing, status: 200, shows: []string{"company"}},
	{route: "GET /api/v1/webhook-keys", kind: makes, status: 200, shows: []string{"webhookKey"}},
	{route: "GET /api/v1/audit", kind: list, status: 200, shows: []string{"subscriber"}, filter: "target={subscriber}"},
	{route: "GET /api/v1/event-types", kind: shared, status: 200},
	{route: "GET /api/v1/event-types/{name}", kind: shared, target: "/api/v1/event-types/PAYMENT_PAID", status: 200},
	{route: "GET /api/v1/oauth-clients", kind: global, status: 200, shows: []string{"client", "company"}},
	{route: "GET /api/v1/oauth-clients/{clientId}", kind: global, target: "/api/v1/oauth-clients/{client}", status: 200, shows: []string{"company"}},
	{route: "GET /api/v1/deliveries", kind: list, status: 200, shows: []string{"delivery"}, filter: "subscriberUuid={subscriber}"},
	{route: "GET /api/v1/deliveries/{id}", kind: thing, target: "/api/v1/deliveries/{delivery}", status: 200, shows: []string{"delivery"}},
	{route: "GET /api/v1/quarantine", kind: list, status: 200, shows: []string{"event", "delivery", "company"}, filter: "size=100"},
	{route: "GET /api/v1/console-sessions", kind: list, status: 200, shows: []string{"consoleSession"}, filter: "size=1"},
	{route: "GET /api/v3/cards", kind: list, status: 200, shows: []string{"card"}, filter: "userUuid={user}"},
	{route: "GET /api/v3/cards/{uuid}", kind: thing, target: "/api/v3/cards/{card}", status: 200, shows: []string{"card"}},
	{route: "GET /api/v3/cards/bulk-create/{jobUuid}", kind: thing, target: "/api/v3/cards/bulk-create/{cardJob}", status: 200, shows: []string{"cardJob"}},
	{route: "GET /api/v3/reimbursements", kind: list, status: 200, shows: []string{"reimbursement", "name"}, filter: "uuids={reimbursement}&requesterUuids={user}"},
	{route: "GET /api/v1/locations", kind: list, status: 200, shows: []string{"location"}, filter: "status=ACTIVE"},
	{route: "GET /api/v1/locations/{uuid}", kind: thing, target: "/api/v1/locations/{location}", status: 200, shows: []string{"location"}},
	{route: "GET /api/v2/locations", kind: list, status: 200, shows: []string{"location"}, filter: "status=ACTIVE"},
	{route: "GET /api/v2/locations/{uuid}", kind: thing, target: "/api/v2/locations/{location}", status: 200, shows: []string{"location"}},
	{route: "GET /api/v2/billing-statements/current", kind: makes, status: 200, shows: []string{"openStatement"}},
	{route: "GET /api/v2/billing-statements/{month}/{year}", kind: makes, target: "/api/v2/billing-statements/7/2026", status: 200, shows: []string{"statement"}},

	{route: "PUT /api/v1/event-types/{name}", kind: global, target: "/api/v1/event-types/PAYMENT_PAID", body: `{"description":"Paid."}`, status: 201},
	{route: "DELETE /api/v1/event-types/{name}", kind: global, target: "/api/v1/event-types/PAYMENT_PAID", status: 204},
	{route: "POST /api/v1/oauth-clients", kind: global, body: `{"name":"n","scopes":["events:read"]}`, status: 201},
	{route: "PATCH /api/v1/oauth-clients/{clientId}", kind: global, target: "/api/v1/oauth-clients/{client}", body: `{"disabled":true}`, status: 200, shows: []string{"company"}},
	{route: "POST /api/v1/oauth-clients/{clientId}/rotate-secret", kind: global, target: "/api/v1/oauth-clients/{client}/rotate-secret", status: 200, shows: []string{"company"}},
	{route: "DELETE /api/v1/oauth-clients/{clientId}", kind: global, target: "/api/v1/oauth-clients/{client}", status: 204},
	{route: "PUT /api/v1/egress-certificate", kind: makes, body: newCertificate, status: 200, shows: []string{"company"}},
	{route: "PUT /api/v1/subscribers/{uuid}/egress-certificate", kind: thing, target: "/api/v1/subscribers/{subscriber}/egress-certificate", body: newCertificate, status: 200, shows: []string{"subscriber"}},
	{route: "POST /api/v1/subscribers/{uuid}/verify", kind: thing, target: "/api/v1/subscribers/{subscriber}/verify", status: 200, shows: []string{"subscriber"}},
	{route: "POST /api/v1/subscribers/{uuid}/test", kind: thing, target: "/api/v1/subscribers/{subscriber}/test", status: 200},
	{route: "POST /api/v1/deliveries/{id}/retry", kind: thing, target: "/api/v1/deliveries/{delivery}/retry", status: 202, shows: []string{"delivery"}},
	{route: "POST /api/v1/deliveries/retry", kind: thing, body: `{"subscriberUuid":"{subscriber}","dryRun":true}`, status: 200, shows: []string{"subscriber"}},
	{route: "POST /api/v1/deliveries/cancel", kind: thing, body: `{"subscriberUuid":"{subscriber}","dryRun":true}`, status: 200, shows: []string{"subscriber"}},
	{route: "POST /api/v1/jobs/{jobUuid}/cancel", kind: thing, target: "/api/v1/jobs/{waitingJob}/cancel", status: 200, shows: []string{"waitingJob"}},
	{route: "POST /api/v1/quarantine/{id}/retry", kind: thing, target: "/api/v1/quarantine/{event}/retry", status: 202, shows: []string{"company"}},
	{route: "DELETE /api/v1/events/{id}/payload", kind: thing, target: "/api/v1/events/{unwanted}/payload", status: 204},
	{route: "DELETE /api/v1/quarantine/{id}", kind: thing, target: "/api/v1/quarantine/{quarantined}", status: 204},
	{route: "POST /api/v1/events/{id}/replay", kind: thing, target: "/api/v1/events/{event}/replay", body: `{"subscriberUuids":["{subscriber}"]}`, status: 202, shows: []string{"delivery"}},
	{route: "POST /api/v1/subscribers/{uuid}/recover", kind: thing, target: "/api/v1/subscribers/{subscriber}/recover", body: `{"since":"2026-01-01T00:00:00Z","dryRun":true}`, status: 202, shows: []string{"subscriber"}},
	{route: "POST /api/v1/events", kind: makes, body: `{"id":"another","event":"PAYMENT_PAID","timestamp":"` + time.Now().UTC().Format(time.RFC3339) + `"}`, status: 202},
	{route: "POST /api/v1/subscribers", kind: makes, body: `{"name":"n","callbackUrl":"https://hooks.example.com/n","events":["PAYMENT_PAID"]}`, status: 201, shows: []string{"company"}},
	{route: "PATCH /api/v1/subscribers/{uuid}", kind: thing, target: "/api/v1/subscribers/{subscriber}", body: `{"enabled":true}`, status: 200, shows: []string{"subscriber"}},
	{route: "POST /api/v1/subscribers/{uuid}/filter-test", kind: thing, target: "/api/v1/subscribers/{subscriber}/filter-test", status: 200, shows: []string{"event"}},
	{route: "POST /api/v1/subscribers/{uuid}/pause", kind: thing, target: "/api/v1/subscribers/{subscriber}/pause", status: 200, shows: []string{"subscriber"}},
	{route: "POST /api/v1/subscribers/{uuid}/resume", kind: thing, target: "/api/v1/subscribers/{subscriber}/resume", status: 200, shows: []string{"subscriber"}},
	{route: "POST /api/v1/subscribers/{uuid}/rotate-secret", kind: thing, target: "/api/v1/subscribers/{subscriber}/rotate-secret", status: 200, shows: []string{"subscriber"}},
	{route: "POST /api/v1/subscribers/add-event", kind: thing, body: `{"callbackUrl":"{callback}","event":"ANOTHER"}`, status: 201, shows: []string{"subscriber"}},
	{route: "DELETE /api/v1/subscribers/delete-event", kind: thing, body: `{"callbackUrl":"{callback}","event":"ANOTHER"}`, status: 204},
	{route: "DELETE /api/v1/subscribers/{uuid}/egress-certificate", kind: thing, target: "/api/v1/subscribers/{subscriber}/egress-certificate", status: 204},
	{route: "DELETE /api/v1/subscribers/{uuid}", kind: thing, target: "/api/v1/subscribers/{subscriber}", status: 204},
	{route: "DELETE /api/v1/egress-certificate", kind: thing, status: 204},
	{route: "POST /api/v1/webhook-keys/rotate", kind: makes, status: 200},
	{route: "DELETE /api/v1/webhook-keys/{kid}", kind: thing, target: "/api/v1/webhook-keys/{webhookKey}", status: 204},
	{route: "POST /api/v1/console-links", kind: makes, body: `{"readOnly":true}`, status: 201, shows: []string{"company"}},
	{route: "DELETE /api/v1/console-sessions/{uuid}", kind: thing, target: "/api/v1/console-sessions/{consoleSession}", status: 204},
	{route: "POST /api/v3/cards", kind: makes, body: newCard, status: 201, other: 422},
	{route: "POST /api/v3/cards/bulk-create", kind: makes, body: `{"cardsRequests":[` + newCard + `]}`, status: 202},
	{route: "PATCH /api/v3/cards/{uuid}/threshold", kind: thing, target: "/api/v3/cards/{card}/threshold", body: `{"threshold":5}`, status: 200, shows: []string{"card"}},
	{route: "PATCH /api/v3/cards/{uuid}/lock", kind: thing, target: "/api/v3/cards/{card}/lock", body: `{"lock":true}`, status: 200, shows: []string{"card"}},
	{route: "DELETE /api/v3/cards/{uuid}", kind: thing, target: "/api/v3/cards/{spareCard}", status: 204},
	{route: "GET /api/v1/companies", kind: global, status: 200},
	{route: "PUT /api/v1/companies/{uuid}", kind: global, target: "/api/v1/companies/{company}", body: `{"name":"Acme"}`, status: 200, shows: []string{"company"}},
	{route: "GET /api/v1/companies/{uuid}", kind: global, target: "/api/v1/companies/{company}", status: 200, shows: []string{"company"}},
	{route: "DELETE /api/v1/companies/{uuid}", kind: global, target: "/api/v1/companies/{company}", status: 202, shows: []string{"company"}},
	{route: "POST /api/v3/cards/delete", kind: thing, body: `{"uuids":["{lastCard}"]}`, status: 200, other: 200},
}

// TestAccess sends every wrong credential to every route, and checks that nothing is shown
// or changed. Then it sends the right token to every route.
func TestAccess(t *testing.T) {
	t.Parallel()
	w := setupTwo(t)
	all := w.routes()
	for _, complaint := range uncovered(all, table) {
		t.Error(complaint)
	}
	for _, line := range table {
		c := &check{twoCompanies: w, access: line, op: all[line.route]}
		c.method, _, _ = strings.Cut(line.route, " ")
		c.refused()
	}
	for _, line := range table {
		c := &check{twoCompanies: w, access: line, op: all[line.route]}
		c.method, _, _ = strings.Cut(line.route, " ")
		c.right()
	}
	if w.seen.count(".eyJ") > 0 { // every claim set begins so
		t.Error("an answer or a log line repeats a token")
	}
}

// A reply of Redis may be lost. The client then sends the command again, and no operation answers that
// its change, which is done, cannot be made.
func TestLostRepliesOfRedisChangeNoAnswer(t *testing.T) {
	t.Parallel()
	w := setupTwo(t)
	w.client.AddHook(redistest.Repeats())
	repeated := func(r *http.Request) { *r = *r.WithContext(redistest.Repeated(r.Context())) }
	all := w.routes()
	for _, line := range table {
		c := &check{twoCompanies: w, access: line, op: all[line.route]}
		c.method, _, _ = strings.Cut(line.route, " ")
		if a := c.send(c.rightToken(), repeated); a.Code != c.status {
			t.Errorf("%s: %d %s", c.route, a.Code, a.Body)
		}
	}
}

// routes returns all routes of the public listener by method and path. The operation is nil
// for a route that is not in the document.
func (w *twoCompanies) routes() map[string]*operation {
	w.t.Helper()
	s, err := newServer(w.options)
	if err != nil {
		w.t.Fatal(err)
	}
	all, err := routesOf(s)
	if err != nil {
		w.t.Fatal(err)
	}
	return all
}

func routesOf(s *server) (map[string]*operation, error) {
	all := map[string]*operation{}
	for path, operations := range s.routes {
		for method, op := range operations {
			all[method+" "+path] = op
		}
	}
	err := s.router.Walk(func(route *mux.Route, _ *mux.Router, _ []*mux.Route) error {
		path, err := route.GetPathTemplate()
		if err != nil {
			return err
		}
		methods, err := route.GetMethods()
		if err != nil {
			methods = []string{"ANY"}
		}
		for _, method := range methods {
			if _, documented := all[method+" "+path]; !documented {
				all[method+" "+path] = nil
			}
		}
		return nil
	})
	return all, err
}

// uncovered lists the routes without a row, and the rows that match no route or that
// contradict the document.
func uncovered(all map[string]*operation, lines []access) []string {
	var complaints []string
	missing := maps.Clone(all)
	for _, line := range lines {
		op, served := missing[line.route]
		switch {
		case !served:
			complaints = append(complaints, line.route+" is in the table but is not served, or has two rows")
		case line.kind == public && op != nil && !op.public, line.kind != public && (op == nil || op.public):
			complaints = append(complaints, line.route+" needs a token in the table or in the document, but not in both")
		}
		delete(missing, line.route)
	}
	for _, route := range slices.Sorted(maps.Keys(missing)) {
		complaints = append(complaints, route+" has no row in the table of api/access_test.go: add one")
	}
	return complaints
}

func TestEveryRouteNeedsARow(t *testing.T) {
	t.Parallel()
	s, err := newServer(Options{})
	if err != nil {
		t.Fatal(err)
	}
	s.router.HandleFunc("/api/v1/new", http.NotFound).Methods(http.MethodPost)
	s.router.HandleFunc("/debug", http.NotFound)
	s.routes["/api/v1/deliveries"][http.MethodDelete] = &operation{}
	s.routes["/api/v1/event-types"][http.MethodGet].public = true
	all, err := routesOf(s)
	if err != nil {
		t.Fatal(err)
	}
	lines := append(slices.Clone(table), access{route: "GET /api/v1/gone", kind: thing}, table[0])
	complaints := strings.Join(uncovered(all, lines), "\n")
	for _, route := range []string{
		"POST /api/v1/new", "ANY /debug", "DELETE /api/v1/deliveries", "GET /api/v1/gone", "GET /api/v1/event-types", "GET /docs",
	} {
		if !strings.Contains(complaints, route+" ") {
			t.Errorf("no complaint about %s in:\n%s", route, complaints)
		}
	}
	if n := len(uncovered(all, lines)); n != 6 {
		t.Errorf("%d complaints:\n%s", n, complaints)
	}
}

// check sends the requests of one row of the table.
type check struct {
	*twoCompanies
	access

	op     *operation
	method string
}

// send sends the row's request about acme.
func (c *check) send(options ...option) answer {
	c.t.Helper()
	return c.sendTo("", c.acme.fill(c.body), options...)
}

func (c *check) path() string {
	target := c.target
	if target == "" {
		_, target, _ = strings.Cut(c.route, " ")
	}
	return c.acme.fill(target)
}

func (c *check) sendTo(query, body string, options ...option) answer {
	c.t.Helper()
	target := c.path()
	if query != "" {
		target += "?" + query
	}
	return c.call(c.method, target, body, options...)
}

// refused sends requests that must be refused, and checks that nothing changes.
func (c *check) refused() {
	c.t.Helper()
	if c.kind == public {
		return
	}
	before := c.state()
	unchanged := func(what string) {
		c.t.Helper()
		if c.method == http.MethodGet && what != "all" {
			return
		}
		if after := c.state(); after != before {
			c.t.Errorf("%s with %s has changed the stores:\n%s", c.route, what, difference(before, after))
			before = after
		}
	}
	for _, bad := range c.credentials() {
		a := c.send(bad.options...)
		c.wantRefusal(bad.what, a, bad.status, bad.code)
		unchanged(bad.what)
	}
	if c.method == http.MethodGet {
		if a := c.call(http.MethodHead, c.path(), "", noToken); a.Code != http.StatusUnauthorized {
			c.t.Errorf("HEAD of %s with no token: %d", c.path(), a.Code)
		}
	}
	for what, a := range c.otherCompanies() {
		if hidden := c.acme.shownIn(a.Body.String(), c.path()+c.acme.fill(c.body)); len(hidden) > 0 {
			c.t.Errorf("%s with %s shows acme's %v: %s", c.route, what, hidden, a.Body)
		}
		unchanged(what)
	}
	unchanged("all")
}

// difference returns the lines that are in only one of two dumps.
func difference(before, after string) string {
	old, now := strings.Split(before, "\n"), strings.Split(after, "\n")
	var all strings.Builder
	for _, line := range old {
		if !slices.Contains(now, line) {
			fmt.Fprintln(&all, "-", line)
		}
	}
	for _, line := range now {
		if !slices.Contains(old, line) {
			fmt.Fprintln(&all, "+", line)
		}
	}
	return all.String()
}

func (c *check) wantRefusal(what string, a answer, status int, code string) {
	c.t.Helper()
	if a.Code != status || a.problem().Code != code {
		c.t.Errorf("%s with %s: %d %s, want %d %s", c.route, what, a.Code, a.Body, status, code)
	}
	const realm = `Bearer realm="spendhook"`
	want := map[string]string{
		"TOKEN_REQUIRED":     realm,
		"TOKEN_INVALID":      realm + `, error="invalid_token"`,
		"INSUFFICIENT_SCOPE": realm + `, error="insufficient_scope", scope="` + strings.TrimPrefix(what, "no ") + `"`,
	}[code]
	if got := a.Header().Get("WWW-Authenticate"); got != want {
		c.t.Errorf("%s with %s: WWW-Authenticate %q", c.route, what, got)
	}
}

// credential is a wrong credential with the expected refusal.
type credential struct {
	what    string
	options []option
	status  int
	code    string
}

// credentials returns the wrong credentials for the row's route.
func (c *check) credentials() []credential {
	c.t.Helper()
	list := []credential{
		{"no token", []option{noToken}, http.StatusUnauthorized, "TOKEN_REQUIRED"},
		{"a scheme without a token", []option{header("Authorization", "Bearer")}, http.StatusUnauthorized, "TOKEN_INVALID"},
		{"a password", []option{header("Authorization", "Basic dTpw")}, http.StatusUnauthorized, "TOKEN_INVALID"},
	}
	list = append(list, c.certificates()...)
	for what, token := range c.forged() {
		list = append(list, credential{what, []option{bearer(token)}, http.StatusUnauthorized, "TOKEN_INVALID"})
	}
	for _, scope := range c.op.scopes {
		others := c.mint(&c.acme.company, without(scope))
		list = append(list, credential{"no " + scope, []option{bearer(others)}, http.StatusForbidden, "INSUFFICIENT_SCOPE"})
	}
	return list
}

// certificates returns credentials with a missing, wrong or untrusted client certificate.
func (c *check) certificates() []credential {
	bound := bearer(c.acme.bound)
	list := []credential{
		{"a bound token without a certificate", []option{bound, noCert}, http.StatusUnauthorized, "TOKEN_INVALID"},
		{"a bound token and another certificate", []option{bound, withCert(c.another)}, http.StatusUnauthorized, "TOKEN_INVALID"},
		{"a token bound to another certificate", []option{bearer(c.bound(&c.acme.company, c.another))}, http.StatusUnauthorized, "TOKEN_INVALID"},
		{"a certificate of an untrusted CA", []option{withCert(c.stranger)}, http.StatusForbidden, "CLIENT_CERTIFICATE_INVALID"},
		{"a broken certificate", []option{header("Client-Cert", "x")}, http.StatusBadRequest, "CLIENT_CERTIFICATE_MALFORMED"},
		{"plain HTTP from an address that is no trusted proxy", []option{from("198.51.100.1:1")}, http.StatusForbidden, "TLS_REQUIRED"},
	}
	if c.options.CertificateRequired[c.op.group] {
		list = append(list,
			credential{"no certificate", []option{bearer(c.acme.token), noCert}, http.StatusForbidden, "CLIENT_CERTIFICATE_REQUIRED"},
			credential{"a Client-Cert header from loopback, which is no trusted proxy", []option{bearer(c.acme.token), from("127.0.0.1:1")}, http.StatusForbidden, "CLIENT_CERTIFICATE_REQUIRED"})
	}
	return list
}

func without(scope string) string {
	return strings.Join(strings.Fields(strings.ReplaceAll(allScopes+" platform operator", scope, "")), " ")
}

func noCert(r *http.Request) { r.Header.Del("Client-Cert") }

// otherCompanies sends tokens of another company and of no company, checks each status, and
// returns the answers.
func (c *check) otherCompanies() map[string]answer {
	c.t.Helper()
	all := map[string]answer{}
	expect := func(what string, a answer, status int, code string) {
		c.t.Helper()
		c.expect(what, a, status, code)
		all[what] = a
	}
	if c.kind == global {
		expect("a company's token of the platform", c.send(bearer(c.mint(&c.bolt.company, allScopes+" platform operator"))), http.StatusForbidden, "PLATFORM_ONLY")
		expect("a token of no company", c.send(bearer(c.mint(nil, allScopes))), http.StatusForbidden, "INSUFFICIENT_SCOPE")
		return all
	}
	c.namingAcme(expect)
	c.unnamed(expect)
	return all
}

// expect compares an answer; an empty code is not compared.
func (c *check) expect(what string, a answer, status int, code string) {
	c.t.Helper()
	if a.Code != status || code != "" && a.problem().Code != code {
		c.t.Errorf("%s with %s: %d %s, want %d %s", c.route, what, a.Code, a.Body, status, code)
	}
}

// expecting is check.expect that also records the answer.
type expecting func(what string, a answer, status int, code string)

// namingAcme sends another company's token with acme's name.
func (c *check) namingAcme(expect expecting) {
	c.t.Helper()
	named := "companyUuid=" + c.acme.company.String()
	_, inQuery := c.op.query["companyUuid"]
	foreign := bearer(c.bolt.token)
	if inQuery {
		expect("another company's token that names acme", c.sendTo(named, c.acme.fill(c.body), foreign), http.StatusForbidden, "COMPANY_MISMATCH")
	}
	if c.op.hasBody {
		expect("another company's token that names acme in the body",
			c.sendTo("", naming(c.acme.company, c.acme.fill(c.body)), foreign), http.StatusForbidden, "COMPANY_MISMATCH")
	}
}

// unnamed sends tokens of another company, of the platform and of no company, without
// acme's name.
func (c *check) unnamed(expect expecting) {
	c.t.Helper()
	bolt, none, platform := bearer(c.bolt.token), bearer(c.mint(nil, allScopes)), bearer(c.mint(nil, allScopes+" platform operator"))
	_, inQuery := c.op.query["companyUuid"]
	switch c.kind {
	case list:
		a := c.send(bolt)
		expect("another company's token", a, http.StatusOK, "")
		if len(c.bolt.shownIn(a.Body.String(), "")) == 0 {
			c.t.Errorf("%s shows bolt nothing of its own: %s", c.route, a.Body)
		}
		expect("another company's token and an id of acme", c.sendTo(c.acme.fill(c.filter), "", bolt), http.StatusOK, "")
		expect("a token of no company", c.send(none), http.StatusForbidden, "INSUFFICIENT_SCOPE")
		if c.operates() {
			expect("an operator's token of no company that names acme", c.sendTo("companyUuid="+c.acme.company.String(), "", none), http.StatusForbidden, "INSUFFICIENT_SCOPE")
		}
	case thing:
		status := http.StatusNotFound
		if c.other != 0 {
			status = c.other
		}
		expect("another company's token", c.send(bolt), status, "")
		if inQuery {
			expect("a platform token that names the other company", c.sendTo("companyUuid="+c.bolt.company.String(), c.acme.fill(c.body), platform), status, "")
		}
		expect("a platform token that names no company", c.send(platform), http.StatusBadRequest, "VALIDATION_ERROR")
		if c.operates() {
			expect("an operator's token of no company", c.send(none), http.StatusForbidden, "INSUFFICIENT_SCOPE")
			break
		}
		expect("a token of no company", c.send(none), http.StatusBadRequest, "VALIDATION_ERROR")
	case makes:
		expect("a platform token that names no company", c.send(platform), http.StatusBadRequest, "VALIDATION_ERROR")
		expect("a token of no company", c.send(none), http.StatusBadRequest, "VALIDATION_ERROR")
		switch {
		case c.other != 0:
			expect("another company's token", c.send(bolt), c.other, "")
		case c.method == http.MethodGet:
			expect("another company's token", c.send(bolt), http.StatusOK, "")
		}
	case shared, public, global:
	}
}

// operates reports whether the route is for operators: a token of no company needs platform for it.
func (c *check) operates() bool { return slices.Contains(c.op.scopes, auth.ScopeOperator) }

// rightToken is a token that may do what the row says.
func (c *check) rightToken() option {
	if c.kind == global {
		return bearer(c.mint(nil, allScopes+" platform"))
	}
	return bearer(c.acme.bound)
}

// right sends requests that must succeed. Without them the table would pass even if the
// API refused every request.
func (c *check) right() {
	c.t.Helper()
	if c.kind == public {
		a := c.send(noToken)
		if a.Code != c.status {
			c.t.Errorf("%s without a token: %d %s", c.route, a.Code, a.Body)
		}
		text := a.Body.String()
		shown := append(c.acme.shownIn(text, c.path()), c.bolt.shownIn(text, "")...)
		if shown = slices.DeleteFunc(shown, func(name string) bool { return slices.Contains(c.shows, name) }); len(shown) > 0 {
			c.t.Errorf("%s shows everyone %v", c.route, shown)
		}
		return
	}
	key := header(idempotencyHeader, c.route)
	a := c.send(c.rightToken(), key)
	c.wantShown("the right token and certificate", a)
	if again := c.send(bearer(c.bolt.token), key); len(c.acme.shownIn(again.Body.String(), c.path()+c.acme.fill(c.body))) > 0 ||
		again.Header().Get("Location") != "" && again.Header().Get("Location") == a.Header().Get("Location") {
		c.t.Errorf("%s: another company's token and the same Idempotency-Key: %d %s", c.route, again.Code, again.Body)
	}
	if c.method != http.MethodGet || c.kind == shared || c.kind == global {
		return
	}
	named := "companyUuid=" + c.acme.company.String()
	ofNone := allScopes
	if c.operates() {
		ofNone += " platform"
	}
	c.wantShown("a token of no company that names acme", c.sendTo(named, "", bearer(c.mint(nil, ofNone))))
	if !c.options.CertificateRequired[c.op.group] {
		c.wantShown("no certificate where none is needed", c.send(bearer(c.acme.token), noCert))
	}
	c.wantShown("a token that is bound to none", c.send(bearer(c.acme.token)))
	c.wantShown("acme's token that names acme", c.sendTo(named, "", bearer(c.acme.token)))
	if c.kind == list {
		c.wantShown("an id of acme", c.sendTo(c.acme.fill(c.filter), "", bearer(c.acme.token)))
		a := c.send(bearer(c.mint(nil, allScopes+" platform")))
		c.wantShown("a platform token", a)
		if len(c.bolt.shownIn(a.Body.String(), "")) == 0 {
			c.t.Errorf("%s shows a platform token nothing of bolt", c.route)
		}
	}
}

func (c *check) wantShown(what string, a answer) {
	c.t.Helper()
	shown := c.acme.shownIn(a.Body.String(), "")
	if a.Code != c.status || slices.ContainsFunc(c.shows, func(name string) bool { return !slices.Contains(shown, name) }) {
		c.t.Errorf("%s with %s: %d shows %v of %v: %s", c.route, what, a.Code, shown, c.shows, a.Body)
	}
}
