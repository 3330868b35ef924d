package api

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/gorillamux"
	"github.com/go-json-experiment/json"
	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"spendhook/audit"
	"spendhook/auth"
	"spendhook/auth/clients"
	"spendhook/auth/keys"
	"spendhook/console/session"
	"spendhook/contacts"
	"spendhook/dispatcher"
	"spendhook/dispatcher/challenge"
	"spendhook/dispatcher/delivery"
	"spendhook/dispatcher/feed"
	"spendhook/dispatcher/inspect"
	"spendhook/dispatcher/requests"
	"spendhook/dispatcher/webhook"
	"spendhook/dispatcher/workqueue"
	"spendhook/events/eventtype"
	"spendhook/events/history"
	"spendhook/events/operational"
	"spendhook/events/publish"
	"spendhook/events/sequence"
	"spendhook/internal/egress"
	"spendhook/internal/idempotency"
	"spendhook/internal/peer"
	"spendhook/internal/pgtest"
	"spendhook/internal/ratelimit"
	"spendhook/internal/redistest"
	"spendhook/internal/requestmemory"
	"spendhook/internal/seal/sealtest"
	"spendhook/storage"
	"spendhook/storage/billing"
	"spendhook/storage/cards"
	"spendhook/storage/companies"
	"spendhook/storage/locations"
	"spendhook/storage/reimbursements"
	"spendhook/storage/storagetest"
	"spendhook/subscribers"
	"spendhook/subscribers/callback"
	"spendhook/subscribers/certificate"
	"spendhook/subscribers/health"
	"spendhook/subscribers/registry"
)

func TestMain(m *testing.M) { redistest.Main(pgtest.Stopping(m)) }

const allScopes = "subscribers:read subscribers:write events:read events:write deliveries:read deliveries:write " +
	"cards:read cards:write reimbursements:read locations:read billing:read operator"

// harness is the API on the real packages and a real Redis. Everything that is
// answered and logged is kept in seen.
type harness struct {
	t       *testing.T
	handler http.Handler
	keys    *keys.Signer
	options Options
	company uuid.UUID
	token   string // of company, with allScopes
	seen    *transcript

	auditDir string // of the entries that wait for a slow Redis
}

// setup is a started harness; adjust may change the API's options.
func setup(t *testing.T, adjust ...func(*Options)) *harness {
	t.Helper()
	return setupOn(t, redistest.New(t), adjust...)
}

func setupOn(t *testing.T, client redis.UniversalClient, adjust ...func(*Options)) *harness {
	t.Helper()
	h := &harness{t: t, company: uuid.New(), seen: &transcript{}, auditDir: t.TempDir()}
	var err error
	h.keys = newKeys(t)
	o := domainOf(t, client, slog.New(slog.NewTextHandler(h.seen, &slog.HandlerOptions{Level: slog.LevelDebug})))
	o.Keys, o.Verifier = h.keys, verifierOf(h.keys)
	o.Metrics = NewMetrics(prometheus.NewRegistry())
	log := audit.Open(audit.Options{Client: client, Dir: h.auditDir, Logger: o.Logger})
	t.Cleanup(log.Close)
	o.Audit = log
	o.Timeout, o.StoreTimeout = patient, patient
	for _, f := range adjust {
		f(&o)
	}
	h.options = o
	if h.handler, err = New(o); err != nil {
		t.Fatal(err)
	}
	h.token = h.mint(&h.company, allScopes)
	return h
}

// domainOf is a started domain with loopback receivers allowed.
func domainOf(tb testing.TB, client redis.UniversalClient, logger *slog.Logger) Options {
	tb.Helper()
	return domainBehind(tb, client, logger, egress.New(egress.Options{AllowLoopback: true}), nil)
}

// domainBehind is a started domain whose deliveries go through a guard. Resolve
// checks the hosts of callback URLs; nil accepts all.
func domainBehind(tb testing.TB, client redis.UniversalClient, logger *slog.Logger, guard *egress.Guard, resolve func(context.Context, string) error) Options {
	tb.Helper()
	return domainWith(tb, client, logger, guard, subscribers.StoreOptions{Policy: callback.Policy{AllowHTTP: true, Resolve: resolve}})
}

