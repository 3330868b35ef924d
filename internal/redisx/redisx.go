// Package redisx connects the daemon to its Redis: one that is given by
// address, a child process that it manages, or, for a trial only, one in memory.
package redisx

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"

	"github.com/redis/go-redis/v9"

	"spendhook/internal/clienttls"
	"spendhook/internal/datadir"
	"spendhook/internal/pacedlog"
)

// Embedded is the Options.URL for a server that the daemon runs by itself.
const Embedded = "embedded"

// Options say which Redis to use.
type Options struct {
	// URL is Embedded (also when empty), or the address of a running Redis:
	//
	//	redis://user:password@host:6379/0
	//	rediss://host:6380                     (TLS)
	//	unix:///run/redis.sock?db=0
	//	redis+sentinel://host:26379?addr=host2:26379&master_name=main&password=...
	//	redis+cluster://user:password@host:7000?addr=host2:7000
	//
	// rediss+sentinel and rediss+cluster use TLS. The user and password before
	// a Sentinel's host are the Sentinel's own. The query may have read_timeout (1.5s), which
	// bounds each command as a whole, and pool_size.
	URL string
	// DataDir holds the files of an embedded server, in its folder "redis".
	DataDir string
	// Memory is how many bytes an embedded server may use; 0 means half of the
	// machine's memory, at least 256 MiB.
	Memory int64
	// FullSync makes an embedded server sync its append-only file before it answers (appendfsync
	// always); else it syncs every second (everysec).
	FullSync bool
	// Attach uses the embedded server of a running daemon, if there is one. It is for commands
	// that run beside the daemon.
	Attach bool
	// AllowMemory allows an in-memory Redis when no server is on PATH.
	AllowMemory bool
	// TLS is for a rediss:// address; nil: the system's authorities, no certificate.
	TLS    *clienttls.Files
	Logger *slog.Logger // nil discards
}

// Redis is an open connection pool, with the server behind it when embedded.
// It is safe for concurrent use.
type Redis struct {
	client redis.UniversalClient
	memory bool
	own    bool         // an embedded server: the daemon has configured how it syncs
	full   *atomic.Bool // the embedded server is down because its disk is full; nil when another process runs the server
	stop   func() error
}

// Open connects to Redis. A Redis given by address need not be up: Check reports whether it is,
// and the client connects once it is. An embedded server has loaded its data when Open returns;
// ctx bounds that wait.
func Open(ctx context.Context, o Options) (*Redis, error) {
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	if o.URL != "" && o.URL != Embedded {
		c, err := connect(o.URL, o.TLS)
		if err != nil {
			return nil, err
		}
		return &Redis{client: c, stop: func() error { return nil }}, nil
	}
	if o.Attach {
		if r := attach(ctx, o.DataDir); r != nil {
			return r, nil
		}
		if err := datadir.Check(filepath.Join(o.DataDir, folderName)); err != nil {
			return nil, fmt.Errorf("data directory %s has no embedded Redis: %w", o.DataDir, err)
		}
	}
	r, err := openEmbedded(ctx, o)
	if errors.Is(err, errNoServer) && o.AllowMemory {
		return openMemory(o.Logger)
	}
	return r, err
}

// attach is nil when no embedded server answers in the data directory.
func attach(ctx context.Context, dataDir string) *Redis {
	dir, err := filepath.Abs(dataDir) // go-redis takes an address that begins with a slash as a socket
	if err != nil {
		return nil
	}
	socket := filepath.Join(dir, folderName, socketName)
	if target, err := os.Readlink(socket); err == nil && datadir.Check(filepath.Dir(target)) == nil {
		socket = target // see placeSocket
	}
	client := dial(&redis.UniversalOptions{Addrs: []string{socket}})
	if client.Ping(ctx).Err() != nil {
		client.Close()
		return nil
	}
	return &Redis{client: client, own: true, stop: func() error { return nil }}
}

// Client is the one client that the whole daemon shares.
func (r *Redis) Client() redis.UniversalClient { return r.client }

// Close closes the client and then stops an embedded server, which writes its
// data out first. Call it after everything that uses the client.
func (r *Redis) Close() error {
	return errors.Join(r.client.Close(), r.stop())
}

// LogTo sends what go-redis itself logs to l, for all clients of the process: go-redis
// has one logger. Safe for concurrent use; the last call counts.
func LogTo(l *slog.Logger) { redis.SetLogger(bridge{pacedlog.OfLibrary(l, "go-redis")}) }

type bridge struct{ to *pacedlog.Problems }

// Printf is go-redis's logging interface.
func (b bridge) Printf(ctx context.Context, format string, v ...any) {
	b.to.Log(ctx, slog.String("message", fmt.Sprintf(format, v...)))
}
