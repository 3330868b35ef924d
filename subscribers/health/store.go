package health

import (
	"cmp"
	"context"
	_ "embed"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/events/eventtype"
	"spendhook/events/operational"
	"spendhook/internal/clock"
	"spendhook/internal/partition"
	"spendhook/internal/queues"
	"spendhook/internal/script"
	"spendhook/subscribers/layout"
)

// healthLife is how long the health is kept after the last sample.
const healthLife = 90 * 24 * time.Hour

var (
	//go:embed lua/record.lua
	recordLua string

	recordScript = queues.Script(operational.Lua()+layout.CheckLua+recordLua, true)
)

// failingKey names the sorted set of a company's failing subscribers, by the unix ms of their
// last sample.
func failingKey(company uuid.UUID) string { return partition.Key(company, "fs:"+company.String()) }

// Options are what a Store needs. Client is required.
type Options struct {
	Client redis.UniversalClient

	// Operational encodes the operational events about failing and recovered subscribers. The
	// script that records a sample writes them. nil: none.
	Operational *operational.Store

	Now func() time.Time // nil means time.Now
}

// Store keeps the health of subscribers in Redis. It is safe for concurrent use; its
// methods block for a round trip to Redis.
type Store struct {
	opts  Options
	clock func() time.Time // of samples; nil: Redis's
}

// New returns a Store; it does not talk to Redis yet.
func New(opts Options) *Store {
	given := opts.Now
	opts.Now = clock.Or(given)
	return &Store{opts, given}
}

// Record adds samples, in one round trip to each shard, and returns a transition for each, in
// order. A sample that fails does not affect the others. Each change of state is reported once,
// to one caller. Expired is reported for every sample after DisableAfter of failing. Samples of an
// unknown subscriber do nothing.
func (s *Store) Record(ctx context.Context, samples []Sample, policy Policy) []Transition {
	calls := make([]*script.Call, len(samples))
	transitions := make([]Transition, len(samples))
	for i, sample := range samples {
		var err error
		if calls[i], err = s.call(sample, policy); err != nil {
			for j := range samples {
				transitions[j] = samples[j].transition(nil, err)
			}
			return transitions
		}
	}
	groups, _ := partition.ByShard(ctx, s.opts.Client, calls, func(c *script.Call) string { return c.Keys[0] })
	var shards sync.WaitGroup
	for _, shard := range groups {
		shards.Go(func() { _ = script.Run(ctx, s.opts.Client, shard...) }) // each call has its own error
	}
	shards.Wait()
	for i, sample := range samples {
		transitions[i] = sample.transition(calls[i].Strings())
	}
	return transitions
}

func (s *Store) call(sample Sample, p Policy) (*script.Call, error) {
	p.FailingAfter = cmp.Or(p.FailingAfter, 4)
	p.DisableAfter = max(cmp.Or(p.DisableAfter, 5*24*time.Hour), sample.DisableAfter)
	failing, recovered, err := s.notices(sample)
	at := partition.Of(sample.Company)
	return &script.Call{
		Script: recordScript,
		Keys:   append(queues.Keys(at), layout.HealthKey(sample.Company, sample.Subscriber), layout.CompanyKey(sample.Company)),
		Args: []any{
			sample.Subscriber.String(), sample.Success, sample.TrailingFailures, s.at(sample),
			p.FailingAfter, p.DisableAfter.Milliseconds(), healthLife.Milliseconds(),
			partition.Prefix(at), sample.Company.String(), sample.At.UTC().Format("2006-01-02T15:04:05.000Z"), failing, recovered,
			strconv.FormatUint(rand.Uint64(), 36), //nolint:gosec // must differ between calls, not be secret
			sample.Error,
		},
	}, err
}

// at is the time of a sample for the script. Without a clock of a test it is Redis's time: the clock of a
// replica must not disable a subscriber.
func (s *Store) at(sample Sample) any {
	if s.clock == nil {
		return ""
	}
	return sample.At.UnixMilli()
}

// Of returns the health of the company's subscribers with these ids, in one round trip. A
// subscriber without samples is healthy. A disabled subscriber keeps its health until it is
// enabled.
func (s *Store) Of(ctx context.Context, company uuid.UUID, ids ...uuid.UUID) (map[uuid.UUID]Health, error) {
	counts := make([]*redis.MapStringStringCmd, len(ids))
	pauses := make([]*redis.SliceCmd, len(ids))
	_, err := s.opts.Client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for i, id := range ids {
			counts[i] = pipe.HGetAll(ctx, layout.HealthKey(company, id))
			pauses[i] = pipe.HMGet(ctx, queues.EndpointKey(company, id), "paused", "why")
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read health: %w", err)
	}
	all := make(map[uuid.UUID]Health, len(ids))
	for i, id := range ids {
		h := counts[i].Val()
		health := newHealth(h["state"], h["fails"], h["since"], h["last"])
		health.Error = h["error"]
		since, _ := pauses[i].Val()[0].(string)
		health.PausedAt = parseMillis(since)
		health.PausedReason, _ = pauses[i].Val()[1].(string)
		all[id] = health
	}
	return all, nil
}

// notices encodes the notices that a sample may cause; lua/record.lua replaces the words that begin
// with @. Each run of failures has its own ids.
func (s *Store) notices(sample Sample) (failing, recovered string, err error) {
	if s.opts.Operational == nil {
		return "", "", nil
	}
	n := operational.Event{
		ID:   "subscriber-failing-" + sample.Subscriber.String() + "-@since",
		Type: eventtype.SubscriberFailing, Company: sample.Company, At: sample.At,
		Metadata: map[string]any{
			"subscriberUuid": sample.Subscriber, "consecutiveFailures": "@failures", "failingSince": "@failingSince",
		},
	}
	if failing, err = s.opts.Operational.Encode(n); err != nil {
		return "", "", err
	}
	n.ID = "subscriber-recovered-" + sample.Subscriber.String() + "-@since"
	n.Type, n.Metadata = eventtype.SubscriberRecovered, map[string]any{"subscriberUuid": sample.Subscriber}
	recovered, err = s.opts.Operational.Encode(n)
	return failing, recovered, err
}
