package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
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
	"spendhook/dispatcher"
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
	"spendhook/storage/cards"
	"spendhook/storage/spend"
	"spendhook/subscribers"
	"spendhook/subscribers/certificate"
	"spendhook/subscribers/health"
	"spendhook/subscribers/listing"
	"spendhook/subscribers/registry"
	"spendhook/subscribers/signingkey"
)

// daemon is a running spendhook. Its parts are made in the order of the
// fields, each by a step that also registers how it is undone.
type daemon struct {
	cfg  *config.Config
	log  *slog.Logger
	stop cleanups

	memoryRedis  bool // may be used
	reloader     *reloader
	tracing      *tracing.Tracing // nil while it is off
	egress       *egress.Guard
	limits       *api.Limits
	tlsFiles     *servertls.Files
	peers        *peer.Resolver
	replica      *replicaID
	keyring      *seal.Keyring
	registry     *prometheus.Registry
	storage      *storage.DB
	cards        *cards.Store
	spend        *spend.Store
	database     *databaseWatch
	redis        *redisx.Redis
	memory       *redismemory.Watch
	limiter      *ratelimit.Limiter
	admin        *admin
	catalogue    *eventtype.Catalogue
	eventTypes   *eventtype.Store
	events       *history.Reader
	operational  *operational.Store
	subscribers  *subscribers.Store
	lists        *listing.Reader // of subscribers
	certificates *certificate.Store
	health       *health.Store     // of subscribers
	signingKeys  *signingkey.Store // nil: deliveries have no v1a signatures
	dispatcher   *dispatcher.Dispatcher
	service      *subscribers.Service // changes subscribers
	copies       *registry.Registry   // of them
	publisher    *publish.Publisher
	verifier     *auth.Verifier
	keys         *keys.Signer // nil without the built-in issuer, as tokens is
	tokens       *tokens.Endpoint
	clients      *clients.Store
	cardJobs     *cardjobs.Runner
	audit        *audit.Log
	sessions     *session.Store // of the console
	traffic      *traffic.Store
	counter      *traffic.Counter
	tail         *tail.Tail

	scheduler             atomic.Pointer[dispatcher.Dispatcher] // for metrics, once there is one
	connections           *connlimit.Metrics
	failed                chan error // a listener that ended by itself
	address, adminAddress string     // as they are, where a port of 0 was asked for
}

// startDaemon returns once events are taken, or undoes what it has begun. Where it may
// use memory, that stands in for an embedded Redis that cannot be run.
func startDaemon(ctx context.Context, cfg *config.Config, log *slog.Logger, reload *reloader, memory bool) (*daemon, error) {
	d := &daemon{cfg: cfg, log: log, reloader: reload, memoryRedis: memory, stop: cleanups{log: log}, failed: make(chan error, 2), registry: newRegistry()}
	d.connections = connlimit.NewMetrics(d.registry)
	d.egress = newGuard(cfg)
	reload.log = log
	reload.apply("log.level", func(c *config.Config) { reload.level.Set(logLevel(c.Log)) })
	reload.apply("egress.allow_cidrs", func(c *config.Config) { d.egress.Allow(c.Egress.AllowCIDRs) })
	for _, step := range []func(context.Context) error{
		d.openTLS, d.openDataDir, d.openTracing, d.openKeyring, d.openDatabase, d.openRedis, d.openAdmin, d.awaitRedis, d.checkKeyring, d.awaitDatabase, d.openAuth,
		d.openStores, d.watchCertificates, d.openPipeline, d.openCardJobs, d.openIntake,
	} {
		if err := step(ctx); err != nil {
			return nil, errors.Join(err, d.close(ctx))
		}
	}
	return d, nil
}

// close stops everything within the grace period, whether or not ctx has
// ended: readiness first, Redis last.
func (d *daemon) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), d.cfg.ShutdownGrace)
	defer cancel()
	return d.stop.run(ctx)
}

func (d *daemon) openDataDir(context.Context) (err error) {
	if err = datadir.Make(d.cfg.DataDir); err != nil {
		return err
	}
	if d.replica, err = claimReplicaID(d.cfg.DataDir); err != nil {
		return err
	}
	d.stop.add("replica id", func(context.Context) error { return d.replica.release() })
	return nil
}

// openTracing is undone after all that has spans.
func (d *daemon) openTracing(ctx context.Context) (err error) {
	d.tracing, err = tracing.Open(ctx, tracing.Options{Version: readBuild().Version, Instance: d.replica.id, Logger: d.log})
	d.stop.add("tracing", d.tracing.Close)
	return err
}

