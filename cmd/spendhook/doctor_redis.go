package main

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"spendhook/dispatcher/workqueue/backlog"
	"spendhook/dispatcher/workqueue/storedformat"
	"spendhook/internal/keycheck"
	"spendhook/internal/partition"
	"spendhook/internal/redismemory"
	"spendhook/internal/redisx"
	"spendhook/internal/seal"
)

const (
	oldestRedis  = 7                    // major version, of Redis and Valkey
	slowRedis    = 5 * time.Millisecond // the median of its answers
	maxClockSkew = time.Second          // between its clock and ours
	overdueWork  = time.Minute
	nearlyFull   = 0.8 // of a quota, or of the high-water mark
	askedPings   = 9
	askedLargest = 10
)

// connect connects to Redis and reports what its servers find wrong. It returns nil if a server
// does not answer.
func (d *doctor) connect(ctx context.Context, r *findings) *redisx.Redis {
	client, err := redisx.Open(ctx, attachOptions(d.cfg))
	if err != nil {
		r.problem("start Redis, or correct redis.url and its certificates", "%v", err)
		return nil
	}
	// The client of a Cluster first asks any server for its commands and the slot map. If that
	// server hangs, the first call times out, although the other servers answer.
	_ = client.Client().Ping(ctx).Err()
	_ = redisx.EachMaster(ctx, client.Client(), func(context.Context, string, redis.UniversalClient) error { return nil })
	status := client.Check(ctx)
	const settings = "see docs/redis.md for the settings that Redis needs"
	for _, p := range status.Problems {
		r.problem(settings+"; the daemon is not ready until then", "%s", p)
	}
	for _, p := range status.Away {
		r.problem("start this server, or free its disk; until then only the companies of other shards are served, and the other checks of Redis are not made", "%s", p)
	}
	for _, w := range status.Warnings {
		r.warn(settings, "%s", w)
	}
	if !status.Up {
		_ = client.Close()
		return nil
	}
	return client
}

// examineRedis makes the checks that need Redis. The keyring is nil if it cannot be read.
func (d *doctor) examineRedis(ctx context.Context, r *redisx.Redis, ring *seal.Keyring) {
	client := r.Client()
	d.check(ctx, "Redis servers", "they are new, near, and have our time", func(ctx context.Context, r *findings) { checkServers(ctx, r, client) })
	d.check(ctx, "Redis memory", "new events have room", func(ctx context.Context, r *findings) { d.memory(ctx, r, client) })
	d.check(ctx, "work", "none is overdue, none is in the quarantine, no company is near its limit", func(ctx context.Context, r *findings) { d.work(ctx, r, client) })
	d.check(ctx, "replicas", "they run, and read the stored format", func(ctx context.Context, r *findings) { checkReplicas(ctx, r, client) })
	if ring == nil {
		return
	}
	d.check(ctx, "encryption keys", "all are configured", func(ctx context.Context, r *findings) {
		if err := keycheck.Check(ctx, client, ring); err != nil {
			r.problem("set the missing key, also as one of encryption.old_keys (docs/secrets.md)", "%v", err)
		}
	})
}

// checkServers checks version, latency, clock and replicas of each master.
func checkServers(ctx context.Context, r *findings, client redis.UniversalClient) {
	var mu sync.Mutex
	err := redisx.EachMaster(ctx, client, func(ctx context.Context, name string, c redis.UniversalClient) error {
		mu.Lock() // one after the other, so that none disturbs another's timing
		defer mu.Unlock()
		name = cmp.Or(name, "Redis")
		info := redisx.ParseInfo(c.Info(ctx).Val())
		version := cmp.Or(info["valkey_version"], info["redis_version"])
		if major, err := strconv.Atoi(strings.SplitN(version, ".", 2)[0]); err != nil || major < oldestRedis {
			r.problem("use Redis 7.0 or Valkey, or a later one: older ones refuse scripts at their memory limit", "%s has the version %q", name, version)
		}
		took, skew, err := askTime(ctx, c)
		if err != nil {
			return err
		}
		if took > slowRedis {
			r.warn("run Redis nearer to the daemon, and look at SLOWLOG and at the load of its machine: each event needs several round trips", "%s answers within %v", name, took.Round(10*time.Microsecond))
		}
		if skew.Abs() > maxClockSkew {
			r.problem("synchronise both clocks (chrony, systemd-timesyncd): tokens and retention depend on them", "the clock of %s and this machine's are %v apart", name, skew.Abs().Round(time.Millisecond))
		}
		if info["connected_slaves"] == "0" { // no replica to fail over to
			return nil
		}
		const setting = "min-replicas-to-write"
		settings, err := c.ConfigGet(ctx, setting).Result()
		if err != nil || settings[setting] == "0" {
			r.warn("make sure that it is at least 1: a master that is cut off goes on accepting events, and a failover loses them", "%s of %s is 0, or cannot be read", setting, name)
		}
		return nil
	})
	if err != nil {
		r.problem("find out why it does not answer", "%v", err)
	}
}

