package redisx

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/KimMachineGun/automemlimit/memlimit"
	"github.com/redis/go-redis/v9"

	"spendhook/internal/child"
	"spendhook/internal/pause"
)

var errNoServer = errors.New("no redis-server or valkey-server on PATH: install the package redis-server (or redis, valkey), or give the address of a running Redis with --redis or SPENDHOOK_REDIS")

const folderName = "redis" // the folder of the embedded server, in the data directory

const (
	stopTimeout  = 10 * time.Second
	restartAfter = 500 * time.Millisecond
)

// embedded runs a Redis server as a child and keeps it running.
type embedded struct {
	binary string
	memory int64       // bytes; 0: no limit
	sync   string      // of its append-only file
	full   atomic.Bool // the disk is full: the server is not started
	folder *folder
	client redis.UniversalClient
	log    *slog.Logger
	cancel context.CancelFunc // ends the supervisor
	done   chan struct{}
}

func openEmbedded(ctx context.Context, o Options) (*Redis, error) {
	binary, err := findServer()
	if err != nil {
		return nil, err
	}
	f, err := openFolder(ctx, filepath.Join(o.DataDir, folderName))
	if err != nil {
		return nil, err
	}
	sync := "everysec"
	if o.FullSync {
		sync = "always"
	}
	e := &embedded{binary: binary, memory: cmp.Or(o.Memory, defaultMemory()), sync: sync, folder: f, log: o.Logger, done: make(chan struct{})}
	e.client = dial(&redis.UniversalOptions{Addrs: []string{f.socket}})
	c, err := e.start(ctx)
	if err != nil {
		return nil, errors.Join(err, e.client.Close(), f.close())
	}
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	e.cancel = cancel
	go e.supervise(life, c)
	return &Redis{client: e.client, own: true, full: &e.full, stop: e.stop}, nil
}

func findServer() (string, error) {
	for _, name := range []string{"redis-server", "valkey-server"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", errNoServer
}

// start runs the child and waits until it has loaded its data.
func (e *embedded) start(ctx context.Context) (*child.Process, error) {
	_ = os.Remove(e.folder.socket) // left by a server that was killed
	output := &lines{log: e.log}
	cmd := exec.CommandContext(context.WithoutCancel(ctx), e.binary, e.args()...) //nolint:gosec // found on PATH; our own arguments
	cmd.Stdout, cmd.Stderr = output, output
	cmd.ExtraFiles = []*os.File{e.folder.lock}
	cmd.WaitDelay = time.Second // a child of the child may hold the pipe
	c, err := child.Start(cmd)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", e.binary, err)
	}
	if err := c.Await(ctx, 10*time.Millisecond, func() bool { return e.ready(ctx) }); err != nil {
		c.Kill()
		return nil, fmt.Errorf("start %s: %w: %s", e.binary, err, output.last)
	}
	e.log.Info("embedded Redis is up", "process.executable.path", e.binary, "process.pid", c.Pid(), "file.path", e.folder.dir)
	return c, nil
}

func (e *embedded) args() []string {
	return []string{
		"--port", "0",
		"--unixsocket", e.folder.socket,
		"--unixsocketperm", "700",
		"--dir", e.folder.dir,
		"--daemonize", "no",
		"--appendonly", "yes",
		"--appendfsync", e.sync,
		"--save", "",
		"--maxmemory-policy", "noeviction",
		"--hash-max-listpack-value", "512", // a delivery's record in one allocation
		"--maxmemory", strconv.FormatInt(e.memory, 10),
	}
}

// minMemory is the smallest default maxmemory of an embedded server, in bytes.
const minMemory = 256 << 20

// defaultMemory is half of the memory of this machine or container, 0 when it is not known.
func defaultMemory() int64 {
	has, _ := memlimit.FromSystem() // 0 with an error
	if limit, err := memlimit.FromCgroup(); err == nil {
		has = min(has, limit)
	}
	if has == 0 {
		return 0
	}
	return max(int64(has/2), minMemory) //nolint:gosec // a memory's size fits
}

// ready reports whether the server has loaded its data. It dials only once the socket exists,
// because go-redis delays dials after failures.
func (e *embedded) ready(ctx context.Context) bool {
	_, err := os.Stat(e.folder.socket)
	return err == nil && e.client.Ping(ctx).Err() == nil
}

// supervise restarts the child whenever it ends, until ctx is done.
func (e *embedded) supervise(ctx context.Context, c *child.Process) {
	defer close(e.done)
	for {
		if c != nil {
			select {
			case <-c.Done():
				e.log.Error("embedded Redis ended unexpectedly", "exception.message", c.Err())
			case <-ctx.Done():
				if c.Stop(syscall.SIGTERM, stopTimeout) { // else it has written its data
					e.log.Error("embedded Redis did not stop in time and was killed")
				}
				return
			}
		}
		if !pause.For(ctx, restartAfter) {
			return
		}
		if c = nil; e.diskIsFull() {
			continue
		}
		var err error
		if c, err = e.start(ctx); err != nil && ctx.Err() == nil {
			e.log.Error("embedded Redis does not start", "exception.message", err)
		}
	}
}

// diskIsFull reports whether the disk is too full to start a server that syncs at every write:
// the server would end at its first write, each time after loading all of its data.
func (e *embedded) diskIsFull() bool {
	const least = 1 << 20 // bytes
	free, known := freeBytes(e.folder.dir)
	full := known && free < least
	if was := e.full.Swap(full); full && !was {
		e.log.Error("embedded Redis stays down until its disk has space", "file.path", e.folder.dir)
	}
	return full
}

func (e *embedded) stop() error {
	e.cancel()
	<-e.done
	return e.folder.close()
}

// lines logs the output of the embedded server, which writes whole lines. It keeps the last line for
// the error when the server does not start.
type lines struct {
	log  *slog.Logger
	last string
}

// Write never fails.
func (l *lines) Write(p []byte) (int, error) {
	for line := range bytes.Lines(p) {
		if text := string(bytes.TrimSpace(line)); text != "" {
			l.last = text
			l.log.Debug("embedded Redis output", "line", text)
		}
	}
	return len(p), nil
}
