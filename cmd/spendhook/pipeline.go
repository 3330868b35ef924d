package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/google/uuid"

	"spendhook/api"
	"spendhook/audit"
	"spendhook/cardjobs"
	"spendhook/console/session"
	"spendhook/contacts"
	"spendhook/dispatcher"
	"spendhook/dispatcher/challenge"
	"spendhook/dispatcher/feed"
	"spendhook/dispatcher/inspect"
	"spendhook/dispatcher/requests"
	"spendhook/dispatcher/tail"
	"spendhook/dispatcher/traffic"
	"spendhook/dispatcher/webhook"
	"spendhook/dispatcher/workqueue/storedformat"
	"spendhook/events/eventtype"
	"spendhook/events/history"
	"spendhook/events/operational"
	"spendhook/events/publish"
	"spendhook/events/sequence"
	"spendhook/internal/clienttls"
	"spendhook/internal/connlimit"
	"spendhook/internal/egress"
	"spendhook/internal/idempotency"
	"spendhook/internal/partition"
	"spendhook/internal/pause"
	"spendhook/internal/requestmemory"
	"spendhook/storage/billing"
	"spendhook/storage/locations"
	"spendhook/storage/reimbursements"
	"spendhook/subscribers"
	"spendhook/subscribers/callback"
	"spendhook/subscribers/certificate"
	"spendhook/subscribers/health"
	"spendhook/subscribers/registry"
)

func (d *daemon) openStores(context.Context) error {
	client := d.redis.Client()
	d.catalogue = newCatalogue(d.cfg)
	d.eventTypes = eventtype.NewStore(client, d.catalogue, time.Now)
	d.audit = audit.Open(audit.Options{ //nolint:contextcheck // Close stops its background work
		Client: client, Dir: d.cfg.DataDir, Logger: d.log, Registerer: d.registry,
		Retention: d.cfg.Audit.Retention, MaxEntries: d.cfg.Audit.MaxEntries, Reports: d.reports,
	})
	d.stop.addFunc(func(context.Context) { d.audit.Close() })
	d.sessions = session.NewStore(client, nil)
	reading := history.Options{Client: client, Retention: d.cfg.Events.Retention}
	if d.archive != nil { // else the interface would not be nil
		reading.Archive = d.archive
	}
	d.events = history.New(reading)
	d.operational = operational.New(operational.Options{
		Client: client, Retention: d.cfg.Events.Retention, Operations: d.cfg.Operations.Company,
	})
	d.subscribers = subscribers.NewStore(subscribers.StoreOptions{
		Client:        client,
		Operational:   d.operational,
		Keyring:       d.keyring,
		Policy:        callback.Policy{AllowHTTP: d.cfg.Dev, Resolve: d.egress.Check},
		Catalogue:     d.catalogue,
		MaxPerCompany: d.cfg.Subscribers.MaxPerCompany,
		SecretOverlap: d.cfg.Subscribers.SecretOverlap,
		Retention:     longestRetries(d.cfg),
		Challenge:     subscribers.Challenge(d.cfg.Subscribers.Challenge),
		NoContacts:    !d.linksWork(),
		Mail:          d.cfg.SMTP.Host != "",
		MaxContacts:   d.cfg.Limits.Contacts,
		Registerer:    d.registry,
	})
	d.health = health.New(health.Options{Client: client, Operational: d.operational})
	d.subscriberRegistry = registry.New(client, d.keyring, 0)
	d.certificates = certificate.New(certificate.Options{Client: client, Keyring: d.keyring, MaxOwn: d.cfg.Limits.Certificates, Full: d.memoryFull})
	return nil
}

