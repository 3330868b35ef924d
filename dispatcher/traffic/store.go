package traffic

import (
	"cmp"
	"context"
	_ "embed" // the script
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/events/layout"
	"spendhook/internal/clock"
	"spendhook/internal/partition"
	"spendhook/internal/pipeline"
	"spendhook/internal/script"
)

//go:embed lua/add.lua
var addSource string

var addScript = redis.NewScript(addSource)

// The layout of a ring, as in lua/add.lua.
const (
	cellBytes, headBytes = 10, 12
	minutes, hours       = 180, 168
)

// docs/redis.md lists type, writer and time to live of each key.

// scope names the counts of all companies, of a company, or of a subscriber.
type scope struct {
	company    uuid.UUID // uuid.Nil: all
	prefix     string
	name       string
	subscriber bool
}

func scopeOf(company, subscriber *uuid.UUID) scope {
	if company == nil {
		return scope{prefix: "sh:{traffic}:", name: "all"}
	}
	s := scope{company: *company, prefix: partition.Prefix(partition.Of(*company)), name: company.String()}
	if subscriber != nil {
		s.name, s.subscriber = nameOf(*company, *subscriber), true
	}
	return s
}

// nameOf is the name of a subscriber in keys and in the sets of worstKey.
func nameOf(company, subscriber uuid.UUID) string {
	return company.String() + "/" + subscriber.String()
}

// minutesKey and hoursKey: strings, counts by minute and by hour.
func (s scope) minutesKey() string { return s.prefix + "tm:" + s.name }
func (s scope) hoursKey() string   { return s.prefix + "th:" + s.name }

// worstKey: zset of the subscribers with the most failed attempts in an hour (kind "tf"), or with the
// highest latencies ("ts").
func (s scope) worstKey(kind string, hour int64) string {
	return s.prefix + kind + ":" + s.name + ":" + strconv.FormatInt(hour, 10)
}

// Store keeps counts in Redis. It is safe for concurrent use, also by several replicas,
// whose counts add up.
type Store struct {
	client redis.UniversalClient
	now    func() time.Time
}

// NewStore returns a Store on the client, which it does not close; nil now means
// time.Now.
func NewStore(client redis.UniversalClient, now func() time.Time) *Store {
	return &Store{client: client, now: clock.Or(now)}
}

const (
	writePart = 200
	// rankedPart is how many subscribers of a write are ranked.
	rankedPart = 20
)

// add adds the gathered counts. It returns the error of the first call that failed. A pending of -1
// means unknown.
func (s *Store) add(ctx context.Context, all map[uuid.UUID]*gathered, pending int64) (err error) {
	now := s.now()
	var calls []*script.Call
	var sum [4]int64
	var worst []rank
	for company, g := range all {
		var ranks []rank
		for id, c := range g.subscribers {
			p50, p95 := c.latency(.5), c.latency(.95)
			calls = append(calls, newCall(scopeOf(&company, &id), now, c.n, []any{"latency", p50, p95}, nil))
			ranks = append(ranks, rank{nameOf(company, id), c.failed(), p95})
		}
		ranks = mostFailedAndSlowest(ranks)
		worst = append(worst, ranks...)
		for i := range sum {
			sum[i] += g.n[i]
		}
		calls = append(calls, newCall(scopeOf(&company, nil), now, g.n, []any{"pending", "", ""}, ranks))
	}
	calls = append(calls, newCall(scopeOf(nil, nil), now, sum, []any{"number", pending, ""}, mostFailedAndSlowest(worst)))
	for part := range slices.Chunk(calls, writePart) {
		err = cmp.Or(err, script.Run(ctx, s.client, part...))
	}
	return err
}

// rank has the figures of a subscriber for the sets of worstKey.
type rank struct {
	name    string
	failed  int64
	latency int
}

// mostFailedAndSlowest returns the rankedPart with the most failed attempts, and of the others the
// rankedPart with the highest latencies.
func mostFailedAndSlowest(all []rank) []rank {
	if len(all) <= 2*rankedPart {
		return all
	}
	slices.SortFunc(all, func(a, b rank) int { return cmp.Compare(b.failed, a.failed) })
	rest := all[rankedPart:]
	slices.SortFunc(rest, func(a, b rank) int { return cmp.Compare(b.latency, a.latency) })
	return all[:2*rankedPart]
}

func newCall(of scope, now time.Time, n [4]int64, last []any, ranks []rank) *script.Call {
	hour := now.Unix() / 3600
	state := of.prefix + "none"
	if of.company != uuid.Nil {
		state = layout.StateKey(of.company)
	}
	args := append([]any{now.Unix(), rand.Float64(), n[0], n[1], n[2], n[3]}, last...) //nolint:gosec // for rounding; also names the call
	for _, r := range ranks {
		args = append(args, r.name, r.failed, r.latency)
	}
	return &script.Call{
		Script: addScript, Args: args,
		Keys: []string{of.minutesKey(), of.hoursKey(), of.worstKey("tf", hour), of.worstKey("ts", hour), state},
	}
}

