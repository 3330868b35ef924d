package datadir

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func TestLocks(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "lock")
	first, err := TryLock(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := TryLock(path); !errors.Is(err, ErrLocked) {
		t.Errorf("a second lock: %v, want ErrLocked", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Lock(ended, path); !errors.Is(err, ErrLocked) || !errors.Is(err, context.Canceled) {
		t.Errorf("a second lock, after ctx ended: %v", err)
	}
	locked := make(chan *os.File)
	go func() {
		f, err := Lock(t.Context(), path)
		if err != nil {
			t.Error(err)
		}
		locked <- f
	}()
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	second := <-locked
	if err := second.Close(); err != nil {
		t.Fatal(err)
	}
	third, err := TryLock(path)
	if err != nil {
		t.Fatalf("once the second has closed: %v", err)
	}
	third.Close()
}
