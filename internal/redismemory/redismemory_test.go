package redismemory_test

import (
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"spendhook/internal/redismemory"
	"spendhook/internal/redistest"
	"spendhook/internal/redisx"
	"spendhook/internal/waittest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// guarded is the memory of a private server, with a clock that only a test moves.
type guarded struct {
	*redismemory.Watch
	server *redistest.Server
	clock  time.Time
}

func guard(t *testing.T, o redismemory.Options, args ...string) *guarded {
	t.Helper()
	g := &guarded{server: redistest.Start(t, redistest.Options{Args: args}), clock: time.Now()}
	r, err := redisx.Open(t.Context(), redisx.Options{URL: g.server.URL()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	o.Now = func() time.Time { return g.clock }
	g.Watch = redismemory.New(r.Client(), o)
	g.Read(t.Context())
	return g
}

func (g *guarded) fill(t *testing.T, key string, bytes int) {
	t.Helper()
	if err := g.server.Client().SetRange(t.Context(), key, int64(bytes-1), "x").Err(); err != nil {
		t.Fatal(err)
	}
}

func TestMemoryIsAdmittedInParts(t *testing.T) {
	t.Parallel()
	g := guard(t, redismemory.Options{HighWater: 0.8}, "--maxmemory", "100mb", "--maxmemory-policy", "noeviction")
	u := g.Fullest()
	if u.Limit != 100<<20 || u.HighWater != 80<<20 || u.Used <= 0 || u.Used > 20<<20 {
		t.Fatalf("read %+v", u)
	}
	left := u.HighWater - u.Used
	reserved, free, release := g.Reserve(t.Context(), "", math.MaxInt64)
	if free != left || reserved != left/8 {
		t.Errorf("reserved %d, free %d, want %d, %d", reserved, free, left/8, left)
	}
	if again, _, _ := g.Reserve(t.Context(), "", 1); again != 0 {
		t.Error("more than the part was admitted between two readings")
	}
	release(10)
	if again, _, _ := g.Reserve(t.Context(), "", 20); again != 10 {
		t.Errorf("of 10 bytes that were given back %d were admitted", again)
	}

	g.fill(t, "a", 40<<20)
	g.clock = g.clock.Add(time.Second)
	reserved, free, _ = g.Reserve(t.Context(), "", math.MaxInt64)
	if free > left-40<<20 || reserved != free/8 {
		t.Errorf("after 40 MiB more: reserved %d, free %d", reserved, free)
	}
	release(1 << 30)
	if again, _, _ := g.Reserve(t.Context(), "", 1); again != 0 {
		t.Error("bytes that an earlier reading granted were released into this reading")
	}
	if w := g.Warnings(); len(w) != 0 {
		t.Errorf("warnings below the mark: %v", w)
	}

	g.fill(t, "b", 35<<20)
	g.clock = g.clock.Add(time.Second)
	if reserved, free, _ = g.Reserve(t.Context(), "", 1); reserved != 0 || free != 0 {
		t.Errorf("above the mark: reserved %d, free %d", reserved, free)
	}
	if w := g.Warnings(); len(w) != 1 || !strings.Contains(w[0], "high-water mark") {
		t.Errorf("warnings above the mark: %v", w)
	}
}

func TestMemoryOfAServerThatIsDown(t *testing.T) {
	t.Parallel()
	g := guard(t, redismemory.Options{HighWater: 0.8}, "--maxmemory", "100mb")
	before := g.Fullest()
	part, _, _ := g.Reserve(t.Context(), "", 1000)
	g.server.Kill()
	g.clock = g.clock.Add(time.Minute)
	g.Read(t.Context())
	if g.Fullest() != before || part != 1000 {
		t.Errorf("the last reading is gone: %+v, want %+v", g.Fullest(), before)
	}
	if reserved, _, _ := g.Reserve(t.Context(), "", math.MaxInt64); reserved != (before.HighWater-before.Used)/8-1000 {
		t.Errorf("a part of %d", reserved)
	}
}

// Each master of a Cluster has its own limit, and one that is down keeps its own.
func TestMemoryOfACluster(t *testing.T) {
	t.Parallel()
	servers := redistest.Cluster(t, 3)
	for i, s := range servers {
		if err := s.Client().ConfigSet(t.Context(), "maxmemory", strconv.Itoa((i+1)*100<<20)).Err(); err != nil {
			t.Fatal(err)
		}
	}
	r, err := redisx.Open(t.Context(), redisx.Options{URL: strings.Replace(servers[0].URL(), "redis://", "redis+cluster://", 1)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	m := redismemory.New(r.Client(), redismemory.Options{HighWater: 0.5})
	m.Read(t.Context())
	if u := m.Fullest(); u.Limit != 100<<20 {
		t.Errorf("the fullest is %+v", u)
	}
	servers[2].Kill()
	m.Read(t.Context())
	for i, s := range servers {
		_, free, _ := m.Reserve(t.Context(), s.Addr(), 1)
		if most := int64(i+1) * 50 << 20; free > most || free < most*3/4 {
			t.Errorf("master %d has %d bytes free of %d", i, free, most)
		}
	}
}

// The memory of each master is read without the slot map: a master that hangs may be asked for it.
func TestMemoryOfAClusterWhileAMasterHangs(t *testing.T) {
	t.Parallel()
	servers := redistest.Cluster(t, 2)
	r, err := redisx.Open(t.Context(), redisx.Options{URL: strings.Replace(servers[0].URL(), "redis://", "redis+cluster://", 1)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	hold := redistest.HoldSlotMap(t, r.Client())
	m := redismemory.New(r.Client(), redismemory.Options{HighWater: 0.5})
	m.Read(t.Context())
	hold()
	if err := servers[1].Client().ConfigSet(t.Context(), "maxmemory", "100mb").Err(); err != nil {
		t.Fatal(err)
	}
	waittest.Until(t, "the new limit is read", func() bool {
		m.Read(t.Context())
		_, free, _ := m.Reserve(t.Context(), servers[1].Addr(), 1)
		return free <= 50<<20
	})
}

func TestMemoryWithoutALimit(t *testing.T) {
	t.Parallel()
	g := guard(t, redismemory.Options{HighWater: 0.8})
	if w := g.Warnings(); len(w) != 1 || !strings.Contains(w[0], "redis.memory") {
		t.Errorf("warnings: %v", w)
	}
	if reserved, free, _ := g.Reserve(t.Context(), "", 1<<40); reserved != 1<<40 || free != math.MaxInt64 {
		t.Errorf("reserved %d, free %d", reserved, free)
	}
	g = guard(t, redismemory.Options{HighWater: 0.5, Limit: 1 << 30})
	if w := g.Warnings(); len(w) != 0 || g.Fullest().HighWater != 1<<29 {
		t.Errorf("with redis.memory: %+v, warnings %v", g.Fullest(), w)
	}
}

func TestEmbeddedRedisHasALimit(t *testing.T) {
	t.Parallel()
	for memory, least := range map[int64]int64{0: 256 << 20, 300 << 20: 300 << 20} {
		r, err := redisx.Open(t.Context(), redisx.Options{DataDir: t.TempDir(), Memory: memory})
		if err != nil {
			t.Fatal(err)
		}
		m := redismemory.New(r.Client(), redismemory.Options{HighWater: 0.85})
		m.Read(t.Context())
		if got := m.Fullest().Limit; got < least || memory > 0 && got != memory {
			t.Errorf("asked for %d: a limit of %d", memory, got)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
}
