package redisx

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"runtime"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"spendhook/internal/clienttls"
)

const (
	// A dead Redis must be an error soon enough for a 503 within two seconds.
	commandTimeout = 1500 * time.Millisecond
	dialTimeout    = time.Second
	slotMapAge     = time.Second // after which a Cluster client reads the slot map again, in the background
	minPool        = 64
)

var (
	// errURL never quotes the address: it may hold a password.
	errURL        = errors.New(`redis: the address is not a URL (a "/", "@" or ":" in a password is written %2F, %40, %3A)`)
	errScheme     = errors.New("redis: the address starts with none of embedded, redis://, rediss://, unix://, redis+sentinel://, rediss+sentinel://, redis+cluster://, rediss+cluster://")
	errMasterName = errors.New("redis: a Sentinel address needs ?master_name=")
	noUpgrades    = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
)

// connect builds a client for an address; it does no I/O.
func connect(raw string, files *clienttls.Files) (redis.UniversalClient, error) {
	u, err := url.Parse(raw)
	if err != nil {
		return nil, errURL
	}
	plain, kind, _ := strings.Cut(u.Scheme, "+")
	u.Scheme = plain
	switch {
	case kind == "" && (plain == "redis" || plain == "rediss" || plain == "unix"):
		return standalone(u, files)
	case plain != "redis" && plain != "rediss":
		return nil, errScheme
	case kind == "sentinel":
		return sentinel(u, files)
	case kind == "cluster":
		return cluster(u, files)
	}
	return nil, errScheme
}

func standalone(u *url.URL, files *clienttls.Files) (redis.UniversalClient, error) {
	o, err := redis.ParseURL(u.String())
	if err != nil {
		return nil, fmt.Errorf("redis: read the address: %w", err)
	}
	if err := files.Apply(o.TLSConfig); err != nil {
		return nil, fmt.Errorf("redis: %w", err)
	}
	return newStandalone(o), nil
}

func newStandalone(o *redis.Options) *redis.Client {
	o.MaintNotificationsConfig = noUpgrades
	o.ContextTimeoutEnabled = true
	setDefault(&o.MaxRetries, 1)
	bounds{&o.DialTimeout, &o.ReadTimeout, &o.WriteTimeout, &o.PoolTimeout, &o.DialerRetries, &o.PoolSize}.fill()
	c := redis.NewClient(o)
	c.AddHook(deadline{o.ReadTimeout})
	return c
}

func sentinel(u *url.URL, files *clienttls.Files) (redis.UniversalClient, error) {
	o, err := redis.ParseFailoverURL(u.String())
	if err != nil {
		return nil, fmt.Errorf("redis: read the Sentinel address: %w", err)
	}
	if o.MasterName == "" {
		return nil, errMasterName
	}
	if err := files.Apply(o.TLSConfig); err != nil {
		return nil, fmt.Errorf("redis: %w", err)
	}
	o.ContextTimeoutEnabled = true
	setDefault(&o.MaxRetries, 1)
	bounds{&o.DialTimeout, &o.ReadTimeout, &o.WriteTimeout, &o.PoolTimeout, &o.DialerRetries, &o.PoolSize}.fill()
	c := redis.NewFailoverClient(o)
	c.AddHook(deadline{o.ReadTimeout})
	return c, nil
}

func cluster(u *url.URL, files *clienttls.Files) (redis.UniversalClient, error) {
	o, err := redis.ParseClusterURL(u.String())
	if err != nil {
		return nil, fmt.Errorf("redis: read the Cluster address: %w", err)
	}
	if err := files.Apply(o.TLSConfig); err != nil {
		return nil, fmt.Errorf("redis: %w", err)
	}
	o.MaintNotificationsConfig = noUpgrades
	o.ContextTimeoutEnabled = true
	bounds{&o.DialTimeout, &o.ReadTimeout, &o.WriteTimeout, &o.PoolTimeout, &o.DialerRetries, &o.PoolSize}.fill()
	setDefault(&o.ClusterStateReloadInterval, slotMapAge)
	c := redis.NewClusterClient(o)
	c.AddHook(deadline{o.ReadTimeout})
	return c, nil
}

// bounds are the options that all three kinds of client have.
type bounds struct {
	dial, read, write, poolWait *time.Duration
	dials, pool                 *int
}

// fill sets what the address left open.
func (b bounds) fill() {
	setDefault(b.dial, dialTimeout)
	setDefault(b.read, commandTimeout)
	setDefault(b.write, *b.read)
	setDefault(b.poolWait, max(*b.read, commandTimeout))
	setDefault(b.dials, 1)
	setDefault(b.pool, max(minPool, 16*runtime.GOMAXPROCS(0)))
}

func setDefault[T comparable](p *T, v T) {
	var zero T
	if *p == zero {
		*p = v
	}
}

// deadline bounds each command and each pipeline as a whole, including the wait for a
// connection, dialling, redirects and retries. go-redis bounds each of these separately.
type deadline struct{ limit time.Duration }

// DialHook leaves dialling as it is.
func (d deadline) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook bounds a command.
func (d deadline) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		ctx, cancel := d.within(ctx)
		defer cancel()
		return next(ctx, cmd)
	}
}

// ProcessPipelineHook bounds a pipeline.
func (d deadline) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		ctx, cancel := d.within(ctx)
		defer cancel()
		return next(ctx, cmds)
	}
}

func (d deadline) within(ctx context.Context) (context.Context, context.CancelFunc) {
	if d.limit <= 0 { // read_timeout=-1: no limit
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, d.limit)
}