func (d *daemon) openKeyring(context.Context) (err error) {
	if d.keyring, err = openKeyring(d.cfg, seal.OpenFile); err != nil {
		return err
	}
	warnOfOwnKey(d.cfg, d.log)
	return nil
}

// checkKeyring refuses to start with a key missing, before anything is sealed
// under another one or waits for a secret that does not open.
func (d *daemon) checkKeyring(ctx context.Context) error {
	return keycheck.Verify(ctx, d.redis.Client(), d.keyring)
}

// openDatabase does not need the database to be there: deliveries do without.
func (d *daemon) openDatabase(ctx context.Context) (err error) {
	if d.storage, err = storage.Open(storageOptions(d.cfg, d.log)); err != nil {
		return err
	}
	d.cards, d.spend = cards.New(cards.Options{DB: d.storage}), spend.New(d.storage)
	d.stop.add("database", func(context.Context) error { return d.storage.Close() })
	d.database = newDatabaseWatch(d.storage, d.registry, d.log)
	d.background(ctx, "database watch", d.database.run)
	return nil
}

func (d *daemon) openRedis(ctx context.Context) (err error) {
	o := redisOptions(d.cfg, d.log)
	o.Memory, o.AllowMemory = int64(d.cfg.Redis.Memory), d.memoryRedis
	redisx.LogTo(d.log)
	d.redis, err = redisx.Open(ctx, o)
	if err != nil {
		return err
	}
	d.limiter = ratelimit.New(d.redis.Client(), nil)
	d.stop.add("redis", func(context.Context) error { return d.redis.Close() })
	d.memory = redismemory.New(d.redis.Client(), redismemory.Options{
		HighWater: d.cfg.Redis.HighWater, Limit: int64(d.cfg.Redis.Memory), Logger: d.log,
	})
	registerMemory(d.registry, d.memory)
	d.background(ctx, "memory watch", d.memory.Run)
	return nil
}

func (d *daemon) openAdmin(ctx context.Context) error {
	watch := newRedisWatch(d.redis.Check, d.registry, d.log)
	d.background(ctx, "redis watch", watch.run)
	warnings := func() []string { return append(d.database.warnings(), d.memory.Warnings()...) }
	d.admin = newAdmin(d.redis.Check, warnings, d.registry)
	d.admin.profiles = d.cfg.AdminProfiles && (!d.cfg.AdminPublic || d.cfg.AdminWeb != "")
	if !d.cfg.AdminPublic || d.cfg.AdminWeb != "" {
		d.admin.reload = d.reloader.reload
	}
	handler := d.admin.handler()
	if !d.cfg.AdminPublic {
		handler = onlyHere(handler)
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

// owned lists the partitions that this replica schedules now, none before it does.
func (d *daemon) owned() []int {
	if scheduler := d.scheduler.Load(); scheduler != nil {
		return scheduler.Owned()
	}
	return nil
}

// reports tells whether this replica's metrics show what all replicas share, so that
// their sum is right.
func (d *daemon) reports() bool { return slices.Contains(d.owned(), 0) }

// background runs work until the daemon stops.
func (d *daemon) background(ctx context.Context, what string, work func(context.Context)) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan struct{})
	go func() {
		defer close(done)
		work(ctx)
	}()
	d.stop.add(what, func(context.Context) error {
		cancel()
		<-done
		return nil
	})
}

// awaitRedis waits for a Redis that is not up yet, or takes no writes: daemon and Redis may be
// started together. /readyz and the log tell the reason meanwhile.
func (d *daemon) awaitRedis(ctx context.Context) error {
	status := d.redis.Check(ctx)
	for !status.Up || !d.redis.TakesWrites(ctx) {
		if !pause.For(ctx, 500*time.Millisecond) {
			return ctx.Err()
		}
		status = d.redis.Check(ctx)
	}
	d.memory.Read(ctx) // so that the first event finds the limit
	for _, warning := range append(status.Warnings, d.memory.Warnings()...) {
		d.log.Warn("Redis is up, with a warning", "warning", warning)
	}
	return nil
}

// awaitDatabase gives the database a moment, so that a daemon whose database is
// well answers the first request from it. Without one it goes on.
func (d *daemon) awaitDatabase(ctx context.Context) error {
	timer := time.NewTimer(2 * time.Second)
	defer timer.Stop()
	select {
	case <-d.database.tried:
	case <-timer.C:
	case <-ctx.Done():
	}
	return ctx.Err()
}
