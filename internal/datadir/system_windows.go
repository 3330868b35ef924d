package datadir

import (
	"errors"
	"io/fs"
	"os"

	"golang.org/x/sys/windows"
)

// On Windows, modes and owners do not protect a file: the access list of its directory does.
const (
	otherUsers = 0
	safeFlags  = 0
)

func isOwn(fs.FileInfo) bool { return true }

// lock locks one byte far beyond the end of the file, because other processes cannot read a locked byte.
func lock(f *os.File) error {
	const flags = windows.LOCKFILE_EXCLUSIVE_LOCK | windows.LOCKFILE_FAIL_IMMEDIATELY
	err := windows.LockFileEx(windows.Handle(f.Fd()), flags, 0, 1, 0, &windows.Overlapped{OffsetHigh: 1 << 30})
	if errors.Is(err, windows.ERROR_LOCK_VIOLATION) {
		return ErrLocked
	}
	return err
}
