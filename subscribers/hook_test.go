package subscribers_test

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"

	"spendhook/subscribers"
)

// hook sees every command that a client sends alone.
type hook struct {
	each func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error
}

func (h hook) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) { return next(ctx, network, addr) }
}

func (h hook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		return h.each(ctx, cmd, next)
	}
}

func (h hook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func TestAddEventFailsWhenTheURLChangesMeanwhile(t *testing.T) {
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
