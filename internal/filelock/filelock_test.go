package filelock_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"spendhook/internal/filelock"
)

func TestLocks(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "lock")
	opened := func() *os.File {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = f.Close() })
		return f
	}
	first, second := opened(), opened()
	if err := filelock.TryExclusive(first); err != nil {
		t.Fatal(err)
	}
	if err := filelock.TryExclusive(second); !errors.Is(err, filelock.ErrHeld) {
		t.Errorf("a second lock: %v, want ErrHeld", err)
	}
	taken := make(chan error)
	go func() { taken <- filelock.Exclusive(second) }()
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-taken; err != nil {
		t.Fatalf("once the first has closed: %v", err)
	}
	if err := second.Close(); err != nil {
		t.Fatal(err)
	}
	if err := filelock.TryExclusive(opened()); err != nil {
		t.Errorf("once the second has closed: %v", err)
	}
}
