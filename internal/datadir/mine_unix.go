//go:build unix

package datadir

import (
	"io/fs"
	"os"
	"syscall"
)

// others are the bits of a mode that let other users in.
const others = 0o077

// carefully follows no link, and does not wait for the writer of a pipe.
const carefully = syscall.O_NOFOLLOW | syscall.O_NONBLOCK

func mine(info fs.FileInfo) bool {
	owner, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(owner.Uid) == os.Geteuid()
}
