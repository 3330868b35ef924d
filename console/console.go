// Package console is the web console. Its pages show events and deliveries, and change them.
// The pages are rendered by the daemon and work without scripts. The console uses the same
// domain packages as package api.
package console

import (
	"context"
	"html/template"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"spendhook/events/eventtype"
	"spendhook/internal/peer"
	"spendhook/internal/ratelimit"
)

// Options configure the console. The domain's parts and Sessions are required; the other
// options have defaults.
type Options struct {
	Sessions    sessionStore
	Subscribers subscriberService
	Health      healthStore
	Registry    subscriberRegistry
	Events      eventReader
	Catalogue   *eventtype.Catalogue
	EventTypes  eventTypeStore
	Deliveries  deliveryStore
	Redelivery  redeliveryService
	Inspector   inspector
	Dispatcher  queueKeeper
	Traffic     trafficStore
	Tail        liveTail
	CardJobs    cardJobStore
	System      systemStatus
	Audit       auditLog

	// Revoked reports whether a client is revoked, which ends the sessions that it requested.
	// nil means that no client is revoked.
	Revoked func(clientID string) bool
	// CertificateRequired demands a client certificate of every browser.
	CertificateRequired bool
	// Peers recognises trusted proxies, which terminate TLS; nil means that there are none.
	Peers *peer.Resolver
	// Limiter bounds the requests of a session; nil bounds none.
	Limiter *ratelimit.Limiter
	// Timeout bounds a page; 0 means 5 s. TestTimeout is that of a test delivery; 0
	// means 20 s.
	Timeout, TestTimeout time.Duration
	// Unavailable reports whether an error of the domain means that Redis is unavailable.
	// With nil, only time-outs and lost connections do.
	Unavailable func(error) bool

	Now    func() time.Time // nil means time.Now
	Logger *slog.Logger     // nil means slog.Default
}

type server struct {
	opts   Options
	mux    *http.ServeMux
	pages  map[string]*template.Template
	assets *assets
	under  atomic.Int64 // pages under way

	system  cached[overviewOfAll]
	company companyCache
}

// maxUnderWay bounds the pages that are rendered at once. Each takes some hundred KiB at most.
const maxUnderWay = 128

// New returns the handler of all paths below /console. It is safe for concurrent
// use and starts no goroutine. The error is a broken template.
func New(opts Options) (http.Handler, error) {
	s := &server{opts: opts.withDefaults(), mux: http.NewServeMux()}
	var err error
	if s.assets, err = loadAssets(); err != nil {
		return nil, err
	}
	if s.pages, err = s.loadPages(); err != nil {
		return nil, err
	}
	s.routes()
	return protect(s.mux), nil
}

func (o Options) withDefaults() Options {
	if o.Revoked == nil {
		o.Revoked = func(string) bool { return false }
	}
	if o.Peers == nil {
		o.Peers = peer.New(peer.Options{})
	}
	if o.Timeout == 0 {
		o.Timeout = 5 * time.Second
	}
	if o.TestTimeout == 0 {
		o.TestTimeout = 20 * time.Second
	}
	if o.Unavailable == nil {
		o.Unavailable = func(error) bool { return false }
	}
	if o.Now == nil {
		o.Now = time.Now //nolint:forbidigo // the nil default
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	return o
}

// The scopes of pages and changes; those of the API's operations that do the same.
const (
	anyone           = "" // any session
	readSubscribers  = "subscribers:read"
	writeSubscribers = "subscribers:write"
	readEvents       = "events:read"
	readDeliveries   = "deliveries:read"
	writeDeliveries  = "deliveries:write"
	readCards        = "cards:read"
	operator         = "operator"
	platform         = "platform"
)

func (s *server) routes() {
	s.mux.Handle("GET /console/assets/", s.assets)
	s.mux.HandleFunc("GET /console/open", s.askToOpen)
	s.mux.HandleFunc("POST /console/open", s.open)
	s.mux.Handle("GET /console", http.RedirectHandler("/console/", http.StatusSeeOther))

	s.page("GET /console/{$}", anyone, s.overview)
	s.page("GET /console/subscribers", readSubscribers, s.subscribers)
	s.page("GET /console/subscribers/{uuid}", readSubscribers, s.subscriber)
	s.page("GET /console/subscribers/{uuid}/edit", writeSubscribers, s.editSubscriber)
	s.page("GET /console/events", readEvents, s.events)
	s.page("GET /console/events/{company}/{id}", readEvents, s.event)
	s.page("GET /console/events/{company}/{id}/body", readEvents, s.eventBody)
	s.page("GET /console/deliveries", readDeliveries, s.deliveries)
	s.page("GET /console/deliveries/{id}", readDeliveries, s.delivery)
	s.page("GET /console/deliveries/{id}/body", readDeliveries, s.deliveryBody)
	s.page("GET /console/dead", readDeliveries, s.dead)
	s.page("GET /console/tail", readDeliveries, s.tail)
	s.mux.HandleFunc("GET /console/tail/stream", s.tailStream)
	s.page("GET /console/jobs", readDeliveries, s.jobs)
	s.page("GET /console/jobs/{uuid}", anyone, s.job)
	s.page("GET /console/audit", operator, s.audit)
	s.page("GET /console/event-types", readEvents, s.eventTypes)
	s.page("GET /console/quarantine", operator, s.quarantine)
	s.page("GET /console/system", platform, s.systemPage)
	s.page("GET /console/", anyone, func(context.Context, *visit) error { return errNoPage })

	s.change("POST /console/leave", anyone, s.leave)
	s.change("POST /console/subscribers/{uuid}/edit", writeSubscribers, s.updateSubscriber)
	s.change("POST /console/subscribers/{uuid}/filter-test", writeSubscribers, s.tryFilter)
	s.change("POST /console/subscribers/{uuid}/pause", writeSubscribers, s.pause)
	s.change("POST /console/subscribers/{uuid}/resume", writeSubscribers, s.resume)
	s.change("POST /console/subscribers/{uuid}/enable", writeSubscribers, s.enable)
	s.change("POST /console/subscribers/{uuid}/disable", writeSubscribers, s.disable)
	s.change("POST /console/subscribers/{uuid}/rotate-secret", writeSubscribers, s.rotateSecret)
	s.change("POST /console/subscribers/{uuid}/test", writeSubscribers, s.testSubscriber)
	s.change("POST /console/subscribers/{uuid}/recover", writeSubscribers, s.recover)
	s.change("POST /console/events/{company}/{id}/replay", writeDeliveries, s.replay)
	s.change("POST /console/deliveries/{id}/verify", readDeliveries, s.verify)
	s.change("POST /console/deliveries/{id}/retry", writeDeliveries, s.retry)
	s.change("POST /console/deliveries/retry", writeDeliveries, s.retrySelected)
	s.change("POST /console/deliveries/retry-all", writeDeliveries, s.countMatching)
	s.change("POST /console/jobs/{uuid}/retry", writeDeliveries, s.retryCounted)
	s.change("POST /console/jobs/{uuid}/cancel", writeDeliveries, s.cancelJob)
	s.change("POST /console/quarantine/retry", operator, s.retryQuarantined)
	s.change("POST /console/quarantine/drop", operator, s.dropQuarantined)
}
