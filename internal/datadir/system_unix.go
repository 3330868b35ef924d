//go:build unix

package datadir

import (
	"errors"
	"io/fs"
	"os"
	"syscall"
)

// otherUsers are the bits of a mode that let other users in.
const otherUsers = 0o077

// safeFlags follows no link, and does not wait for the writer of a pipe.
const safeFlags = syscall.O_NOFOLLOW | syscall.O_NONBLOCK

func isOwn(info fs.FileInfo) bool {
	owner, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(owner.Uid) == os.Geteuid()
}

func lock(f *os.File) error {
	err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return ErrLocked
	}
	return err
}