// Read returns the counts of all companies together (nil, nil), of a company, or of one of its
// subscribers.
func (s *Store) Read(ctx context.Context, company, subscriber *uuid.UUID) (Series, error) {
	of := scopeOf(company, subscriber)
	pipe := s.client.Pipeline()
	byMinute, byHour := pipe.Get(ctx, of.minutesKey()), pipe.Get(ctx, of.hoursKey())
	if _, err := pipe.Exec(ctx); err != nil && !errors.Is(err, redis.Nil) {
		return Series{}, fmt.Errorf("read traffic: %w", err)
	}
	now := s.now()
	return Series{
		Minutes: decode(byMinute.Val(), now, time.Minute, minutes, of.subscriber),
		Hours:   decode(byHour.Val(), now, time.Hour, hours, of.subscriber),
	}, nil
}

// LastHour returns the counts of subscribers in the last 60 minutes, in their order: 60 points
// for each, or none when the subscriber had no traffic.
func (s *Store) LastHour(ctx context.Context, company uuid.UUID, subscribers ...uuid.UUID) ([][]Point, error) {
	texts, err := pipeline.Each(ctx, s.client, subscribers, func(pipe redis.Pipeliner, id uuid.UUID) *redis.StringCmd {
		return pipe.Get(ctx, scopeOf(&company, &id).minutesKey())
	})
	if err != nil && !errors.Is(err, redis.Nil) {
		return nil, fmt.Errorf("read traffic: %w", err)
	}
	all := make([][]Point, len(subscribers))
	for i, text := range texts {
		if text.Val() != "" {
			all[i] = decode(text.Val(), s.now(), time.Minute, minutes, true)[minutes-60:]
		}
	}
	return all, nil
}

// decode reads a ring as the points up to now. It leaves out later points, which a replica with
// another clock has written.
func decode(text string, now time.Time, length time.Duration, size int64, subscriber bool) []Point {
	at := now.Unix() / int64(length/time.Second)
	points := make([]Point, size)
	latest := int64(-1)
	if int64(len(text)) == headBytes+cellBytes*size {
		latest = int64(binary.LittleEndian.Uint32([]byte(text[:headBytes])))
	}
	var pending int64
	for i := range points {
		n := at - size + 1 + int64(i)
		p := Point{At: time.Unix(n*int64(length/time.Second), 0).UTC(), Pending: pending}
		if n <= latest && n > latest-size {
			place := headBytes + cellBytes*(n%size)
			p.read([]byte(text[place:place+cellBytes]), subscriber)
		}
		points[i], pending = p, p.Pending
	}
	return points
}

func (p *Point) read(cell []byte, subscriber bool) {
	var n [5]int64
	for i := range n {
		n[i] = decodeCount(binary.LittleEndian.Uint16(cell[2*i:]))
	}
	if !subscriber {
		p.Accepted, p.Delivered, p.Failed, p.Dead = n[0], n[1], n[2], n[3]
		if n[4] > 0 {
			p.Pending = n[4] - 1
		}
		return
	}
	p.Delivered, p.Refused, p.Erred, p.Unanswered = n[0], n[1], n[2], n[3]
	p.Failed = p.Refused + p.Erred + p.Unanswered
	if p.Attempts() > 0 {
		p.P50, p.P95 = latencyOf(cell[8]), latencyOf(cell[9])
	}
}

// Worst lists up to n subscribers with the most failed attempts in this hour and the one
// before, and up to n with the highest latencies, of one company or, for nil, of all.
func (s *Store) Worst(ctx context.Context, company *uuid.UUID, n int) (failing, slow []Ranked, err error) {
	of := scopeOf(company, nil)
	pipe, hour := s.client.Pipeline(), s.now().Unix()/3600
	both := func(kind, aggregate string) *redis.ZSliceCmd {
		return pipe.ZUnionWithScores(ctx, redis.ZStore{Keys: []string{of.worstKey(kind, hour), of.worstKey(kind, hour-1)}, Aggregate: aggregate})
	}
	failed, latencies := both("tf", "SUM"), both("ts", "MAX")
	if _, err := pipe.Exec(ctx); err != nil {
		return nil, nil, fmt.Errorf("read the worst endpoints: %w", err)
	}
	failing = highest(n, failed.Val(), func(r *Ranked, score float64) { r.Failed = int64(score) })
	slow = highest(n, latencies.Val(), func(r *Ranked, score float64) { r.P95 = latencyOf(byte(score)) })
	return failing, slow, nil
}

// highest lists up to n subscribers with the highest scores, the highest first.
func highest(n int, ascending []redis.Z, set func(*Ranked, float64)) (all []Ranked) {
	for _, z := range slices.Backward(ascending[max(0, len(ascending)-n):]) {
		company, subscriber, _ := strings.Cut(z.Member.(string), "/")
		var r Ranked
		var failed error
		if r.Company, failed = uuid.Parse(company); failed == nil {
			if r.Subscriber, failed = uuid.Parse(subscriber); failed == nil {
				set(&r, z.Score)
				all = append(all, r)
			}
		}
	}
	return all
}
