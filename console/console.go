// Package console is the web console. Its pages show and change events, deliveries and
// subscribers. The daemon renders the pages, which work without scripts. The console uses the
// same domain packages as package api.
package console

import (
	"context"
	"html/template"
	"log/slog"
	"net/http"
	"time"

	"github.com/google/uuid"
	lru "github.com/hashicorp/golang-lru/v2"

	"spendhook/audit"
	"spendhook/auth/clients"
	"spendhook/console/login"
	"spendhook/console/session"
	"spendhook/contacts"
	"spendhook/dispatcher"
	"spendhook/dispatcher/challenge"
	"spendhook/dispatcher/delivery/store"
	"spendhook/dispatcher/inspect"
	"spendhook/dispatcher/redelivery"
	"spendhook/dispatcher/tail"
	"spendhook/dispatcher/traffic"
	"spendhook/events/eventtype"
	"spendhook/events/history"
	"spendhook/events/publish"
	"spendhook/internal/clock"
	"spendhook/internal/peer"
	"spendhook/internal/ratelimit"
	"spendhook/internal/requestmemory"
	"spendhook/storage/cards"
	"spendhook/storage/companies"
	"spendhook/subscribers"
	"spendhook/subscribers/certificate"
	"spendhook/subscribers/health"
	"spendhook/subscribers/registry"
)

// Options configure the console. All but Clients, Login and Now are required.
type Options struct {
	Sessions    *session.Store
	Subscribers *subscribers.Store
	Health      *health.Store
	Registry    *registry.Registry
	Events      *history.Reader
	Publisher   *publish.Publisher
	Catalogue   *eventtype.Catalogue
	EventTypes  *eventtype.Store
	Deliveries  *store.Store
	Redelivery  *redelivery.Service
	Inspector   *inspect.Inspector
	Challenger  *challenge.Challenger
	Contacts    *contacts.Notifier // knows their states
	Dispatcher  *dispatcher.Dispatcher
	Traffic     *traffic.Store
	Tail        *tail.Tail
	CardJobs    *cards.Store
	Companies   *companies.Store
	Clients     *clients.Store // nil if the daemon issues no tokens
	System      systemStatus
	Audit       *audit.Log

	// Certificates are the client certificates that deliveries present.
	Certificates *certificate.Store

	// Full reports whether the Redis of a company is above its high-water mark: then the company gets no new subscribers.
	Full func(company uuid.UUID) bool
	// Login signs users in; nil: only links open sessions.
	Login *login.Login
	// Accepts reports whether tokens like the one that asked for a link, or logins like that of a user, are still
	// accepted. If not, their sessions end.
	Accepts func(session.Asker) bool
	// CertificateRequired means that every browser needs a client certificate.
	CertificateRequired bool
	// Peers recognises trusted proxies, which terminate TLS.
	Peers *peer.Resolver
	// Limiter bounds the requests of a session.
	Limiter *ratelimit.Limiter

	Now    func() time.Time // nil means time.Now
	Logger *slog.Logger
}

// Time limits of a page, and of a page that waits for a receiver.
const (
	pageTimeout = 5 * time.Second
	testTimeout = 20 * time.Second
)

type server struct {
	opts   Options
	mux    *http.ServeMux
	pages  map[string]*template.Template
	assets *assets
	memory *requestmemory.Limiter // of pages, until they are read

	system    cached[overviewOfAll]
	companies *lru.Cache[uuid.UUID, *cached[companySummary]]
	names     *names
}

// The memory of pages, in bytes. A company, or a session without one, holds at most what is left free of the
// total, so its unread pages leave places to others.
const (
	pageMemory = 512 << 10 // of one page, at most
	allPages   = 64 << 20
)

// New returns the handler of all paths below /console. The handler is safe for concurrent use and
// starts no goroutine. New returns an error if a template is invalid.
func New(opts Options) (http.Handler, error) {
	opts.Now = clock.Or(opts.Now)
	s := &server{opts: opts, mux: http.NewServeMux(), memory: requestmemory.New(allPages, pageMemory), names: newNames(opts.Companies)}
	var err error
	if s.companies, err = lru.New[uuid.UUID, *cached[companySummary]](256); err != nil {
		return nil, err
	}
	if s.assets, err = loadAssets(); err != nil {
		return nil, err
	}
	if s.pages, err = s.loadPages(); err != nil {
		return nil, err
	}
	s.routes()
	return protect(s.mux), nil
}

