package dispatcher

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// waker is the client of one asynq server. asynq polls an empty queue by the
// clock; here its next look at a queue that was empty waits for a task of this
// process, or for a nap, after which it finds those of other replicas.
type waker struct {
	redis.UniversalClient
	nap   time.Duration // the longest
	nudge chan struct{} // holds one
	empty atomic.Bool   // the last look found nothing
}

// How long a task of a replica that has no worker free waits at most for one
// here. In queueAgain there are tasks that have waited for longer already.
const (
	longestNap = 200 * time.Millisecond
	napAgain   = 500 * time.Millisecond
)

func (w *waker) wake() {
	select {
	case w.nudge <- struct{}{}:
	default:
	}
}

// EvalSha delays the dequeue script, known by its keys; all else passes.
func (w *waker) EvalSha(ctx context.Context, sha string, keys []string, args ...any) *redis.Cmd {
	if len(keys) != 4 || !strings.HasSuffix(keys[0], ":pending") || !strings.HasSuffix(keys[1], ":paused") {
		return w.UniversalClient.EvalSha(ctx, sha, keys, args...)
	}
	if w.empty.Load() {
		nap := time.NewTimer(w.nap)
		select {
		case <-w.nudge:
		case <-nap.C:
		}
		nap.Stop()
	}
	cmd := w.UniversalClient.EvalSha(ctx, sha, keys, args...)
	w.empty.Store(errors.Is(cmd.Err(), redis.Nil))
	return cmd
}