// domainWith is a started domain with some options of its subscribers.
func domainWith(tb testing.TB, client redis.UniversalClient, logger *slog.Logger, guard *egress.Guard, o subscribers.StoreOptions) Options {
	tb.Helper()
	policy := delivery.Policy{
		Schedule: []time.Duration{20 * time.Millisecond}, DeadRetention: 30 * 24 * time.Hour,
		Retention: 7 * 24 * time.Hour, FailingAfter: 4, DisableAfter: time.Hour,
	}
	store := history.New(history.Options{Client: client, Retention: policy.Retention})
	o.Client, o.Keyring = client, sealtest.Keyring()
	subs := subscribers.NewStore(o)
	healths := health.New(health.Options{Client: client})
	certificates := certificate.New(certificate.Options{Client: client, Keyring: sealtest.Keyring()})
	sender := webhook.NewSender(webhook.SenderOptions{
		Guard: guard, Timeout: 2 * time.Second, ConnectTimeout: 2 * time.Second, Version: "test",
	})
	tb.Cleanup(sender.Close)
	copies := registry.New(client, sealtest.Keyring(), 0)
	made := requests.New(requests.Options{Logger: logger})
	d := dispatcher.New(dispatcher.Options{
		Client: client, Events: store, Operational: operational.New(operational.Options{Client: client, Retention: policy.Retention}), Subscribers: subs,
		Certificates: certificates, Health: healths,
		Registry: copies, Requests: made, Sender: sender, Policy: policy, Replica: uuid.NewString(),
		Queue:  workqueue.Options{LookEvery: 10 * time.Millisecond},
		Logger: logger, Registerer: prometheus.NewRegistry(),
	})
	publisher := publish.New(publish.Options{Client: client, Retention: policy.Retention, Wake: d.Queue.Wake, Owner: d.Queue})
	tb.Cleanup(publisher.Close)
	start(tb, d, publisher)
	inspector := inspect.New(inspect.Options{Events: store, Subscribers: subs, Registry: copies, Deliveries: d.Deliveries, Requests: made, Send: sender.Send})
	challenger := challenge.New(challenge.Options{
		Client: client, Subscribers: subs, Registry: copies, Requests: made, Send: sender.Send,
		Limiter: ratelimit.New(client, nil), Origin: "api.spendhook.test",
	})
	reader := feed.New(feed.Options{Numbers: sequence.New(client), Events: store, Dropped: d.Deliveries.Dropped, Quarantined: d.Quarantine.Events, Registry: copies, Requests: made})
	tb.Cleanup(reader.Close)
	return withSpend(storagetest.Open(tb, storage.Options{}), Options{
		Subscribers: subs, Registry: copies, Certificates: certificates, Health: healths, Publisher: publisher, Events: store,
		EventTypes: eventtype.NewStore(client, nil, time.Now),
		Sessions:   session.NewStore(client, nil),
		Dispatcher: d, Inspector: inspector, Challenger: challenger, Feed: reader,
		Contacts:    contacts.New(contacts.Options{Client: client, Keyring: sealtest.Keyring()}),
		Idempotency: idempotency.New(client, sealtest.Keyring(), nil), Logger: logger,
		Peers: peer.New(peer.Options{}), Bodies: requestmemory.NewBodies(nil, nil),
	})
}

// submitter stores bulk creations and leaves their items to the test.
type submitter struct{ *cards.Store }

func (s submitter) Submit(ctx context.Context, company uuid.UUID, requests []cards.Request, once cards.Once) (cards.Job, error) {
	return s.CreateCardJob(ctx, company, requests, once)
}

func withSpend(db *storage.DB, o Options) Options {
	store := cards.New(db, nil)
	o.Clients = clients.NewStore(db, nil)
	o.Cards, o.CardJobs, o.PublicURL = store, submitter{store}, "https://api.spendhook.test/"
	o.Reimbursements, o.Locations, o.Statements, o.Companies = reimbursements.New(db), locations.New(db), billing.New(db), companies.New(db)
	return o
}

func start(tb testing.TB, d *dispatcher.Dispatcher, publisher *publish.Publisher) {
	tb.Helper()
	if err := d.Start(tb.Context(), publisher.Accept); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		d.Stop(ctx)
	})
}

// ofAll reports whether an operation is about what belongs to no company.
func (o *operation) ofAll() bool { return slices.Contains(o.scopes, "platform") }

// tokenFor returns a token that may call the operation.
func (h *harness) tokenFor(o *operation) string {
	h.t.Helper()
	if o.ofAll() {
		return h.mint(nil, allScopes+" platform")
	}
	return h.mint(&h.company, allScopes)
}

// documentedRoutes are the operations of the document.
func documentedRoutes(t *testing.T) routes {
	t.Helper()
	doc, err := parse()
	if err != nil {
		t.Fatal(err)
	}
	return doc.routes()
}

// parsed is the document.
func parsed(t *testing.T) *openapi3.T {
	t.Helper()
	doc, err := parse()
	if err != nil {
		t.Fatal(err)
	}
	return doc.T
}

func (h *harness) metrics() *prometheus.CounterVec { return h.options.Metrics.requests }

func (h *harness) mint(company *uuid.UUID, scopes string) string {
	h.t.Helper()
	return h.mintAs("test", company, scopes)
}

func (h *harness) mintAs(subject string, company *uuid.UUID, scopes string) string {
	h.t.Helper()
	token, err := auth.Mint(h.keys, auth.Grant{Subject: subject, Company: company, Scopes: strings.Fields(scopes), TTL: time.Hour}, time.Now())
	if err != nil {
		h.t.Fatal(err)
	}
	return token
}

// answer is what came back, checked against the document.
type answer struct {
	*httptest.ResponseRecorder
	t *testing.T
}

type option func(*http.Request)

func header(name, value string) option {
	return func(r *http.Request) { r.Header.Set(name, value) }
}

