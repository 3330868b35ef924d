//go:build faults

package redisx_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"

	"spendhook/internal/redisx"
	"spendhook/internal/waittest"
)

// TestNoAnsweredWriteIsLost kills the embedded server repeatedly under concurrent writes. Each
// answered write must be stored at the end. Losses that Redis allows with "everysec" during a
// sync are excluded.
func TestNoAnsweredWriteIsLost(t *testing.T) {
	t.Parallel()
	const kills, writers = 10, 16
	r := open(t, redisx.Options{DataDir: t.TempDir()})
	defer closeIt(t, r)
	ctx, stop := context.WithCancel(t.Context())
	var answered atomic.Int64
	var wg sync.WaitGroup
	for range writers {
		wg.Go(func() { write(ctx, r.Client(), &answered) })
	}
	for range kills {
		if err := r.Client().ConfigSet(t.Context(), "appendfsync", "no").Err(); err != nil {
			t.Fatal(err)
		}
		before := answered.Load()
		waittest.Until(t, "1,000 more answers", func() bool { return answered.Load() > before+1000 })
		pid := serverPid(t.Context(), r.Client())
		kill(t, pid)
		waittest.Until(t, "another server runs", func() bool {
			now := serverPid(t.Context(), r.Client())
			return now != "" && now != pid
		})
	}
	stop()
	wg.Wait()
	kept, err := r.Client().Get(t.Context(), "n").Int64()
	if err != nil || kept < answered.Load() {
		t.Errorf("kept %d of %d answered writes: %v", kept, answered.Load(), err)
	}
}

func write(ctx context.Context, c redis.UniversalClient, answered *atomic.Int64) {
	for ctx.Err() == nil {
		if c.Incr(ctx, "n").Err() == nil {
			answered.Add(1)
		}
	}
}
