package redisx

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/redis/go-redis/v9"

	"spendhook/internal/datadir"
	"spendhook/internal/filelock"
	"spendhook/internal/pause"
)

const (
	maxSocketPath = 100 // the kernel's limit is 104 to 108 bytes
	lockPatience  = 2 * time.Second
	lockPoll      = 20 * time.Millisecond
)

// home is the folder of an embedded server: its data, its socket and two locks. "daemon.lock"
// excludes a second daemon. The server inherits "server.lock", so that the lock is held as long
// as any server writes here, even after its daemon has ended. The kernel releases both.
type home struct {
	dir    string
	socket string
	temp   string // the socket's own folder, when dir is too long a path
	lock   *os.File
}

// openHome refuses a folder that other users can access: the server has no password, so that
// only the folder protects the socket.
func openHome(ctx context.Context, dir string) (*home, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	if err := datadir.Make(dir); err != nil {
		return nil, err
	}
	h := &home{dir: dir}
	if h.lock, err = lockFile(ctx, filepath.Join(dir, "daemon.lock"), lockPatience); err != nil {
		return nil, fmt.Errorf("data directory %s: another daemon uses it: %w", filepath.Dir(dir), err)
	}
	if err := h.placeSocket(); err != nil {
		return nil, errors.Join(err, h.close())
	}
	return h, nil
}

func (h *home) placeSocket() (err error) {
	h.socket = filepath.Join(h.dir, "redis.sock")
	if len(h.socket) <= maxSocketPath {
		return nil
	}
	if h.temp, err = os.MkdirTemp("", "spendhook-"); err != nil {
		return fmt.Errorf("make a folder for the socket: %w", err)
	}
	h.socket = filepath.Join(h.temp, "redis.sock")
	return nil
}

// lockServer takes the lock of the server. A server that a killed daemon left behind may still hold
// it: lockServer waits until the kernel has ended that server, and else tells it to stop.
func (h *home) lockServer(ctx context.Context, c redis.UniversalClient) (*os.File, error) {
	path := filepath.Join(h.dir, "server.lock")
	lock, err := lockFile(ctx, path, lockPatience)
	if !errors.Is(err, errLocked) {
		return lock, err
	}
	_ = c.Shutdown(ctx).Err() // the connection ends without an answer
	if lock, err = lockFile(ctx, path, stopTimeout); err != nil {
		return nil, fmt.Errorf("data directory %s: a server left from an earlier run still writes to it: %w", filepath.Dir(h.dir), err)
	}
	return lock, nil
}

func (h *home) close() error {
	if h.temp != "" {
		_ = os.RemoveAll(h.temp)
	}
	return h.lock.Close()
}

var errLocked = errors.New("locked")

// lockFile takes an exclusive lock that ends with the file's last descriptor.
func lockFile(ctx context.Context, path string, patience time.Duration) (*os.File, error) {
	f, err := datadir.Open(path, os.O_CREATE|os.O_RDWR)
	if err != nil {
		return nil, fmt.Errorf("open the lock: %w", err)
	}
	wait, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for filelock.TryExclusive(f) != nil {
		if !pause.For(wait, lockPoll) {
			_ = f.Close()
			return nil, fmt.Errorf("%s: %w", path, cmp.Or(ctx.Err(), errLocked))
		}
	}
	return f, nil
}
