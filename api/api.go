// Package api serves the HTTP API of openapi.yaml. The guard checks a request by its operation in the
// document. The generated wrapper reads the parameters. Answer decodes the body strictly, finds the
// company, calls the handler and encodes the answer. Errors become problem documents. A handler makes
// one domain call and contains no domain rules. Each resource has a file of handlers.
package api

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/gorilla/mux"
	"github.com/prometheus/client_golang/prometheus"

	"spendhook/api/gen"
	"spendhook/audit"
	"spendhook/auth"
	"spendhook/auth/clients"
	"spendhook/auth/keys"
	"spendhook/auth/tokens"
	"spendhook/console/session"
	"spendhook/contacts"
	"spendhook/dispatcher"
	"spendhook/dispatcher/challenge"
	"spendhook/dispatcher/feed"
	"spendhook/dispatcher/inspect"
	"spendhook/events"
	"spendhook/events/eventtype"
	"spendhook/events/history"
	"spendhook/events/publish"
	"spendhook/internal/clock"
	"spendhook/internal/egress"
	"spendhook/internal/idempotency"
	"spendhook/internal/peer"
	"spendhook/internal/requestmemory"
	"spendhook/internal/tracing"
	"spendhook/storage/billing"
	"spendhook/storage/cards"
	"spendhook/storage/companies"
	"spendhook/storage/locations"
	"spendhook/storage/reimbursements"
	"spendhook/subscribers"
	"spendhook/subscribers/certificate"
	"spendhook/subscribers/health"
	"spendhook/subscribers/registry"
)

// Options configures New. The components of the domain, Verifier, Peers and Bodies are required. The
// other fields have defaults.
type Options struct {
	Subscribers    *subscribers.Store
	Registry       *registry.Registry
	Certificates   *certificate.Store
	Health         *health.Store
	Publisher      publisher
	Events         *history.Reader
	EventTypes     *eventtype.Store
	Inspector      *inspect.Inspector
	Challenger     *challenge.Challenger
	Feed           *feed.Reader
	Dispatcher     *dispatcher.Dispatcher
	Idempotency    *idempotency.Store
	Cards          *cards.Store
	CardJobs       cardSubmitter
	Reimbursements *reimbursements.Store
	Locations      *locations.Store
	Companies      *companies.Store
	Statements     *billing.Store
	Sessions       *session.Store
	Verifier       *auth.Verifier

	// Audit records changes. Nil means no audit log.
	Audit *audit.Log

	// Console serves the paths below /console. Nil serves none.
	Console http.Handler

	// Canary answers POST CanaryRoute. Nil serves nothing there.
	Canary http.Handler

	// Contacts answers the links below contacts.Route, and knows the states of contacts.
	Contacts *contacts.Notifier

	// Keys sign the access tokens that Tokens issues to Clients. They are nil
	// when only the tokens of other issuers are accepted.
	Keys    *keys.Signer
	Tokens  *tokens.Endpoint
	Clients *clients.Store

	// PublicURL is the base address at which clients reach this API; links
	// within bodies begin with it.
	PublicURL string

	// Limits are the rates of requests; nil limits nothing.
	Limits *Limits
	// Peers finds the client's address and certificate.
	Peers *peer.Resolver
	// Bodies bounds the memory of request bodies.
	Bodies *requestmemory.Bodies
	// CertificateRequired says for each group of operations (their tag in the document, in
	// lower case) whether it needs a client certificate. A group that is not in the map needs
	// one. With a nil map no group does.
	CertificateRequired map[string]bool

	// Full reports whether the Redis of a company is above its high-water mark: then the company gets no
	// new subscribers. Nil means never.
	Full func(company uuid.UUID) bool
	// EgressAddresses returns the addresses from which deliveries come. Nil, or an empty list, means
	// that none are published.
	EgressAddresses func() []egress.Source
	// Timeout bounds the wait for memory for an answer, and then the work for the answer.
	// Both begin after the request is read. 0 means 1.5 s.
	Timeout time.Duration
	// StoreTimeout bounds the wait until an answer is stored for its Idempotency-Key, after the work. The answer
	// is then sent, and stored later. 0 means 400 ms.
	StoreTimeout time.Duration

	// AnswerBytes bounds the memory of the answers in progress; 0 means 64 MiB. A company
	// reads at most half of that a second, with a burst of one second.
	AnswerBytes int64

	Now     func() time.Time // nil means time.Now
	Logger  *slog.Logger     // nil means slog.Default
	Metrics *Metrics         // nil means metrics that nothing exports
	Tracing *tracing.Tracing // nil creates no spans
}

// Tests replace the components behind these interfaces. All methods are safe for concurrent use and
// obey the deadline of their context.

// publisher is *publish.Publisher.
type publisher interface {
	Accept(ctx context.Context, list []events.Event) ([]publish.Result, error)
}

