package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"spendhook/config"
	"spendhook/dispatcher/workqueue/backlog"
	"spendhook/dispatcher/workqueue/storedformat"
	"spendhook/internal/keycheck"
	"spendhook/internal/partition"
	"spendhook/internal/redismemory"
	"spendhook/internal/redisx"
	"spendhook/internal/seal"
	"spendhook/subscribers/certificate"
)

const (
	oldestRedis  = 7                      // major version, of Redis and Valkey
	slowRedis    = 5 * time.Millisecond   // the median of its answers
	skewWarning  = 500 * time.Millisecond // between its clock and ours
	skewProblem  = 10 * time.Second
	overdueWork  = time.Minute
	nearlyFull   = 0.8 // of a quota, or of the high-water mark
	askedPings   = 9
	askedLargest = 10
)

// server checks version, latency, clock and replicas of each master that answers.
func (d *doctor) server(ctx context.Context, _ *config.Config, r *redisx.Redis) {
	var mu sync.Mutex
	err := redisx.EachMaster(ctx, r.Client(), func(ctx context.Context, name string, c redis.UniversalClient) error {
		if slices.Contains(d.away, name) {
			return nil
		}
		mu.Lock() // one after the other, so that none disturbs another's timing
		defer mu.Unlock()
		if name != "" {
			name += ": "
		}
		info := redisx.ParseInfo(c.Info(ctx).Val())
		version := cmp.Or(info["valkey_version"], info["redis_version"])
		major, err := strconv.Atoi(strings.SplitN(version, ".", 2)[0])
		switch {
		case err != nil:
			d.warn("Redis version", name+"it does not tell its version", "use Redis 7.0 or Valkey, or a later one")
		case major < oldestRedis:
			d.problem("Redis version", name+"it is "+version, "use Redis 7.0 or Valkey, or a later one: older ones refuse scripts at their memory limit")
		default:
			d.ok("Redis version", name+"it is "+version)
		}
		d.speed(ctx, name, c)
		d.replicas(ctx, name, c, info)
		return nil
	})
	if err != nil {
		d.problem("Redis", err.Error(), "find out which of its servers are down")
	}
}

// speed measures round trips and the difference of the clocks.
func (d *doctor) speed(ctx context.Context, name string, c redis.UniversalClient) {
	var trips []time.Duration
	var skew time.Duration
	for range askedPings {
		began := time.Now()
		theirs, err := c.Time(ctx).Result()
		took := time.Since(began)
		if err != nil {
			d.problem("Redis latency", name+err.Error(), "find out why it does not answer")
			return
		}
		if trips = append(trips, took); took <= slices.Min(trips) {
			skew = theirs.Sub(began.Add(took / 2))
		}
	}
	slices.Sort(trips)
	d.latency("Redis latency", trips[len(trips)/2], slowRedis, name+"it answers", "run Redis nearer to the daemon, and look at SLOWLOG and at the load of its machine: each event needs several round trips")
	switch apart := skew.Abs(); {
	case apart > skewProblem:
		d.problem("clocks", fmt.Sprintf("%sits clock and this machine's are %v apart", name, apart.Round(time.Millisecond)), "synchronise both (chrony, systemd-timesyncd): tokens and retention depend on them")
	case apart > skewWarning:
		d.warn("clocks", fmt.Sprintf("%sits clock and this machine's are %v apart", name, apart.Round(time.Millisecond)), "synchronise both (chrony, systemd-timesyncd)")
	default:
		d.ok("clocks", name+"its clock and this machine's agree")
	}
}

// replicas checks min-replicas-to-write, which bounds the loss of a failover.
func (d *doctor) replicas(ctx context.Context, name string, c redis.UniversalClient, info map[string]string) {
	if n, _ := strconv.Atoi(info["connected_slaves"]); n == 0 { // no replica to fail over to
		d.ok("Redis replicas", name+"it has none")
		return
	}
	settings, err := c.ConfigGet(ctx, "min-replicas-to-write").Result()
	switch {
	case err != nil:
		d.warn("Redis replicas", name+"min-replicas-to-write cannot be read", "make sure that it is at least 1: a failover loses writes that no replica has")
	case settings["min-replicas-to-write"] == "0":
		d.warn("Redis replicas", name+"min-replicas-to-write is 0", "set it to at least 1: a master that is cut off goes on accepting events, and a failover loses them")
	default:
		d.ok("Redis replicas", name+"it takes writes only with at least "+settings["min-replicas-to-write"]+" replica connected")
	}
}

// memory checks the memory of the fullest server.
func (d *doctor) memory(ctx context.Context, cfg *config.Config, r *redisx.Redis) {
	const check = "Redis memory"
	m := redismemory.New(r.Client(), redismemory.Options{HighWater: cfg.Redis.HighWater, Limit: int64(cfg.Redis.Memory)})
	m.Read(ctx)
	for _, w := range m.Warnings() {
		d.warn(check, w, "set maxmemory of Redis, or redis.memory")
	}
	use := m.Fullest()
	if use.Limit == 0 {
		return
	}
	message := fmt.Sprintf("%d of %d MB are used, new events are refused from %d", use.Used>>20, use.Limit>>20, use.HighWater>>20)
	switch share := float64(use.Used) / float64(use.HighWater); {
	case share >= 1:
		d.problem(check, message, "give Redis more memory, or find the companies whose receivers do not accept deliveries")
	case share >= nearlyFull:
		d.warn(check, message, "give Redis more memory, or find the companies whose receivers do not accept deliveries")
	default:
		d.ok(check, message)
	}
}

