package subscribers_test

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/internal/seal/sealtest"
	"spendhook/subscribers"
)

// hook sees every command that a client sends alone (each), each of a pipeline
// (piped), and pipelines whole (pipeline).
type hook struct {
	each     func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error
	piped    func(cmd redis.Cmder)
	pipeline func(cmds []redis.Cmder)
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
		if h.pipeline != nil {
			h.pipeline(cmds)
		}
		for _, cmd := range cmds {
			if h.piped != nil {
				h.piped(cmd)
			}
		}
		return next(ctx, cmds)
	}
}

// answering answers pipelines in place of the server.
type answering struct {
	answer func(ctx context.Context, cmds []redis.Cmder) error
}

func (h answering) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (h answering) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }
func (h answering) ProcessPipelineHook(redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return h.answer
}

func TestCancelledCallerDoesNotSpoilASharedLoad(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		answer, loads := make(chan struct{}), 0
		client := redis.NewClient(&redis.Options{Addr: "never-dialled:0"})
		defer client.Close()
		client.AddHook(answering{func(ctx context.Context, cmds []redis.Cmder) error {
			loads += len(cmds)
			<-answer
			for _, cmd := range cmds {
				cmd.(*redis.MapStringStringCmd).SetVal(map[string]string{subscribers.VersionField: "7"})
				cmd.SetErr(ctx.Err())
			}
			return ctx.Err()
		}})
		r := registryOn(subscribers.NewStore(subscribers.StoreOptions{Client: client, Keyring: sealtest.Keyring()}))
		company, errs := uuid.New(), make([]error, 2)
		ctx, cancel := context.WithCancel(t.Context())
		for i, ctx := range []context.Context{ctx, t.Context()} {
			go func() { _, errs[i] = r.Subscribers(ctx, company, 7) }()
			synctest.Wait()
		}
		cancel()
		synctest.Wait()
		close(answer)
		synctest.Wait()
		wantErr(t, errs[0], context.Canceled)
		if errs[1] != nil || loads != 1 {
			t.Errorf("the other caller got %v; %d loads", errs[1], loads)
		}
	})
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