// The scopes of pages and changes. They are those of the API operations with the same effect.
const (
	anyone           = "" // any session
	readSubscribers  = "subscribers:read"
	writeSubscribers = "subscribers:write"
	readEvents       = "events:read"
	writeEvents      = "events:write"
	readDeliveries   = "deliveries:read"
	writeDeliveries  = "deliveries:write"
	readCards        = "cards:read"
	operator         = "operator"
	platform         = "platform"
)

func (s *server) routes() {
	s.mux.Handle("GET /console/assets/", s.assets)
	s.public("GET /console/open", pageTimeout, s.askToOpen)
	s.public("POST /console/open", pageTimeout, s.open)
	s.public("GET /console/login", loginTimeout, s.beginLogin)
	s.public("GET /console/login/callback", loginTimeout, s.finishLogin)
	s.mux.Handle("GET /console", http.RedirectHandler("/console/", http.StatusSeeOther))

	s.page("GET /console/{$}", anyone, forCompanyOrAll(s.overview))
	s.page("GET /console/subscribers", readSubscribers, forCompanyOrAll(s.subscribers))
	s.pageFor("GET /console/subscribers/new", mayCreate(readSubscribers, writeSubscribers), forCompany(s.newSubscriber))
	s.page("GET /console/subscribers/{uuid}", readSubscribers, forID(s.subscriber))
	s.page("GET /console/subscribers/{uuid}/edit", writeSubscribers, forID(s.editSubscriber))
	s.page("GET /console/events", readEvents, forCompanyOrAll(s.events))
	s.pageFor("GET /console/events/new", mayCreate(readEvents, writeEvents), forCompany(s.newEvent))
	s.page("GET /console/events/{company}/{id}", readEvents, forEvent(s.event))
	s.page("GET /console/events/{company}/{id}/body", readEvents, forEvent(s.eventBody))
	s.page("GET /console/deliveries", readDeliveries, forCompanyOrAll(s.deliveries))
	s.page("GET /console/deliveries/{id}", readDeliveries, forCompany(s.delivery))
	s.page("GET /console/deliveries/{id}/body", readDeliveries, forCompany(s.deliveryBody))
	s.page("GET /console/dead", readDeliveries, forCompanyOrAll(s.dead))
	s.page("GET /console/tail", readDeliveries, forCompanyOrAll(s.tail))
	s.mux.HandleFunc("GET /console/tail/stream", s.tailStream)
	s.page("GET /console/jobs", readDeliveries, forCompanyOrAll(s.jobs))
	s.page("GET /console/jobs/{uuid}", anyone, forID(s.job))
	s.page("GET /console/access", operator, forCompanyOrAll(s.access))
	s.page("GET /console/audit", operator, forCompanyOrAll(s.audit))
	s.page("GET /console/event-types", readEvents, s.eventTypes)
	s.page("GET /console/quarantine", operator, forCompanyOrAll(s.quarantine))
	s.page("GET /console/system", platform, s.systemPage)
	s.page("GET /console/companies", platform, s.listCompanies)
	s.page("GET /console/", anyone, func(context.Context, *visit) error { return errNoPage })

	s.form("POST /console/leave", pageTimeout, func(*session.Grant) bool { return true }, s.signOut)
	s.form("POST /console/subscribers/new", pageTimeout, mayCreate(readSubscribers, writeSubscribers), forCompany(s.createSubscriber))
	s.change("POST /console/subscribers/new/filter-test", writeSubscribers, forCompany(s.tryNew))
	s.change("POST /console/subscribers/{uuid}/delete", writeSubscribers, forID(s.deleteSubscriber))
	s.form("POST /console/subscribers/{uuid}/edit", testTimeout, mayChange(writeSubscribers), forID(s.updateSubscriber))
	s.change("POST /console/subscribers/{uuid}/filter-test", writeSubscribers, forID(s.try))
	s.change("POST /console/subscribers/{uuid}/certificate", writeSubscribers, forID(s.setCertificate))
	s.change("POST /console/subscribers/{uuid}/certificate/delete", writeSubscribers, forID(s.removeCertificate))
	s.change("POST /console/subscribers/{uuid}/pause", writeSubscribers, forID(s.pause))
	s.change("POST /console/subscribers/{uuid}/resume", writeSubscribers, forID(s.resume))
	s.change("POST /console/subscribers/{uuid}/enable", writeSubscribers, forID(s.enable))
	s.change("POST /console/subscribers/{uuid}/disable", writeSubscribers, forID(s.disable))
	s.change("POST /console/subscribers/{uuid}/rotate-secret", writeSubscribers, forID(s.rotateSecret))
	s.change("POST /console/webhook-keys/rotate", writeSubscribers, forCompany(s.rotateKeys))
	s.change("POST /console/webhook-keys/{kid}/revoke", writeSubscribers, forCompany(s.revokeKey))
	s.form("POST /console/subscribers/{uuid}/test", testTimeout, mayChange(writeSubscribers), forID(s.testSubscriber))
	s.form("POST /console/subscribers/{uuid}/verify", testTimeout, mayChange(writeSubscribers), forID(s.verifySubscriber))
	s.change("POST /console/subscribers/{uuid}/recover", writeSubscribers, forID(s.recover))
	s.form("POST /console/events/new", pageTimeout, mayCreate(readEvents, writeEvents), forCompany(s.emit))
	s.form("POST /console/events/{company}/{id}/erase", pageTimeout, mayErase, forEvent(s.erase))
	s.change("POST /console/events/{company}/{id}/replay", writeDeliveries, forEvent(s.replay))
	s.form("POST /console/deliveries/{id}/verify", pageTimeout, func(g *session.Grant) bool { return g.May(readDeliveries) }, forCompany(s.verify))
	s.change("POST /console/deliveries/{id}/retry", writeDeliveries, forCompany(s.retry))
	s.change("POST /console/deliveries/retry", writeDeliveries, s.retrySelected)
	s.change("POST /console/deliveries/count", writeDeliveries, forCompany(s.countMatching))
	s.change("POST /console/jobs/{uuid}/start", writeDeliveries, forID(s.changeCounted))
	s.change("POST /console/jobs/{uuid}/cancel", writeDeliveries, forID(s.cancelJob))
	s.change("POST /console/access/sessions/{uuid}/end", operator, forCompanyOrAll(s.endSession))
	s.form("POST /console/access/clients/{client}", pageTimeout, maySetForAll, s.disableClient)
	s.form("POST /console/companies/{company}/erase", pageTimeout, mayEraseCompany, forCompany(s.eraseCompany))
	s.form("POST /console/companies/{company}/name", pageTimeout, maySetForAll, forCompany(s.nameCompany))
	s.form("POST /console/event-types", pageTimeout, maySetForAll, s.putEventType)
	s.form("POST /console/event-types/delete", pageTimeout, maySetForAll, s.removeEventType)
	s.change("POST /console/quarantine/retry", operator, s.retryQuarantined)
	s.change("POST /console/quarantine/drop", operator, s.dropQuarantined)
}

// mayCreate: what is created is shown next.
func mayCreate(read, write string) func(*session.Grant) bool {
	return func(g *session.Grant) bool { return g.May(read) && g.MayChange(write) }
}

// mayEraseCompany: the job is shown next.
func mayEraseCompany(g *session.Grant) bool { return maySetForAll(g) && g.May(readDeliveries) }

// mayErase: an erasure changes an event and its deliveries.
func mayErase(g *session.Grant) bool { return g.MayChange(writeEvents) && g.MayChange(writeDeliveries) }

// maySetForAll: event types, and the names of companies, are the platform's. Support people have its scope, too, to see all
// companies.
func maySetForAll(g *session.Grant) bool { return g.MayChange(platform) && g.MayChange(operator) }
