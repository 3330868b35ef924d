package redisx

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"spendhook/internal/partition"
)

// Status is the result of Check. Each text names the server when there are several.
type Status struct {
	Up       bool     // every server answers
	Problems []string // make the daemon unready
	Down     []string // masters of a Cluster that are down, if another one answers; else they are Problems
	Warnings []string // for operators
}

// Check checks each server (EachMaster), within 1.5 s. It prefers INFO, because managed services
// refuse CONFIG.
func (r *Redis) Check(ctx context.Context) Status {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	all := Status{Up: true}
	var mu sync.Mutex
	servers := 0
	err := EachMaster(ctx, r.client, func(ctx context.Context, name string, server redis.UniversalClient) error {
		s := r.checkServer(ctx, server)
		mu.Lock()
		defer mu.Unlock()
		servers++
		all.merge(s, name)
		return nil
	})
	if len(all.Down) == servers {
		all.Problems, all.Down = all.Down, nil
	}
	if err != nil {
		all.down("Redis Cluster does not answer: %v", err)
	}
	if r.full != nil && r.full.Load() {
		all.down("Redis is down: is its disk full?")
	}
	slices.Sort(all.Problems)
	slices.Sort(all.Down)
	slices.Sort(all.Warnings)
	return all
}

// probeKey is written to check whether Redis accepts writes. It has the slot of the key sh:keys,
// which the start reads next, so that the start needs only that shard of a Cluster. TTL: a minute.
const probeKey = "sh:probe:{sh:keys}"

// TryWrite returns an error while Redis takes no writes: it does not answer, or it answers but
// refuses them, for example because too few replicas are connected. Only a write shows that. In a
// Cluster it asks the shard of the key sh:keys. A Redis at its memory limit counts as taking
// writes: it still settles events, which frees memory.
func (r *Redis) TryWrite(ctx context.Context) error {
	err := r.client.Set(ctx, probeKey, 1, time.Minute).Err()
	_, answered := errors.AsType[redis.Error](err)
	if err == nil || redis.IsOOMError(err) || answered && !Unavailable(err) {
		return nil
	}
	return fmt.Errorf("write %s: %w", probeKey, err)
}

func (r *Redis) checkServer(ctx context.Context, c redis.UniversalClient) Status {
	s := Status{Up: true}
	switch err := c.Ping(ctx).Err(); {
	case isMisconfError(err): // the answer to PING too
		s.down("Redis takes no writes, is its disk full? %v", err)
		return s
	case err != nil:
		s.down("Redis does not answer: %v", err)
		return s
	case r.memory:
		s.warn("Redis is in memory: nothing survives a restart")
		return s
	}
	if text, err := c.Info(ctx).Result(); err != nil {
		s.warn("Redis refuses INFO, so its eviction policy and persistence are unknown: %v", err)
	} else {
		s.checkInfo(ParseInfo(text))
	}
	if !r.own {
		s.checkSync(ctx, c)
	}
	return s
}

// checkInfo checks the fields of INFO that concern durability and eviction.
func (s *Status) checkInfo(info map[string]string) {
	switch policy := info["maxmemory_policy"]; policy {
	case "noeviction":
	case "":
		s.warn("Redis does not report its maxmemory-policy: it must be noeviction")
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

// checkSync warns of a server that answers before its append-only file is on disk. It does not
// warn of a server that refuses CONFIG.
func (s *Status) checkSync(ctx context.Context, c redis.UniversalClient) {
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

// merge adds the status of the server with this name. The problem of a server that is down goes
// to Down.
func (s *Status) merge(other Status, name string) {
	prefix := ""
	if name != "" {
		prefix = name + ": "
	}
	s.Up = s.Up && other.Up
	for _, p := range other.Problems {
		if other.Up {
			s.problem("%s%s", prefix, p)
		} else {
			s.Down = append(s.Down, prefix+p)
		}
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

// Unavailable reports whether err is a reply of a Redis that cannot serve now
// but may soon: it is loading its data, failing over, resharding, full, unable to write to its
// disk or out of connections, or its format is one that this build cannot read. Connection
// errors are errors of the net package.
func Unavailable(err error) bool {
	for _, is := range []func(error) bool{
		redis.IsLoadingError, redis.IsReadOnlyError, redis.IsClusterDownError, redis.IsTryAgainError,
		redis.IsMasterDownError, redis.IsMaxClientsError, redis.IsOOMError, redis.IsNoReplicasError,
		isMisconfError, isFormatError,
	} {
		if is(err) {
			return true
		}
	}
	return errors.Is(err, redis.ErrClosed)
}

func isMisconfError(err error) bool { return redis.HasErrorPrefix(err, "MISCONF") }

func isFormatError(err error) bool {
	_, ok := errors.AsType[*partition.FormatError](partition.CheckedError(err))
	return ok
}