// work checks pending work, quotas, and that each partition has an owner. It leaves out the
// partitions of shards that are away.
func (d *doctor) work(ctx context.Context, cfg *config.Config, r *redisx.Redis) {
	partitions, err := d.reachable(ctx, r.Client())
	var waiting backlog.Total
	if err == nil {
		waiting, err = backlog.New(r.Client(), nil).Measure(ctx, partitions, askedLargest)
	}
	if err != nil {
		d.problem("work", err.Error(), "find out which Redis server does not answer")
		return
	}
	if waiting.OldestDue > overdueWork {
		d.problem("partitions", fmt.Sprintf("no replica serves work that is overdue by %v", waiting.OldestDue.Round(time.Second)), "check that a daemon runs and is ready (/readyz): a partition has no owner, or its owner makes no progress")
	} else {
		d.ok("partitions", fmt.Sprintf("%d events are pending, none is overdue", waiting.Pending))
	}
	if waiting.Quarantined > 0 {
		d.warn("quarantine", fmt.Sprintf("%d events or deliveries are in the quarantine", waiting.Quarantined), "list them with GET /api/v1/quarantine; retry or drop each")
	}
	near := 0
	for _, c := range waiting.Largest {
		if float64(c.Pending) >= nearlyFull*float64(cfg.Limits.CompanyBacklog) {
			near++
			d.warn("quotas", fmt.Sprintf("company %s has %d of %d pending events", c.Company, c.Pending, cfg.Limits.CompanyBacklog), "see its failing subscribers; raise limits.company_backlog only with memory to spare")
		}
	}
	if near == 0 {
		d.ok("quotas", "no company is near limits.company_backlog")
	}
}

// reachable lists the partitions, except those of shards that are away.
func (d *doctor) reachable(ctx context.Context, client redis.UniversalClient) ([]int, error) {
	shards, err := partition.ByShard(ctx, client, partition.All())
	for _, shard := range d.away {
		delete(shards, shard)
	}
	return slices.Concat(slices.Collect(maps.Values(shards))...), err
}

// keys checks that all encryption keys are configured.
func (d *doctor) keys(ctx context.Context, cfg *config.Config, r *redisx.Redis) {
	ring, err := openKeyring(cfg, seal.ReadFile)
	if err != nil {
		return // examine has reported it
	}
	if err := keycheck.Check(ctx, r.Client(), ring); err != nil {
		d.problem("encryption keys", err.Error(), "if Redis does not answer, start it; else set the missing key, also as one of encryption.old_keys (docs/secrets.md)")
	}
}

// formats checks that all running releases read the stored format.
func (d *doctor) formats(ctx context.Context, _ *config.Config, r *redisx.Redis) {
	formats, err := storedformat.Read(ctx, r.Client())
	if err != nil {
		d.problem("versions", err.Error(), "find out which Redis server does not answer")
		return
	}
	for p, format := range formats.Partitions {
		if format < partition.OldestFormat || format > partition.NewestFormat() {
			d.problem("versions", fmt.Sprintf("partition %d is stored in format %d, which this release does not read", p, format), "run a release that reads it")
			return
		}
	}
	for _, reader := range formats.Readers {
		if !reader.Reads(partition.NewestFormat()) {
			d.warn("versions", "replica "+reader.Replica+" is of an older release", "replace it; 'spendhook format raise' waits for it")
		}
	}
	switch n := len(formats.Readers); n {
	case 0:
		d.warn("replicas", "no daemon is running on this Redis", "start one")
	default:
		d.ok("replicas", fmt.Sprintf("%d are running", n))
	}
}

// egressCertificates checks when the egress certificates of companies expire.
func (d *doctor) egressCertificates(ctx context.Context, cfg *config.Config, r *redisx.Redis) {
	ring, err := openKeyring(cfg, seal.ReadFile)
	if err != nil {
		return // examine has reported it
	}
	some, counts, err := certificate.New(r.Client(), ring, nil).ExpiringBefore(ctx, time.Now().Add(certificateNotice))
	n := int64(0)
	for _, count := range counts {
		n += count
	}
	switch {
	case err != nil:
		d.warn("egress certificates", err.Error(), "try again")
	case n > 0:
		d.warn("egress certificates", fmt.Sprintf("%d end within 30 days or have ended, the first of company %s at %s", n, some[0].Company, some[0].NotAfter.Format(time.RFC3339)), "have the companies set new ones (PUT /api/v1/egress-certificate)")
	default:
		d.ok("egress certificates", "none ends within 30 days")
	}
}
