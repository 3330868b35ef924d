package redisx

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"spendhook/internal/datadir"
)

const (
	socketName    = "redis.sock"
	maxSocketPath = 100 // the kernel's limit is 104 to 108 bytes
	lockTimeout   = 5 * time.Second
)

// folder is the folder of an embedded server: its data, its socket and a lock. The server inherits
// the lock, so that the lock is held as long as a daemon or its server writes here. The kernel
// releases it when both have ended, however they end.
type folder struct {
	dir    string
	socket string
	temp   string // the socket's own folder, when dir is too long a path
	lock   *os.File
}

// openFolder refuses a folder that other users can access: the server has no password, so that
// only the folder protects the socket.
func openFolder(ctx context.Context, dir string) (*folder, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	if err := datadir.Make(dir); err != nil {
		return nil, err
	}
	f := &folder{dir: dir}
	ctx, cancel := context.WithTimeout(ctx, lockTimeout) // a daemon that was killed just now may still hold the lock
	defer cancel()
	if f.lock, err = datadir.Lock(ctx, filepath.Join(dir, "lock")); err != nil {
		return nil, fmt.Errorf("data directory %s: another daemon uses it, or a Redis that outlived its daemon: %w", filepath.Dir(dir), err)
	}
	if err := f.placeSocket(); err != nil {
		return nil, errors.Join(err, f.close())
	}
	return f, nil
}

// placeSocket chooses the path of the socket. When the folder's path is too long for one, the folder
// has a link to the socket.
func (f *folder) placeSocket() (err error) {
	inDir := filepath.Join(f.dir, socketName)
	_ = os.Remove(inDir) // left by a server that was killed
	f.socket = inDir
	if len(inDir) <= maxSocketPath {
		return nil
	}
	if f.temp, err = os.MkdirTemp("", "spendhook-"); err != nil {
		return fmt.Errorf("make a folder for the socket: %w", err)
	}
	f.socket = filepath.Join(f.temp, socketName)
	_ = os.Symlink(f.socket, inDir) // for commands only: the daemon runs without it
	return nil
}

func (f *folder) close() error {
	if f.temp != "" {
		_ = os.Remove(filepath.Join(f.dir, socketName)) // another user could create its target
		_ = os.RemoveAll(f.temp)
	}
	return f.lock.Close()
}