// openPipeline starts the publisher and the dispatcher. On shutdown the dispatcher stops
// first, so that its operational events are still accepted.
func (d *daemon) openPipeline(ctx context.Context) error {
	d.watchTraffic(ctx)
	if err := d.openDispatcher(); err != nil {
		return err
	}
	if err := d.checkHistory(ctx); err != nil {
		return err
	}
	d.scheduler.Store(d.dispatcher)
	d.publisher = publish.New(publish.Options{
		Client:     d.redis.Client(),
		Retention:  d.cfg.Events.Retention,
		Backlog:    d.cfg.Limits.CompanyBacklog,
		Memory:     d.memory,
		Wake:       d.dispatcher.Queue.Wake,
		Owner:      d.dispatcher.Queue,
		Catalogue:  d.catalogue,
		Registerer: d.registry,
		Counted:    d.counter.Accepted,
	})
	d.stop.addFunc(func(context.Context) { d.publisher.Close() })
	if err := d.dispatcher.Start(ctx, d.publisher.Accept); err != nil {
		return err
	}
	d.stop.addFunc(d.dispatcher.Stop)
	if d.linksWork() {
		d.background(ctx, d.contacts.Run)
	}
	d.background(ctx, func(ctx context.Context) {
		for pause.For(ctx, d.applyChallenge(ctx)) {
		}
	})
	return nil
}

// checkHistory refuses a history in SQLite, which only this replica can read, while other replicas run.
func (d *daemon) checkHistory(ctx context.Context) error {
	if d.archive == nil || d.cfg.Storage.URL != "" {
		return nil
	}
	formats, err := storedformat.Read(ctx, d.redis.Client())
	if err != nil {
		return err
	}
	for _, r := range formats.Readers {
		if name := r.Replica[:max(0, strings.LastIndexByte(r.Replica, '.'))]; name != d.replica {
			return fmt.Errorf("history.enabled: replica %s runs on this Redis, too; the history of several replicas needs PostgreSQL (storage.url)", r.Replica)
		}
	}
	return nil
}

// The interval between two applications of subscribers.challenge, after one that failed and otherwise: a replica with the
// former setting may have changed subscribers meanwhile.
const (
	challengeRetry = time.Minute
	challengeEvery = time.Hour
)

// applyChallenge applies subscribers.challenge to the subscribers that exist, and returns the wait until the next time.
func (d *daemon) applyChallenge(ctx context.Context) time.Duration {
	n, err := d.subscribers.ApplyChallenge(ctx)
	if n > 0 {
		d.log.Warn("subscribers wait for the verification of their callback URL, or wait no longer (subscribers.challenge)", "changed", n)
	}
	if err != nil {
		if ctx.Err() == nil {
			d.log.Error("subscribers.challenge not applied to all subscribers, trying again", "exception.message", err)
		}
		return challengeRetry
	}
	return challengeEvery
}

