//go:build unix

package filelock

import (
	"errors"
	"os"
	"syscall"
)

// TryExclusive takes the lock for this file alone, or returns ErrHeld at once.
func TryExclusive(f *os.File) error { return flock(f, syscall.LOCK_EX|syscall.LOCK_NB) }

// Exclusive waits until it has the lock for this file alone.
func Exclusive(f *os.File) error { return flock(f, syscall.LOCK_EX) }

func flock(f *os.File, how int) error {
	err := syscall.Flock(int(f.Fd()), how)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return ErrHeld
	}
	return err
}
