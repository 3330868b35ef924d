package subscribers_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"

	"spendhook/internal/redistest"
	"spendhook/subscribers"
)

func TestAddEventFailsWhenTheURLChangesMeanwhile(t *testing.T) {
	t.Parallel()
	b := setup(t, subscribers.StoreOptions{})
	s := b.Create(t, "https://example.com/old")
	var moved atomic.Bool
	b.Redis.AddHook(redistest.Hook{Command: func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
		err := next(ctx, cmd)
		if strings.Contains(fmt.Sprint(cmd.Args()...), ":su:") && cmd.Name() == "hget" && !moved.Swap(true) {
			u := subscribers.Settings{CallbackURL: new("https://example.com/new")}
			if _, err := b.Store.Update(ctx, b.Company, s.UUID, u); err != nil {
				t.Error(err)
			}
		}
		return err
	}})
	_, err := b.Store.AddEvent(t.Context(), b.Company, "https://example.com/old", "A")
	wantErr(t, err, subscribers.ErrNotFound)
	if !moved.Load() {
		t.Error("the URL was not moved")
	}
}