// cardSubmitter stores a bulk creation of cards and queues its items. Submit
// returns what cards.Store.CreateCardJob does.
type cardSubmitter interface {
	Submit(ctx context.Context, company uuid.UUID, requests []cards.Request, once cards.Once) (cards.Job, error)
}

type server struct {
	opts     Options
	document []byte
	routes   routes
	router   *mux.Router
	answers  *requestmemory.Limiter
	pacer    *pacer
	delayed  atomic.Int64 // delayed answers that refuse a request
}

// server implements the interface that is generated from the document.
var _ gen.ServerInterface[*request, reply] = (*server)(nil)

// New returns the handler of the public listener. It is safe for concurrent use and starts
// no goroutine. It returns an error when the embedded document is invalid.
func New(opts Options) (http.Handler, error) {
	s, err := newServer(opts)
	if err != nil {
		return nil, err
	}
	return s.outer(s.identify(s.router)), nil
}

func newServer(opts Options) (*server, error) {
	doc, err := parse()
	if err != nil {
		return nil, fmt.Errorf("openapi.yaml: %w", err)
	}
	s := &server{opts: opts.withDefaults(), document: doc.text, routes: doc.routes(), router: mux.NewRouter().SkipClean(true)}
	s.opts.Metrics.initialize(s.routes)
	s.answers = requestmemory.New(s.opts.AnswerBytes, singleBytes)
	s.pacer = newPacer(s.opts.AnswerBytes/2, s.opts.Now)
	s.route()
	if err := s.router.Walk(s.wrap); err != nil {
		return nil, fmt.Errorf("openapi.yaml: %w", err)
	}
	s.routeConsole()
	s.routeCanary()
	s.routeContacts()
	if err := s.routeDocs(); err != nil {
		return nil, err
	}
	return s, nil
}

func (o Options) withDefaults() Options {
	o.Timeout = cmp.Or(o.Timeout, 1500*time.Millisecond)
	o.StoreTimeout = cmp.Or(o.StoreTimeout, 400*time.Millisecond)
	o.AnswerBytes = cmp.Or(o.AnswerBytes, 64<<20)
	o.PublicURL = strings.TrimRight(o.PublicURL, "/")
	o.Now = clock.Or(o.Now)
	o.Logger = cmp.Or(o.Logger, slog.Default())
	if o.Full == nil {
		o.Full = func(uuid.UUID) bool { return false }
	}
	if o.EgressAddresses == nil {
		o.EgressAddresses = func() []egress.Source { return nil }
	}
	if o.Metrics == nil {
		o.Metrics = NewMetrics(prometheus.NewRegistry())
	}
	return o
}

func (s *server) route() {
	gen.Register(s.router, s, s.badParameter)
	s.router.NotFoundHandler = s.observe(noRoute, noMethod, http.HandlerFunc(s.notFound))
	s.router.MethodNotAllowedHandler = s.observe(noRoute, noMethod, http.HandlerFunc(s.methodNotAllowed))
}

// wrap puts the guard of the operation before the handler of a generated route.
func (s *server) wrap(route *mux.Route, _ *mux.Router, _ []*mux.Route) error {
	path, err := route.GetPathTemplate()
	if err != nil {
		return err
	}
	methods, err := route.GetMethods()
	if err != nil {
		return err
	}
	op := s.routes[path][methods[0]]
	// Without the built-in issuer there are no clients. Without an audit log there are no entries.
	if op.group == "clients" && s.opts.Clients == nil || op.group == "audit" && s.opts.Audit == nil {
		route.Handler(s.observe(noRoute, noMethod, http.HandlerFunc(s.notFound)))
		return nil
	}
	route.Handler(s.opts.Tracing.Handler(op.route, s.observe(op.route, op.method, s.guard(op, route.GetHandler()))))
	return nil
}

func (s *server) notFound(w http.ResponseWriter, r *http.Request) {
	s.fail(w, r, newProblem("NO_SUCH_ROUTE", "There is nothing at this path."))
}

func (s *server) methodNotAllowed(w http.ResponseWriter, r *http.Request) {
	allow := strings.Join(s.allowed(r), ", ")
	s.fail(w, r, newProblem("METHOD_NOT_ALLOWED", "This path answers %s.", allow).with("Allow", allow))
}

// allowed lists the methods of the path of a request, sorted.
func (s *server) allowed(r *http.Request) (methods []string) {
	fixed := s.routes[r.URL.Path] != nil // a path such as add-event, which also matches routes with a parameter
	for _, method := range []string{http.MethodDelete, http.MethodGet, http.MethodPatch, http.MethodPost, http.MethodPut} {
		probe, match := r.Clone(context.WithoutCancel(r.Context())), mux.RouteMatch{}
		probe.Method = method
		if !s.router.Match(probe, &match) || match.MatchErr != nil {
			continue
		}
		if path, _ := match.Route.GetPathTemplate(); fixed && path != r.URL.Path {
			continue
		}
		if methods = append(methods, method); method == http.MethodGet {
			methods = append(methods, http.MethodHead)
		}
	}
	return methods
}
