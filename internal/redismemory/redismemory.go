// Package redismemory reads the memory use of each Redis server, and decides how much memory
// new events may use.
package redismemory

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"spendhook/internal/clock"
	"spendhook/internal/pause"
	"spendhook/internal/redisx"
)

const (
	readEvery   = time.Second
	readTimeout = 1500 * time.Millisecond
	// rereadAfter is the minimum time between two readings that are made because this replica has
	// used up its part.
	rereadAfter = 100 * time.Millisecond
	// parts divides the free memory. A replica admits one part between two readings, so that eight
	// replicas with the same reading stay below the mark. When a part is used up, a new reading
	// replaces it, so that a single replica is not limited.
	parts = 8
)

// Options configure New.
type Options struct {
	HighWater float64          // share of a server's memory that new events may fill
	Limit     int64            // memory of a server without maxmemory, in bytes; 0: unknown
	Now       func() time.Time // nil: the real clock
}

// Watch reads the servers of one Redis. It is safe for concurrent use.
type Watch struct {
	client redis.UniversalClient
	opts   Options

	mu     sync.Mutex
	shards map[string]*reading // by partition.Shard
}

// reading is the last reading of one server.
type reading struct {
	server redis.Cmdable
	asked  time.Time // time of this reading, or of a later try
	use    Use
	free   int64 // bytes below the high-water mark, minus those admitted since
	part   int64 // bytes of free that this replica may still admit
}

// Use is the memory use of a server in bytes. A Limit of 0 means that the limit is unknown.
type Use struct {
	Used, Limit, HighWater int64
}

// New returns a Watch. It admits everything until its first reading.
func New(client redis.UniversalClient, o Options) *Watch {
	o.Now = clock.Or(o.Now)
	return &Watch{client: client, opts: o, shards: make(map[string]*reading)}
}

// Run reads at once and then every second, until ctx ends.
func (m *Watch) Run(ctx context.Context) {
	for ok := true; ok; ok = pause.For(ctx, readEvery) {
		m.Read(ctx)
	}
}

// Read reads every server now. For a server that does not answer, the last reading stays. The
// in-memory Redis is not read.
func (m *Watch) Read(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	shards := make(map[string]*reading)
	err := redisx.EachMaster(ctx, m.client, func(ctx context.Context, shard string, master redis.UniversalClient) error {
		r := m.read(ctx, master)
		m.mu.Lock()
		defer m.mu.Unlock()
		if r = cmp.Or(r, m.shards[shard]); r != nil {
			shards[shard] = r
		}
		return nil
	})
	if err == nil {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.shards = shards // without servers that are no longer masters
	}
}

// read is nil when the server does not answer.
func (m *Watch) read(ctx context.Context, server redis.Cmdable) *reading {
	text, err := server.Info(ctx, "memory").Result()
	if err != nil {
		return nil
	}
	use := m.opts.use(redisx.ParseInfo(text))
	free := max(0, use.HighWater-use.Used)
	return &reading{server: server, asked: m.opts.Now(), use: use, free: free, part: free / parts}
}

// use reads the answer of INFO. Redis does not count its output buffers against maxmemory.
func (o Options) use(info map[string]string) Use {
	number := func(key string) int64 {
		n, _ := strconv.ParseInt(info[key], 10, 64) // 0 if the server omits it
		return n
	}
	u := Use{Used: number("used_memory") - number("mem_not_counted_for_evict"), Limit: number("maxmemory")}
	if u.Limit == 0 {
		u.Limit = o.Limit
	}
	u.HighWater = int64(float64(u.Limit) * o.HighWater)
	return u
}

// Fullest is the last reading of the server with the smallest share of free memory, and the zero Use
// if no server was read.
func (m *Watch) Fullest() Use {
	m.mu.Lock()
	defer m.mu.Unlock()
	fullest, most := Use{}, math.Inf(-1)
	for _, s := range m.shards {
		share := float64(s.use.Used) / float64(max(s.use.Limit, 1))
		if s.use.Limit == 0 {
			share = math.Inf(1) // unknown
		}
		if share > most {
			fullest, most = s.use, share
		}
	}
	return fullest
}

// Warnings returns warnings for operators.
func (m *Watch) Warnings() []string {
	u := m.Fullest()
	switch {
	case u == (Use{}): // no server was read
		return nil
	case u.Limit == 0:
		return []string{"Redis has no maxmemory, and redis.memory does not say how much memory it has: nothing keeps new events from filling it"}
	case u.Used >= u.HighWater:
		return []string{fmt.Sprintf("Redis is above its high-water mark (%d of %d bytes used): new events are refused", u.Used, u.Limit)}
	}
	return nil
}

// Free is how many bytes of a server were free below its high-water mark when it was last read, without those that were
// reserved since. Without a known limit it is math.MaxInt64.
func (m *Watch) Free(shard string) int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s := m.shards[shard]; s != nil && s.use.Limit > 0 {
		return s.free
	}
	return math.MaxInt64
}

// Reserve reserves up to n bytes of this replica's part of a server's free memory for new
// events. It returns the reserved bytes and the bytes that were free before. release ends the
// reservation of bytes that are not used. Without a known limit it reserves all.
func (m *Watch) Reserve(ctx context.Context, shard string, n int64) (reserved, free int64, release func(bytes int64)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.shards[shard]
	if s != nil && s.use.Limit > 0 && s.part < n && m.opts.Now().Sub(s.asked) >= rereadAfter {
		s.asked = m.opts.Now() // so that concurrent calls do not read too
		m.mu.Unlock()
		fresh := m.read(ctx, s.server)
		m.mu.Lock()
		if fresh != nil {
			s, m.shards[shard] = fresh, fresh
		}
	}
	if s == nil || s.use.Limit == 0 {
		return n, math.MaxInt64, func(int64) {}
	}
	reserved, free = min(n, s.part), s.free
	s.part -= reserved
	s.free -= reserved
	return reserved, free, func(bytes int64) {
		m.mu.Lock()
		defer m.mu.Unlock()
		s.part += bytes // without effect if s is no longer the last reading, which has counted the bytes
		s.free += bytes
	}
}
