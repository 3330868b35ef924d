// Package redistest starts a Redis for tests: one server for a test binary with a database for each
// test, or a private server that a test may break.
package redistest

import (
	"context"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"go.uber.org/goleak"
)

const databases = 1024

// shared is the server of this test binary. free has the numbers of the databases that no running
// test uses.
var shared struct {
	sync.Mutex
	server *process
	free   []int
}

// New returns a client on an empty database for this test only. At the end of the test the client
// is closed and the database is flushed. New is safe with t.Parallel.
func New(tb testing.TB) redis.UniversalClient {
	tb.Helper()
	server, db, err := acquire()
	if err != nil {
		tb.Fatalf("redistest: %v", err)
	}
	c := server.client(db, time.Minute) // a machine that is busy with other tests may be slow
	tb.Cleanup(func() {
		_ = c.Close() // the test may have closed it already
		release(tb, server, db)
	})
	return c
}

// Main is the body of a TestMain. It runs the tests, stops the shared server, and fails if a
// goroutine still runs. m is a *testing.M, or wraps one to clean up after it.
func Main(m goleak.TestingM) {
	logging.Disable() // go-redis has one logger, and logs each server that a test kills
	goleak.VerifyTestMain(stopping{m}, goleak.IgnoreAnyFunction(redial))
}

// redial is a goroutine of go-redis that dials a lost server once a second. It may run for a second
// after its pool was closed.
const redial = "github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"

type stopping struct{ m goleak.TestingM }

// Run runs the tests and then stops the server, before goleak searches for goroutines.
func (s stopping) Run() int {
	defer stopShared()
	return s.m.Run()
}

func acquire() (*process, int, error) {
	shared.Lock()
	defer shared.Unlock()
	if shared.server == nil {
		if err := startShared(); err != nil {
			return nil, 0, err
		}
	}
	if len(shared.free) == 0 {
		return nil, 0, errTooMany
	}
	db := shared.free[0]
	shared.free = shared.free[1:]
	return shared.server, db, nil
}

func release(tb testing.TB, server *process, db int) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c := server.client(db, 0)
	defer c.Close()
	if err := c.FlushDB(ctx).Err(); err != nil {
		tb.Errorf("redistest: flush database %d: %v", db, err)
		return
	}
	shared.Lock()
	defer shared.Unlock()
	shared.free = append(shared.free, db)
}

func startShared() error {
	dir, err := os.MkdirTemp("", "redistest-")
	if err != nil {
		return err
	}
	p, err := launch(dir, nil)
	if err != nil {
		return err
	}
	shared.server = p
	for db := range databases {
		shared.free = append(shared.free, db)
	}
	return nil
}

func stopShared() {
	shared.Lock()
	defer shared.Unlock()
	if shared.server == nil {
		return
	}
	shared.server.child.Kill()
	_ = os.RemoveAll(shared.server.dir)
}

// Hook is a redis.Hook for tests. Command is called for each command that a client sends alone, and
// Pipeline for each pipeline. They must call next to send it. A nil function changes nothing.
type Hook struct {
	Command  func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error
	Pipeline func(ctx context.Context, cmds []redis.Cmder, next redis.ProcessPipelineHook) error
}

// Repeats is a hook by which a client sends what it sends under a context of Repeated twice, as it does
// after a lost reply. The caller gets the second reply.
func Repeats() Hook {
	return Hook{
		Command: func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
			if isRepeated(ctx) {
				_ = next(ctx, cmd)
			}
			return next(ctx, cmd)
		},
		Pipeline: func(ctx context.Context, cmds []redis.Cmder, next redis.ProcessPipelineHook) error {
			if isRepeated(ctx) {
				_ = next(ctx, cmds)
			}
			return next(ctx, cmds)
		},
	}
}

type repeatedKey struct{}

// Repeated returns a context under which clients with the hook Repeats send everything twice.
func Repeated(ctx context.Context) context.Context {
	return context.WithValue(ctx, repeatedKey{}, true)
}

func isRepeated(ctx context.Context) bool { return ctx.Value(repeatedKey{}) != nil }

// DialHook changes nothing.
func (h Hook) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook calls Command.
func (h Hook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	if h.Command == nil {
		return next
	}
	return func(ctx context.Context, cmd redis.Cmder) error { return h.Command(ctx, cmd, next) }
}

// ProcessPipelineHook calls Pipeline.
func (h Hook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	if h.Pipeline == nil {
		return next
	}
	return func(ctx context.Context, cmds []redis.Cmder) error { return h.Pipeline(ctx, cmds, next) }
}
