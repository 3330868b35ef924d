package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/exporter-toolkit/web"

	"spendhook/api"
	"spendhook/audit"
	"spendhook/auth"
	"spendhook/auth/clients"
	"spendhook/auth/keys"
	"spendhook/auth/tokens"
	"spendhook/cardjobs"
	"spendhook/config"
	"spendhook/console/session"
	"spendhook/contacts"
	"spendhook/dispatcher"
	"spendhook/dispatcher/challenge"
	"spendhook/dispatcher/feed"
	"spendhook/dispatcher/inspect"
	"spendhook/dispatcher/tail"
	"spendhook/dispatcher/traffic"
	"spendhook/events/eventtype"
	"spendhook/events/history"
	"spendhook/events/operational"
	"spendhook/events/publish"
	"spendhook/internal/connlimit"
	"spendhook/internal/datadir"
	"spendhook/internal/egress"
	"spendhook/internal/keycheck"
	"spendhook/internal/pause"
	"spendhook/internal/peer"
	"spendhook/internal/ratelimit"
	"spendhook/internal/redismemory"
	"spendhook/internal/redisx"
	"spendhook/internal/seal"
	"spendhook/internal/servertls"
	"spendhook/internal/tracing"
	"spendhook/storage"
	"spendhook/storage/archive"
	"spendhook/storage/cards"
	"spendhook/storage/companies"
	"spendhook/subscribers"
	"spendhook/subscribers/certificate"
	"spendhook/subscribers/health"
	"spendhook/subscribers/registry"
)

// daemon holds the components of a running daemon. start opens them step by step, and each step
// adds its cleanup.
type daemon struct {
	cfg         *config.Config
	load        func() (*config.Config, error) // reads the settings again
	log         *slog.Logger
	level       *slog.LevelVar // the level of log
	allowMemory bool           // an in-memory Redis may replace the embedded one

	stop               cleanups
	reloading          sync.Mutex
	running            atomic.Pointer[config.Config] // the settings, with those of reloads; nil during the start
	tracing            *tracing.Tracing              // nil while it is off
	egress             *egress.Guard
	egressAddresses    atomic.Pointer[[]egress.Source] // that are published
	limits             *api.Limits
	tlsFiles           *servertls.Files
	peers              *peer.Resolver
	replica            string // the id
	keyring            *seal.Keyring
	registry           *prometheus.Registry
	storage            *storage.DB
	archive            *archive.Store // the history; nil without one
	cards              *cards.Store
	companies          *companies.Store
	database           *databaseWatch
	redis              *redisx.Redis
	memory             *redismemory.Watch
	limiter            *ratelimit.Limiter
	admin              *admin
	catalogue          *eventtype.Catalogue
	eventTypes         *eventtype.Store
	events             *history.Reader
	operational        *operational.Store
	subscribers        *subscribers.Store
	certificates       *certificate.Store
	health             *health.Store // of subscribers
	dispatcher         *dispatcher.Dispatcher
	inspector          *inspect.Inspector
	challenger         *challenge.Challenger
	contacts           *contacts.Notifier
	feed               *feed.Reader
	subscriberRegistry *registry.Registry // in memory
	publisher          *publish.Publisher
	verifier           *auth.Verifier
	keys               *keys.Signer // nil without the built-in issuer, as tokens and clients are
	tokens             *tokens.Endpoint
	clients            *clients.Store
	cardJobs           *cardjobs.Runner
	canary             http.Handler // nil while it is off
	audit              *audit.Log
	sessions           *session.Store // of the console
	traffic            *traffic.Store
	counter            *traffic.Counter
	tail               *tail.Tail

	scheduler             atomic.Pointer[dispatcher.Dispatcher] // dispatcher, for metrics; nil until it is open
	connections           *connlimit.Metrics
	failed                chan error // errors of listeners
	intake                net.Listener
	address, adminAddress string // with the real port if the settings say 0
}

