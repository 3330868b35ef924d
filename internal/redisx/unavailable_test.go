package redisx

import (
	"errors"
	"fmt"
	"testing"

	"github.com/redis/go-redis/v9"

	"spendhook/internal/redistest"
)

func TestUnavailable(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{Args: []string{"--maxmemory", "1mb", "--maxmemory-policy", "noeviction"}})
	c := server.Client()
	full := c.Set(t.Context(), "k", make([]byte, 4<<20), 0).Err()
	if full == nil {
		full = c.Set(t.Context(), "k", "v", 0).Err()
	}
	if !Unavailable(fmt.Errorf("write: %w", full)) {
		t.Errorf("a full server is available: %v", full)
	}
	if err := c.LPush(t.Context(), "k").Err(); Unavailable(err) || err == nil {
		t.Errorf("a wrong command counts as unavailable: %v", err)
	}
	if Unavailable(nil) || Unavailable(redis.Nil) || Unavailable(errors.New("other")) {
		t.Error("an error of another kind counts as unavailable")
	}
}