// openDispatcher opens the dispatcher, the inspector and the feed.
func (d *daemon) openDispatcher() error {
	var proxy *egress.Proxy
	if d.cfg.Egress.ProxyURL != "" {
		var trust tls.Config
		if err := (&clienttls.Files{CA: d.cfg.Egress.ProxyCAFile}).Apply(&trust); err != nil {
			return fmt.Errorf("egress.proxy_ca_file: %w", err)
		}
		var err error
		if proxy, err = egress.NewProxy(d.cfg.Egress.ProxyURL.Reveal(), trust.RootCAs); err != nil {
			return err
		}
	}
	sender := webhook.NewSender(webhook.SenderOptions{
		Guard: d.egress, Proxy: proxy, Version: readBuild().Version,
		Timeout: d.cfg.Delivery.AttemptTimeout, ConnectTimeout: d.cfg.Delivery.ConnectTimeout, Registerer: d.registry,
	})
	d.stop.addFunc(func(context.Context) { sender.Close() })
	prepared := requests.New(requests.Options{
		SignEd25519: d.cfg.Delivery.SignEd25519, PublicURL: d.publicURL(), Logger: d.log, Registerer: d.registry,
	})
	d.dispatcher = dispatcher.New(dispatcher.Options{
		Client: d.redis.Client(), Events: d.events, Operational: d.operational,
		Subscribers: d.subscribers, Health: d.health, Certificates: d.certificates, Registry: d.subscriberRegistry, Requests: prepared,
		Sender: sender, Policy: deliveryPolicy(d.cfg), Archive: d.archive, ArchiveRetention: d.cfg.History.Retention, CompanyRetention: d.cfg.History.OfCompanies(), Replica: d.replica,
		Concurrency:         d.cfg.Delivery.Concurrency,
		EndpointConcurrency: d.cfg.Delivery.EndpointConcurrency, HostConcurrency: d.cfg.Delivery.HostConcurrency,
		UnfinishedJobs: d.cfg.Limits.UnfinishedJobs, TopCompanies: d.cfg.Metrics.TopCompanies,
		Counted: d.counter.Attempted, Tail: d.tail, Forget: d.companies.Remove, Free: d.memoryFree, Logger: d.log, Registerer: d.registry, Tracer: d.tracing.Tracer(),
	})
	d.inspector = inspect.New(inspect.Options{
		Events: d.events, Subscribers: d.subscribers, Registry: d.subscriberRegistry, Deliveries: d.dispatcher.Deliveries, Requests: prepared, Send: sender.Send,
	})
	d.challenger = challenge.New(challenge.Options{
		Client: d.redis.Client(), Subscribers: d.subscribers, Registry: d.subscriberRegistry, Requests: prepared,
		Send: sender.Send, Limiter: d.limiter, Origin: prepared.Origin(), Registerer: d.registry,
		HostHour: d.cfg.Limits.HostHour, CompanyHour: d.cfg.Limits.ChallengeHour,
	})
	mailer, err := newMailer(d.cfg)
	if err != nil {
		return err
	}
	d.contacts = contacts.New(contacts.Options{
		Client: d.redis.Client(), Keyring: d.keyring, Registry: d.subscriberRegistry, Health: d.health, Limiter: d.limiter,
		Mailer: mailer, Send: sender.Send, Owned: d.dispatcher.Queue.Owned, FailsFor: deliveryPolicy(d.cfg).FailsFor,
		PublicURL: d.publicURL(), Hourly: d.cfg.Limits.ContactHour, Confirms: d.cfg.Limits.ConfirmHour, Audit: d.audit.Record, Logger: d.log, Registerer: d.registry,
	})
	d.feed = feed.New(feed.Options{
		Numbers: sequence.New(d.redis.Client()), Events: d.events, Dropped: d.dispatcher.Deliveries.Dropped, Quarantined: d.dispatcher.Quarantine.Events,
		Registry: d.subscriberRegistry, Requests: prepared,
	})
	return nil
}

// watchTraffic starts the counters for the console's charts, and the live tail. Their shutdown
// follows that of the dispatcher, so that the last counts are written.
func (d *daemon) watchTraffic(ctx context.Context) {
	d.traffic = traffic.NewStore(d.redis.Client(), nil)
	d.counter = traffic.NewCounter(d.traffic, func(ctx context.Context) (int64, error) {
		return d.dispatcher.Backlog.Pending(ctx)
	})
	d.tail = tail.New(d.redis.Client())
	d.background(ctx, d.counter.Run)
	d.background(ctx, d.tail.Run)
}

// openCardJobs starts the workers of bulk creations. On shutdown they stop before the
// publisher, which accepts their events.
func (d *daemon) openCardJobs(ctx context.Context) error {
	d.cardJobs = cardjobs.New(cardjobs.Options{
		Store: d.cards, Publish: d.publisher.Accept, Reports: d.reports, Logger: d.log, Registerer: d.registry,
	})
	d.cardJobs.Start(ctx)
	d.stop.addFunc(d.cardJobs.Stop)
	return nil
}

