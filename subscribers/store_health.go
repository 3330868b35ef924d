package subscribers

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/dispatcher/workqueue"
	"spendhook/internal/partition"
	"spendhook/internal/script"
	"spendhook/subscribers/layout"
)

const (
	healthLife = 90 * 24 * time.Hour // after the last sample
	// expiredAgain is when TransitionExpired is told again, so that a crash
	// before the subscriber was disabled does not keep it enabled for ever.
	expiredAgain = time.Hour
)

// RecordHealth adds samples, in one round trip to each shard, and returns a
// transition for each, in order; a sample that fails, fails alone. Each change of
// state is reported once, to one caller; one sample reports at most one, the
// difference between before and after it. TransitionExpired comes with a sample
// that finds the subscriber failing already, and again each hour that it goes on.
// Samples of an unknown subscriber do nothing.
func (s *Store) RecordHealth(ctx context.Context, samples []Sample, policy HealthPolicy) []Transition {
	calls := make([]*script.Call, len(samples))
	transitions := make([]Transition, len(samples))
	for i, sample := range samples {
		var err error
		if calls[i], err = s.healthCall(sample, policy); err != nil {
			for j := range samples {
				transitions[j] = samples[j].transition(nil, err)
			}
			return transitions
		}
	}
	var shards sync.WaitGroup
	for _, shard := range byShard(ctx, s.opts.Client, calls, func(c *script.Call) string { return c.Keys[0] }) {
		shards.Go(func() { _ = script.Run(ctx, s.opts.Client, nil, shard...) }) // each call has its own error
	}
	shards.Wait()
	for i, sample := range samples {
		transitions[i] = sample.transition(calls[i].Strings())
	}
	return transitions
}

func (s *Store) healthCall(sample Sample, p HealthPolicy) (*script.Call, error) {
	if p.FailingAfter == 0 {
		p.FailingAfter = 4
	}
	if p.DisableAfter == 0 {
		p.DisableAfter = 5 * 24 * time.Hour
	}
	failing, recovered, err := s.healthNotices(sample)
	at := partition.Of(sample.Company)
	return &script.Call{
		Script: healthScript,
		Keys:   append(workqueue.Keys(at), healthKey(sample.Company, sample.Subscriber), layout.CompanyKey(sample.Company)),
		Args: []any{
			sample.Subscriber.String(), sample.Success, sample.TrailingFailures, sample.At.UnixMilli(),
			p.FailingAfter, p.DisableAfter.Milliseconds(), expiredAgain.Milliseconds(), healthLife.Milliseconds(),
			partition.Prefix(at), sample.Company.String(), sample.At.UTC().Format("2006-01-02T15:04:05.000Z"), failing, recovered,
		},
	}, err
}

// Health returns the health of the company's subscribers with these ids, in
// one round trip; unknown ones are left out. A disabled subscriber keeps what
// was counted until it is enabled.
func (s *Store) Health(ctx context.Context, company uuid.UUID, ids ...uuid.UUID) (map[uuid.UUID]Health, error) {
	if len(ids) == 0 {
		return map[uuid.UUID]Health{}, nil
	}
	var records *redis.SliceCmd
	counts := make([]*redis.MapStringStringCmd, len(ids))
	pauses := make([]*redis.SliceCmd, len(ids))
	_, err := s.opts.Client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		records = pipe.HMGet(ctx, layout.CompanyKey(company), fields(ids)...)
		for i, id := range ids {
			counts[i] = pipe.HGetAll(ctx, healthKey(company, id))
			pauses[i] = pipe.HMGet(ctx, workqueue.EndpointKey(company, id), "paused", "why")
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read health: %w", err)
	}
	return s.healthOf(company, ids, records.Val(), counts, pauses)
}

func fields(ids []uuid.UUID) []string {
	names := make([]string, len(ids))
	for i, id := range ids {
		names[i] = id.String()
	}
	return names
}

func (s *Store) healthOf(company uuid.UUID, ids []uuid.UUID, records []any, counts []*redis.MapStringStringCmd, pauses []*redis.SliceCmd) (map[uuid.UUID]Health, error) {
	all := make(map[uuid.UUID]Health, len(ids))
	for i, id := range ids {
		raw, known := records[i].(string)
		if !known {
			continue
		}
		sub, err := s.codec.decode(company, id, raw)
		if err != nil {
			return nil, err
		}
		h := counts[i].Val()
		health := newHealth(h["state"], h["fails"], h["since"], h["last"])
		if !sub.Enabled {
			health.State = stateDisabled
		}
		since, _ := pauses[i].Val()[0].(string)
		health.PausedAt = parseMillis(since)
		health.PausedReason, _ = pauses[i].Val()[1].(string)
		all[id] = health
	}
	return all, nil
}
