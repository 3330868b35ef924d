package redisx

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// Status is the result of Check. Problems make the daemon unready; Warnings are for operators.
// Each names the server when there are several.
type Status struct {
	Up       bool
	Problems []string
	Warnings []string
}

// Check checks every master, within 1.5 s. It prefers INFO, because managed services refuse
// CONFIG.
func (r *Redis) Check(ctx context.Context) Status {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	if r.memory {
		s := ping(ctx, r.client)
		s.warn("Redis is in memory: nothing survives a restart")
		return s
	}
	if c, ok := r.client.(*redis.ClusterClient); ok {
		return checkCluster(ctx, c)
	}
	s := checkServer(ctx, r.client)
	if r.full != nil && r.full.Load() {
		s.down("Redis is down: is its disk full?")
	}
	if !r.own {
		s.judgeSync(ctx, r.client)
	}
	return s
}

// probeKey is written to check whether Redis accepts writes. TTL: a minute.
const probeKey = "sh:probe"

// TakesWrites is false while Redis answers but refuses writes, for example because too few
// replicas are connected. Only a write shows that. A Redis at its memory limit counts as taking
// writes: it still settles events, which frees memory.
func (r *Redis) TakesWrites(ctx context.Context) bool {
	err := r.client.Set(ctx, probeKey, 1, time.Minute).Err()
	return redis.IsOOMError(err) || !Unavailable(err)
}

func checkCluster(ctx context.Context, c *redis.ClusterClient) Status {
	all := Status{Up: true}
	var mu sync.Mutex
	err := c.ForEachMaster(ctx, func(ctx context.Context, master *redis.Client) error {
		s := checkServer(ctx, master)
		s.judgeSync(ctx, master)
		mu.Lock()
		defer mu.Unlock()
		all.merge(s, master.Options().Addr+": ")
		return nil
	})
	if err != nil {
		all.down("Redis Cluster does not answer: %v", err)
	}
	slices.Sort(all.Problems)
	slices.Sort(all.Warnings)
	return all
}

func checkServer(ctx context.Context, c redis.UniversalClient) Status {
	s := ping(ctx, c)
	if !s.Up {
		return s
	}
	text, err := c.Info(ctx).Result()
	if err != nil {
		s.warn("Redis refuses INFO, so its eviction policy and persistence are unknown: %v", err)
		return s
	}
	s.judge(ParseInfo(text))
	return s
}

func ping(ctx context.Context, c redis.UniversalClient) Status {
	s := Status{Up: true}
	switch err := c.Ping(ctx).Err(); {
	case isMisconfError(err): // it says so to PING too
		s.down("Redis takes no writes, is its disk full? %v", err)
	case err != nil:
		s.down("Redis does not answer: %v", err)
	}
	return s
}

// judge checks the fields of INFO that concern durability and eviction.
func (s *Status) judge(info map[string]string) {
	switch policy := info["maxmemory_policy"]; policy {
	case "noeviction":
	case "":
		s.warn("Redis does not tell its maxmemory-policy: it must be noeviction")
	default:
		s.problem("Redis may evict accepted events: maxmemory-policy is %s, set it to noeviction", policy)
	}
	if info["role"] == "slave" {
		s.problem("Redis is a read-only replica: connect to its master")
	}
	if info["aof_enabled"] == "0" {
		s.warn("Redis has its append-only file off: a crash of Redis loses accepted events, set appendonly to yes")
	}
	if info["aof_last_write_status"] == "err" {
		s.problem("Redis cannot write its append-only file: is its disk full?")
	}
}

// judgeSync warns of a server that answers before its append-only file is on disk. It does not
// warn of a server that refuses CONFIG.
func (s *Status) judgeSync(ctx context.Context, c redis.UniversalClient) {
	if !s.Up {
		return
	}
	settings, err := c.ConfigGet(ctx, "append*").Result()
	if err != nil || settings["appendonly"] != "yes" || settings["appendfsync"] == "always" {
		return
	}
	s.warn("Redis answers before its append-only file is on the disk: a loss of power loses the last accepted events, set appendfsync to always (it is %s)", settings["appendfsync"])
}

// ParseInfo reads the "key:value" lines of INFO.
func ParseInfo(text string) map[string]string {
	info := map[string]string{}
	for line := range strings.Lines(text) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			info[key] = value
		}
	}
	return info
}

func (s *Status) merge(other Status, prefix string) {
	s.Up = s.Up && other.Up
	for _, p := range other.Problems {
		s.problem("%s%s", prefix, p)
	}
	for _, w := range other.Warnings {
		s.warn("%s%s", prefix, w)
	}
}

func (s *Status) down(format string, args ...any) {
	s.Up = false
	s.problem(format, args...)
}

func (s *Status) problem(format string, args ...any) {
	s.Problems = append(s.Problems, fmt.Sprintf(format, args...))
}

func (s *Status) warn(format string, args ...any) {
	s.Warnings = append(s.Warnings, fmt.Sprintf(format, args...))
}