// bindIntake opens the listener of the API, since links in deliveries need its address. Connections
// wait until openIntake serves them.
func (d *daemon) bindIntake(ctx context.Context) (err error) {
	if d.intake, err = bind(ctx, "intake", d.cfg.Listen); err != nil {
		return err
	}
	d.stop.addFunc(func(context.Context) { _ = d.intake.Close() }) // closed already by its server, unless the start failed
	d.address = d.intake.Addr().String()
	if !d.linksWork() {
		d.log.Warn("public_url is not set: links in answers and deliveries begin with the listener's address", "address", d.base())
	}
	return nil
}

// memoryFree is how many bytes of a company's Redis are free below its high-water mark.
func (d *daemon) memoryFree(company uuid.UUID) int64 {
	shard, err := partition.Shard(context.Background(), d.redis.Client(), partition.Of(company))
	if err != nil {
		return math.MaxInt64
	}
	return d.memory.Free(shard)
}

func (d *daemon) memoryFull(company uuid.UUID) bool { return d.memoryFree(company) <= 0 }

func (d *daemon) openIntake(context.Context) error {
	pages, err := d.webConsole()
	if err != nil {
		return err
	}
	bodies := requestmemory.NewBodies(d.peers.Trusts, d.registry)
	client, company := rateLimits(d.cfg.Limits)
	d.limits = api.NewLimits(d.limiter, client, company)
	answers := idempotency.New(d.redis.Client(), d.keyring, d.memory)
	d.stop.addFunc(func(context.Context) { answers.Close() })
	handler, err := api.New(api.Options{
		Subscribers: d.subscribers, Registry: d.subscriberRegistry, Full: d.memoryFull, EgressAddresses: func() []egress.Source { return *d.egressAddresses.Load() }, Health: d.health, Certificates: d.certificates, Publisher: d.publisher, Events: d.events, EventTypes: d.eventTypes,
		Dispatcher: d.dispatcher, Inspector: d.inspector, Challenger: d.challenger, Feed: d.feed,
		Idempotency: answers,
		Cards:       d.cards, CardJobs: d.cardJobs, Reimbursements: reimbursements.New(d.storage), Locations: locations.New(d.storage), Companies: d.companies, Statements: billing.New(d.storage), PublicURL: d.publicURL(),
		Keys: d.keys, Tokens: d.tokens, Clients: d.clients, Verifier: d.verifier,
		Audit: d.audit, Sessions: d.sessions, Console: pages, Canary: d.canary, Contacts: d.contacts,
		Limits: d.limits,
		Peers:  d.peers, Bodies: bodies, CertificateRequired: d.cfg.CertificateRequired(),
		Logger: d.log, Metrics: api.NewMetrics(d.registry), Tracing: d.tracing,
	})
	if err != nil {
		return err
	}
	d.serve(d.intake, service{
		name: "intake", handler: handler, answer: answerTimeout, tls: d.tlsConfig(),
		limits: connlimit.Options{ // proxies carry the connections of many clients
			Max: d.cfg.HTTP.MaxConnections, MaxPerAddress: d.cfg.HTTP.MaxConnectionsPerAddress, Exempt: d.peers.Trusts,
		},
		context: bodies.ConnContext,
	})
	d.stop.addFunc(func(context.Context) {
		d.feed.Close()
		d.tail.Close()
	})
	d.stop.addFunc(func(context.Context) { d.admin.setUnready(errors.New("the daemon is shutting down")) })
	d.admin.unready.Store(new(d.dispatcher.Queue.Refused))
	return nil
}

// linksWork reports whether links to this service work elsewhere. Contacts are told nothing without: they could not confirm.
func (d *daemon) linksWork() bool { return d.cfg.PublicURL != "" || d.cfg.Dev }

// publicURL returns the base of links: public_url, or else the address of the listener, which
// other machines may not reach.
func (d *daemon) publicURL() string {
	if d.cfg.PublicURL != "" {
		return d.cfg.PublicURL
	}
	return d.base()
}
