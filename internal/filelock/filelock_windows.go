package filelock

import (
	"errors"
	"os"

	"golang.org/x/sys/windows"
)

// TryExclusive takes the lock for this file alone, or returns ErrHeld at once.
func TryExclusive(f *os.File) error {
	return lock(f, windows.LOCKFILE_EXCLUSIVE_LOCK|windows.LOCKFILE_FAIL_IMMEDIATELY)
}

// Exclusive waits until it has the lock for this file alone.
func Exclusive(f *os.File) error { return lock(f, windows.LOCKFILE_EXCLUSIVE_LOCK) }

// lock locks one byte far behind what is ever written: a lock here also keeps others from
// reading what it covers.
func lock(f *os.File, flags uint32) error {
	err := windows.LockFileEx(windows.Handle(f.Fd()), flags, 0, 1, 0, &windows.Overlapped{OffsetHigh: 1 << 30})
	if errors.Is(err, windows.ERROR_LOCK_VIOLATION) {
		return ErrHeld
	}
	return err
}