func bearer(token string) option { return header("Authorization", "Bearer "+token) }

func remote(address string) option { return func(r *http.Request) { r.RemoteAddr = address } }

func noToken(r *http.Request) { r.Header.Del("Authorization") }

// call sends a request with the harness's token and a JSON body, if any.
func (h *harness) call(method, target, body string, options ...option) answer {
	h.t.Helper()
	r := httptest.NewRequestWithContext(h.t.Context(), method, target, strings.NewReader(body))
	bearer(h.token)(r)
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	for _, o := range options {
		o(r)
	}
	rec := httptest.NewRecorder()
	h.handler.ServeHTTP(rec, r)
	h.seen.add(rec)
	checkAnswer(h.t, r, rec)
	return answer{rec, h.t}
}

// want fails the test when another status, or problem code, was answered.
func (a answer) want(status int, code ...string) answer {
	a.t.Helper()
	if a.Code != status {
		a.t.Fatalf("status %d, want %d: %s", a.Code, status, a.Body)
	}
	if len(code) > 0 && a.problem().Code != code[0] {
		a.t.Fatalf("code %s, want %s: %s", a.problem().Code, code[0], a.Body)
	}
	return a
}

type problemDoc struct {
	Code, Detail, RequestID, Instance string
	Status                            int
	Errors                            []struct{ Field, Code, Message string }
}

func (a answer) problem() problemDoc { return as[problemDoc](a) }

// wantField fails the test unless the answer is a 400 that names the field.
func (a answer) wantField(field, code string) {
	a.t.Helper()
	a.want(http.StatusBadRequest)
	for _, e := range a.problem().Errors {
		if e.Field == pointer(field) && e.Code == code {
			return
		}
	}
	a.t.Fatalf("no %s of %q in %s", code, field, a.Body)
}

func as[T any](a answer) T {
	a.t.Helper()
	var into T
	if err := json.Unmarshal(a.Body.Bytes(), &into, json.MatchCaseInsensitiveNames(true)); err != nil {
		a.t.Fatalf("%v: %s", err, a.Body)
	}
	return into
}

// faults makes commands fail after Redis has carried them out.
type faults struct{ of func(cmd redis.Cmder) error }

func (f faults) DialHook(next redis.DialHook) redis.DialHook { return next }

func (f faults) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if fault := f.of(cmd); fault != nil {
			cmd.SetErr(fault)
			return fault
		}
		return err
	}
}

func (f faults) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, commands []redis.Cmder) error {
		err := next(ctx, commands)
		for _, cmd := range commands {
			if fault := f.of(cmd); fault != nil {
				cmd.SetErr(fault)
				err = fault
			}
		}
		return err
	}
}

// commandNames reports whether an argument of the command contains the text.
func commandNames(cmd redis.Cmder, text string) bool {
	return slices.ContainsFunc(cmd.Args(), func(arg any) bool { return strings.Contains(fmt.Sprint(arg), text) })
}

// transcript collects logs and bodies.
type transcript struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (s *transcript) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(p)
}

func (s *transcript) add(rec *httptest.ResponseRecorder) { _, _ = s.Write(rec.Body.Bytes()) }

func (s *transcript) count(what string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return bytes.Count(s.text.Bytes(), []byte(what))
}

// checker validates answers against the document, made strict: a member that
// the document does not name is an error.
var checker = sync.OnceValue(func() routers.Router {
	doc, err := openapi3.NewLoader().LoadFromData(documentSource)
	if err != nil {
		panic(err)
	}
	for _, schema := range doc.Components.Schemas {
		makeStrict(schema.Value)
	}
	router, err := gorillamux.NewRouter(doc)
	if err != nil {
		panic(err)
	}
	return router
})

func makeStrict(s *openapi3.Schema) {
	parts := s.AllOf
	s.AllOf = nil
	for _, part := range parts {
		if s.Properties == nil {
			s.Properties = openapi3.Schemas{}
		}
		s.Type = part.Value.Type
		s.Required = append(s.Required, part.Value.Required...)
		maps.Copy(s.Properties, part.Value.Properties)
	}
	if len(s.Properties) > 0 {
		s.AdditionalProperties = openapi3.AdditionalProperties{Has: new(bool)}
	}
}

func checkAnswer(t *testing.T, r *http.Request, rec *httptest.ResponseRecorder) {
	t.Helper()
	route, params, err := checker().FindRoute(r)
	if err != nil || rec.Code == http.StatusMethodNotAllowed {
		return
	}
	err = openapi3filter.ValidateResponse(t.Context(), &openapi3filter.ResponseValidationInput{
		RequestValidationInput: &openapi3filter.RequestValidationInput{Request: r, PathParams: params, Route: route},
		Status:                 rec.Code, Header: rec.Header(),
		Body:    io.NopCloser(bytes.NewReader(rec.Body.Bytes())),
		Options: &openapi3filter.Options{IncludeResponseStatus: true},
	})
	if err != nil {
		t.Errorf("%s %s is not as documented: %v", r.Method, r.URL, err)
	}
}
