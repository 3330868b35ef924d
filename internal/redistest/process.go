package redistest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"spendhook/internal/child"
)

var (
	errNoServer = errors.New("no redis-server or valkey-server on PATH: run scripts/ensure redis")
	errTooMany  = fmt.Errorf("more than %d tests use Redis at once", databases)
)

// process is one running redis-server with its files in dir.
type process struct {
	dir   string
	child *child.Process
}

// launch starts a server on a socket in dir and waits until it answers.
func launch(dir string, args []string) (*process, error) {
	binary, err := findServer()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(binary, append(baseArgs(dir), args...)...) //nolint:gosec,noctx // our own arguments; the child outlives any context and is killed by pid
	log, err := os.OpenFile(filepath.Join(dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	c, err := child.Start(cmd)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", binary, err)
	}
	p := &process{dir: dir, child: c}
	return p, p.waitReady()
}

func baseArgs(dir string) []string {
	return []string{
		"--unixsocket", filepath.Join(dir, "redis.sock"),
		"--unixsocketperm", "700",
		"--dir", dir,
		"--databases", strconv.Itoa(databases),
		"--port", "0",
		"--save", "",
	}
}

func findServer() (string, error) {
	for _, name := range []string{"redis-server", "valkey-server"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", errNoServer
}

func (p *process) client(db int) *redis.Client {
	return redis.NewClient(&redis.Options{
		Network:               "unix",
		Addr:                  filepath.Join(p.dir, "redis.sock"),
		DB:                    db,
		ContextTimeoutEnabled: true,
		DialerRetries:         1,
	})
}

// waitReady polls until the server answers PING (not while it is loading).
func (p *process) waitReady() error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	c := p.client(0)
	defer c.Close()
	if err := p.child.Await(ctx, 5*time.Millisecond, func() bool { return c.Ping(ctx).Err() == nil }); err != nil {
		p.child.Kill()
		log, _ := os.ReadFile(filepath.Join(p.dir, "log"))
		return fmt.Errorf("%w; its log:\n%s", err, log)
	}
	return nil
}
