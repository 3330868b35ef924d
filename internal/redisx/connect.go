package redisx

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"spendhook/internal/clienttls"
)

const (
	// An unreachable Redis must cause an error in time for a 503 within two seconds.
	commandTimeout = 1500 * time.Millisecond
	dialTimeout    = time.Second
	slotMapAge     = time.Second // after which a Cluster client reads the slot map again, in the background
	minPool        = 64
)

var (
	// errURL does not quote the address, which may contain a password.
	errURL               = errors.New(`the address is not a URL (a "/", "@" or ":" in a password is written %2F, %40, %3A)`)
	errScheme            = errors.New("the address starts with none of embedded, redis://, rediss://, unix://, redis+sentinel://, rediss+sentinel://, redis+cluster://, rediss+cluster://")
	errMasterName        = errors.New("a Sentinel address needs ?master_name=")
	noMaintNotifications = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
)

// connect builds a client for an address; it does no I/O.
func connect(address string, files *clienttls.Files) (redis.UniversalClient, error) {
	o, err := options(address)
	if err == nil {
		err = files.Apply(o.TLSConfig)
	}
	if err != nil {
		return nil, fmt.Errorf("redis: %w", err)
	}
	return dial(o), nil
}

// dial makes a client that connects when it is used, and bounds each command.
func dial(o *redis.UniversalOptions) (c redis.UniversalClient) {
	o.ContextTimeoutEnabled, o.MaintNotificationsConfig = true, noMaintNotifications
	o.DialTimeout, o.DialerRetries = dialTimeout, 1
	o.ReadTimeout = cmp.Or(max(o.ReadTimeout, 0), commandTimeout)
	o.WriteTimeout, o.PoolTimeout = o.ReadTimeout, o.ReadTimeout
	o.PoolSize = cmp.Or(o.PoolSize, max(minPool, 16*runtime.GOMAXPROCS(0)))
	if o.IsClusterMode {
		cluster := o.Cluster()
		cluster.ClusterStateReloadInterval = slotMapAge
		c = redis.NewClusterClient(cluster)
	} else {
		o.MaxRetries = 1
		c = redis.NewUniversalClient(o)
	}
	c.AddHook(deadline{o.ReadTimeout})
	return c
}

// parameters are the query parameters of an address, by the part of its scheme after "+".
var parameters = map[string][]string{
	"":         {"db", "pool_size", "read_timeout"},
	"cluster":  {"addr", "pool_size", "read_timeout"},
	"sentinel": {"addr", "db", "master_name", "password", "pool_size", "read_timeout", "username"},
}

// options reads an address. go-redis reads the part that all kinds of addresses share.
func options(address string) (*redis.UniversalOptions, error) {
	u, err := url.Parse(address)
	if err != nil {
		return nil, errURL
	}
	scheme, kind, _ := strings.Cut(u.Scheme, "+")
	if parameters[kind] == nil || scheme != "redis" && scheme != "rediss" && (scheme != "unix" || kind != "") {
		return nil, errScheme
	}
	query := u.Query()
	for name := range query {
		if !slices.Contains(parameters[kind], name) {
			return nil, fmt.Errorf("the address has a parameter that is not supported: %s", name)
		}
	}
	o := &redis.UniversalOptions{MasterName: query.Get("master_name"), IsClusterMode: kind == "cluster"}
	if o.MasterName == "" && kind == "sentinel" {
		return nil, errMasterName
	}
	u.Scheme, u.RawQuery = scheme, url.Values{"db": query["db"], "pool_size": query["pool_size"], "read_timeout": query["read_timeout"]}.Encode()
	one, err := redis.ParseURL(u.String())
	if err != nil {
		return nil, err
	}
	o.Addrs = append([]string{one.Addr}, query["addr"]...)
	o.DB, o.TLSConfig, o.ReadTimeout, o.PoolSize = one.DB, one.TLSConfig, one.ReadTimeout, one.PoolSize
	o.Username, o.Password = one.Username, one.Password
	if kind == "sentinel" {
		o.SentinelUsername, o.SentinelPassword = one.Username, one.Password
		o.Username, o.Password = query.Get("username"), query.Get("password")
	}
	return o, nil
}

// deadline bounds each command and each pipeline as a whole, including the wait for a
// connection, dialling, redirects and retries. go-redis bounds each of these separately.
type deadline struct{ limit time.Duration }

// DialHook leaves dialling as it is.
func (d deadline) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook bounds a command.
func (d deadline) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		ctx, cancel := context.WithTimeout(ctx, d.limit)
		defer cancel()
		return next(ctx, cmd)
	}
}

// ProcessPipelineHook bounds a pipeline.
func (d deadline) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		ctx, cancel := context.WithTimeout(ctx, d.limit)
		defer cancel()
		return next(ctx, cmds)
	}
}