// start returns once the daemon accepts events. After an error it cleans up.
func (d *daemon) start(ctx context.Context) error {
	d.failed, d.registry = make(chan error, 2), newRegistry()
	d.connections = connlimit.NewMetrics(d.registry)
	d.egress = egress.New(egress.Options{AllowLoopback: d.cfg.Dev, AllowCIDRs: d.cfg.Egress.AllowCIDRs, Proxied: d.cfg.Egress.ProxyURL != ""})
	d.publishAddresses(d.cfg)
	for _, step := range []func(context.Context) error{
		d.openTLS, d.openDataDir, d.openTracing, d.openDatabase, d.openRedis, d.openAdmin, d.awaitRedis, d.awaitDatabase, d.openAuth,
		d.openStores, d.watchAddresses, d.watchVerification, d.watchCertificates, d.bindIntake, d.openPipeline, d.openCardJobs, d.openCanary, d.openIntake,
	} {
		if err := step(ctx); err != nil {
			return errors.Join(err, d.close(ctx))
		}
	}
	d.running.Store(new(*d.cfg))
	return nil
}

// publishAddresses publishes the addresses from which deliveries come.
func (d *daemon) publishAddresses(cfg *config.Config) {
	list := cfg.EgressAddresses()
	for _, source := range list {
		if !egress.IsPublic(source.Range.Addr()) {
			d.log.Warn("egress.addresses has a range that is not public: receivers on the internet see another address", "range", source.Range.String())
		}
	}
	d.egressAddresses.Store(&list)
}

// close shuts the daemon down within shutdown_grace, also when ctx has ended. It ends
// readiness first and Redis last.
func (d *daemon) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), d.cfg.ShutdownGrace)
	defer cancel()
	return d.stop.run(ctx)
}

func (d *daemon) openDataDir(context.Context) (err error) {
	if err = datadir.Make(d.cfg.DataDir); err != nil {
		return err
	}
	var lock io.Closer
	if d.replica, lock, err = claimReplicaID(d.cfg.DataDir); err != nil {
		return err
	}
	d.stop.add("replica id", func(context.Context) error { return lock.Close() })
	if d.keyring, err = openKeyring(d.cfg, seal.OpenFile); err != nil {
		return err
	}
	warnOfLocalKey(d.cfg, d.log)
	return nil
}

// openTracing runs early, so that tracing is closed after the components that create spans.
func (d *daemon) openTracing(ctx context.Context) (err error) {
	d.tracing, err = tracing.Open(ctx, tracing.Options{Version: readBuild().Version, Instance: d.replica, Logger: d.log})
	d.stop.add("tracing", d.tracing.Close)
	return err
}

// openDatabase succeeds while the database is unreachable, since deliveries do not use it.
func (d *daemon) openDatabase(ctx context.Context) (err error) {
	if d.storage, err = storage.Open(storageOptions(d.cfg, d.log)); err != nil {
		return err
	}
	d.cards, d.companies = cards.New(d.storage, nil), companies.New(d.storage)
	d.stop.add("database", func(context.Context) error { return d.storage.Close() })
	d.database = newDatabaseWatch(d.storage, d.registry, d.log)
	d.background(ctx, d.database.run)
	return d.openHistory(ctx)
}

// openHistory also succeeds while the database is unreachable: settled events wait in Redis.
func (d *daemon) openHistory(ctx context.Context) error {
	db, err := openHistory(d.cfg, d.log, false)
	if err != nil || db == nil {
		return err
	}
	d.stop.add("history", func(context.Context) error { return db.Close() })
	d.archive = archive.New(db)
	d.background(ctx, func(ctx context.Context) {
		logged := false
		for {
			err := db.Migrate(ctx)
			if err != nil && !logged && ctx.Err() == nil {
				d.log.Error("the tables of the history are not made, trying again", "exception.message", err)
				logged = true
			}
			if err == nil || !pause.For(ctx, databaseRetry) {
				return
			}
		}
	})
	return nil
}

