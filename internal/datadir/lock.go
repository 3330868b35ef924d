package datadir

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"spendhook/internal/pause"
)

// ErrLocked means that another open file, of this process or another, has the lock.
var ErrLocked = errors.New("the file is locked")

const lockPoll = 20 * time.Millisecond

// TryLock opens a file and locks it, or returns ErrLocked. The lock ends when all descriptors of
// the open file are closed: the kernel closes those of a process that ends.
func TryLock(path string) (*os.File, error) {
	f, err := Open(path, os.O_CREATE|os.O_RDWR)
	if err != nil {
		return nil, err
	}
	if err := lock(f); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return f, nil
}

// Lock is TryLock, but waits until the file is not locked or ctx ends.
func Lock(ctx context.Context, path string) (*os.File, error) {
	for {
		f, err := TryLock(path)
		if !errors.Is(err, ErrLocked) {
			return f, err
		}
		if !pause.For(ctx, lockPoll) {
			return nil, fmt.Errorf("%w: %w", err, ctx.Err())
		}
	}
}
