//go:build faults

package main

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/redis/go-redis/v9"
)

// TestDataDirectoryIsFull under load, twice.
func TestDataDirectoryIsFullUnderLoad(t *testing.T) {
	t.Parallel()
	h := onSmallDisk(t)
	client := redis.NewClient(&redis.Options{Network: "unix", Addr: filepath.Join(h.dir, "redis", "redis.sock")})
	t.Cleanup(func() { _ = client.Close() })
	tr := newTrial(t, client, h)

	for range 2 {
		filler := fill(t, h.dir)
		tr.daemons[0].wantFull(t, spendCard)
		if err := os.Remove(filler); err != nil {
			t.Fatal(err)
		}
		tr.grow(100)
		tr.daemons[0].makesCardsAgain(t)
	}
	tr.daemons[0].signal(syscall.SIGKILL)
	tr.daemons[0].ended(t)
	tr.replace(0, h.startChild(t))
	tr.grow(50)
	tr.finish()
}
