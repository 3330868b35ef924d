package subscribers_test

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/subscribers"
)

// hook sees every command that a client sends alone (each), and each of a pipeline
// (piped).
type hook struct {
	each  func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error
	piped func(cmd redis.Cmder)
}

func (h hook) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) { return next(ctx, network, addr) }
}

func (h hook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if h.each == nil {
			return next(ctx, cmd)
		}
		return h.each(ctx, cmd, next)
	}
}

func (h hook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			if h.piped != nil {
				h.piped(cmd)
			}
		}
		return next(ctx, cmds)
	}
}

func TestAddEventLosesToAURLThatMovesMeanwhile(t *testing.T) {
	t.Parallel()
	b := setup(t, subscribers.StoreOptions{})
	s := b.create(t, "https://example.com/old")
	var moved atomic.Bool
	b.client.AddHook(hook{each: func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
		err := next(ctx, cmd)
		if strings.Contains(fmt.Sprint(cmd.Args()...), ":su:") && cmd.Name() == "hget" && !moved.Swap(true) {
			u := subscribers.Settings{CallbackURL: new("https://example.com/new")}
			if _, err := b.store.Update(ctx, b.company, s.UUID, u); err != nil {
				t.Error(err)
			}
		}
		return err
	}})
	_, err := b.store.AddEvent(t.Context(), b.company, "https://example.com/old", "A")
	wantErr(t, err, subscribers.ErrNotFound)
	if !moved.Load() {
		t.Error("the URL was not moved")
	}
}

// A page without filters reads the companies that it shows, and counts others.
func TestPlainPageReadsOnlyWhatItShows(t *testing.T) {
	t.Parallel()
	b := setup(t, subscribers.StoreOptions{})
	for range 60 {
		b.company = uuid.New()
		b.create(t, "https://example.com/1")
		b.create(t, "https://example.com/2")
	}
	var reads atomic.Int64
	b.client.AddHook(hook{piped: func(cmd redis.Cmder) {
		if cmd.Name() == "hgetall" {
			reads.Add(1)
		}
	}})
	for _, page := range []int{0, 5, 11} {
		reads.Store(0)
		items, total, err := b.store.List(t.Context(), subscribers.Filter{Page: page, Size: 10})
		noErr(t, err)
		if len(items) != 10 || total != 120 || reads.Load() != 5 {
			t.Errorf("page %d: %d of %d, %d companies read, want 5", page, len(items), total, reads.Load())
		}
	}
}
