package redistest_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"spendhook/internal/redistest"
)

// A killed master is replaced, and the client finds the new one.
func TestSentinelReplacesTheMaster(t *testing.T) {
	t.Parallel()
	s := redistest.Sentinel(t)
	c := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: redistest.MasterName, SentinelAddrs: s.Addrs})
	defer c.Close()
	mustSet(t, c, "k")
	if n := c.Wait(t.Context(), 2, time.Minute).Val(); n != 2 {
		t.Errorf("%d replicas have the key, want 2", n)
	}
	old := s.Master(t.Context())
	old.Kill()
	waitFor(t, func() bool {
		now := s.Master(t.Context())
		return now != nil && now != old && c.Get(t.Context(), "k").Val() == "v"
	})
}