func (d *daemon) openRedis(ctx context.Context) (err error) {
	o := redisOptions(d.cfg, d.log)
	o.Memory, o.AllowMemory = int64(d.cfg.Redis.Memory), d.allowMemory
	redisx.LogTo(d.log)
	d.redis, err = redisx.Open(ctx, o)
	if err != nil {
		return err
	}
	d.limiter = ratelimit.New(d.redis.Client(), nil)
	d.stop.add("redis", func(context.Context) error { return d.redis.Close() })
	d.memory = redismemory.New(d.redis.Client(), redismemory.Options{
		HighWater: d.cfg.Redis.HighWater, Limit: int64(d.cfg.Redis.Memory),
	})
	registerMemory(d.registry, d.memory)
	d.background(ctx, d.memory.Run)
	return nil
}

func (d *daemon) openAdmin(ctx context.Context) error {
	watch := newRedisWatch(d.redis.Check, d.registry, d.log)
	d.background(ctx, watch.run)
	clocks := newClockWatch(map[string]clockReader{"redis": redisClock(d.redis.Client()), "database": d.storage.Now}, d.registry, d.log)
	d.background(ctx, clocks.run)
	warnings := func() []string {
		return slices.Concat(d.database.warnings(), d.memory.Warnings(), clocks.warnings(), d.refusals())
	}
	d.admin = newAdmin(d.redis.Check, warnings, d.registry)
	protected := !d.cfg.AdminPublic || d.cfg.AdminWeb != ""
	d.admin.profiles = d.cfg.AdminProfiles && protected
	if protected {
		d.admin.reload = d.reload
	}
	handler := d.admin.handler()
	if !d.cfg.AdminPublic {
		handler = loopbackOnly(handler)
	}
	if d.cfg.AdminWeb != "" {
		if err := web.Validate(d.cfg.AdminWeb); err != nil {
			return fmt.Errorf("admin_web_config_file: %w", err)
		}
	}
	address, err := d.listen(ctx, d.cfg.AdminListen, service{
		name: "admin", handler: http.MaxBytesHandler(handler, adminBody), answer: profileTimeout, web: d.cfg.AdminWeb,
	})
	d.adminAddress = address
	return err
}

// reports returns whether this replica exports the metrics of shared state. Only the owner of
// partition 0 exports them, so that the sum over all replicas is correct.
func (d *daemon) reports() bool {
	scheduler := d.scheduler.Load()
	return scheduler != nil && slices.Contains(scheduler.Queue.Owned(), 0)
}

// background runs work until the daemon stops.
func (d *daemon) background(ctx context.Context, work func(context.Context)) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan struct{})
	go func() {
		defer close(done)
		work(ctx)
	}()
	d.stop.addFunc(func(context.Context) {
		cancel()
		<-done
	})
}

// awaitRedis waits until Redis is up and accepts writes, so that daemon and Redis can be
// started together. In a Cluster it waits only for the shard of the key sh:keys, which holds the
// check values of the encryption keys. Meanwhile /readyz and the log show the reason.
func (d *daemon) awaitRedis(ctx context.Context) error {
	for logged := false; ; logged = true {
		err := d.redis.TryWrite(ctx)
		if err == nil {
			break
		}
		d.admin.setUnready(fmt.Errorf("%w, and waits for Redis: %w", errStarting, err))
		if !logged {
			d.log.Warn("waiting for Redis", "exception.message", err)
		}
		if !pause.For(ctx, 500*time.Millisecond) {
			return ctx.Err()
		}
	}
	d.admin.setUnready(errStarting)
	d.memory.Read(ctx) // before the first event is accepted
	status := d.redis.Check(ctx)
	for _, warning := range slices.Concat(status.Down, status.Warnings, d.memory.Warnings()) {
		d.log.Warn("Redis is up, with a warning", "warning", warning)
	}
	// A missing encryption key fails the start. Otherwise the daemon would encrypt with another
	// key, or hold deliveries whose secrets cannot be decrypted.
	return keycheck.Verify(ctx, d.redis.Client(), d.keyring)
}

// awaitDatabase waits up to 2 s for the first check of the database, so that the first request
// can use the database. It returns no error when the database is unavailable.
func (d *daemon) awaitDatabase(ctx context.Context) error {
	timer := time.NewTimer(2 * time.Second)
	defer timer.Stop()
	select {
	case <-d.database.first:
	case <-timer.C:
	case <-ctx.Done():
	}
	return ctx.Err()
}