// askTime returns the median round trip, and how far the server's clock is ahead of ours.
func askTime(ctx context.Context, c redis.UniversalClient) (took, skew time.Duration, err error) {
	trips := make([]time.Duration, askedPings)
	for i := range trips {
		began := time.Now()
		theirs, err := c.Time(ctx).Result()
		if err != nil {
			return 0, 0, err
		}
		trips[i] = time.Since(began)
		if trips[i] == slices.Min(trips[:i+1]) { // the most exact so far
			skew = theirs.Sub(began.Add(trips[i] / 2))
		}
	}
	slices.Sort(trips)
	return trips[len(trips)/2], skew, nil
}

// memory checks the memory of the fullest server.
func (d *doctor) memory(ctx context.Context, r *findings, client redis.UniversalClient) {
	m := redismemory.New(client, redismemory.Options{HighWater: d.cfg.Redis.HighWater, Limit: int64(d.cfg.Redis.Memory)})
	m.Read(ctx)
	for _, w := range m.Warnings() {
		r.warn("set maxmemory of Redis, or redis.memory", "%s", w)
	}
	use := m.Fullest()
	if share := float64(use.Used) / float64(use.HighWater); use.Limit > 0 && share >= nearlyFull {
		report := r.warn
		if share >= 1 {
			report = r.problem
		}
		report("give Redis more memory, or find the companies whose receivers do not accept deliveries",
			"%d of %d MB are used, new events are refused from %d", use.Used>>20, use.Limit>>20, use.HighWater>>20)
	}
}

// work checks pending work, quotas, and that each partition has an owner.
func (d *doctor) work(ctx context.Context, r *findings, client redis.UniversalClient) {
	meter := backlog.New(client, nil)
	waiting, err := meter.Measure(ctx, partition.All())
	var largest []backlog.Company
	if err == nil {
		largest, err = meter.Largest(ctx, partition.All(), askedLargest)
	}
	if err != nil {
		r.problem("find out which Redis server does not answer", "%v", err)
	}
	if waiting.OldestDue > overdueWork {
		r.problem("check that a daemon runs and is ready (/readyz): a partition has no owner, or its owner makes no progress",
			"no replica serves work that is overdue by %v", waiting.OldestDue.Round(time.Second))
	}
	if waiting.Quarantined > 0 {
		r.warn("list them with 'spendhook quarantine list'; retry or drop each", "%d events or deliveries are in the quarantine", waiting.Quarantined)
	}
	for _, c := range largest {
		if float64(c.Pending) >= nearlyFull*float64(d.cfg.Limits.CompanyBacklog) {
			r.warn("see its failing subscribers; raise limits.company_backlog only with memory to spare",
				"company %s has %d of %d pending events", c.Company, c.Pending, d.cfg.Limits.CompanyBacklog)
		}
	}
}

// checkReplicas checks that daemons run, and that all running releases read the stored format.
func checkReplicas(ctx context.Context, r *findings, client redis.UniversalClient) {
	formats, err := storedformat.Read(ctx, client)
	if err != nil {
		r.problem("find out which Redis server does not answer", "%v", err)
		return
	}
	for p, format := range formats.Partitions {
		if format < partition.OldestFormat || format > partition.NewestFormat() {
			r.problem("run a release that reads it", "%v", &partition.FormatError{Partition: p, Format: format})
			return
		}
	}
	for _, reader := range formats.Readers {
		if !reader.Reads(partition.NewestFormat()) {
			r.warn("replace it; 'spendhook format raise' waits for it", "replica %s is of an older release", reader.Replica)
		}
	}
	if len(formats.Readers) == 0 {
		r.warn("start one", "no daemon is running on this Redis")
	}
}
