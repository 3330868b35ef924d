package redistest_test

import (
	"strings"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"

	"spendhook/internal/redistest"
	"spendhook/internal/waittest"
)

// A plan can lose a request or its reply. The value on the server shows which one was lost.
func TestProxyCuts(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t, redistest.Options{})
	p := redistest.NewProxy(t, s)
	o, err := redis.ParseURL(p.URL())
	if err != nil {
		t.Fatal(err)
	}
	o.MaxRetries = -1
	c := redis.NewClient(o)
	defer c.Close()
	mustSet(t, c, "big:"+strings.Repeat("x", 1<<20)) // a request in several pieces

	for _, reply := range []bool{false, true} {
		var cuts atomic.Int64
		p.Follow(func(request [][]string, got []byte) bool {
			if len(request) != 2 || request[1][0] != "incrby" || (got != nil) != reply {
				return true
			}
			cuts.Add(1)
			return false
		})
		if err := s.Client().Set(t.Context(), "n", 1, 0).Err(); err != nil {
			t.Fatal(err)
		}
		want := int64(1)
		if reply {
			want = 2
		}
		pipe := c.Pipeline()
		pipe.Del(t.Context(), "n")
		pipe.IncrBy(t.Context(), "n", 2)
		if _, err := pipe.Exec(t.Context()); err == nil || cuts.Load() != 1 {
			t.Errorf("cut at the reply %v: %d cuts, error %v", reply, cuts.Load(), err)
		}
		if n, _ := s.Client().Get(t.Context(), "n").Int64(); n != want {
			t.Errorf("cut at the reply %v: n = %d, want %d", reply, n, want)
		}
	}
	p.Follow(nil)
	mustSet(t, c, "k")
	p.CutAll()
	waittest.Until(t, "the server answers", func() bool { return c.Ping(t.Context()).Err() == nil })
}
