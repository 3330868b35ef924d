//go:build unix

package datadir

import (
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
