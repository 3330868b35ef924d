package dispatcher

import (
	"context"
	_ "embed" // the scripts
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/events"
	"spendhook/internal/script"
	"spendhook/subscribers"
)

var (
	//go:embed lua/load.lua
	loadSource string
	//go:embed lua/begin.lua
	beginSource string
	//go:embed lua/claim.lua
	claimSource string
	//go:embed lua/reclaim.lua
	reclaimSource string
	//go:embed lua/giveback.lua
	givebackSource string
	//go:embed lua/beat.lua
	beatSource string
)

var (
	loadScript     = redis.NewScript(loadSource)
	beginScript    = redis.NewScript(beginSource)
	claimScript    = redis.NewScript(claimSource)
	reclaimScript  = redis.NewScript(reclaimSource)
	givebackScript = redis.NewScript(givebackSource)
	beatScript     = redis.NewScript(beatSource)
)

// Store keeps deliveries in Redis. It is safe for concurrent use.
type Store struct {
	client redis.UniversalClient
	policy Policy
}

// NewStore returns a store that keeps deliveries as long as policy says.
func NewStore(client redis.UniversalClient, policy Policy) *Store {
	return &Store{client: client, policy: policy}
}

// settleSlack is how much longer than its event a delivery is kept, so that it
// never goes first.
const settleSlack = 15 * time.Minute

// loadBudget bounds the bytes of bodies that one load brings into memory.
const loadBudget = 2 << 20

// loadedEvent is an event that waits for its dispatch.
type loadedEvent struct {
	ref     events.Ref
	at      *content // nil when raw has it
	raw     string   // the event as events keeps it; "" when it has expired
	version int64    // of the company's subscribers
	known   []string // subscribers that have a delivery of it already
}

// content fails when the event is damaged.
func (e *loadedEvent) content() (*content, error) {
	if e.at != nil {
		return e.at, nil
	}
	s, err := events.ParseStored(e.ref, e.raw)
	if err != nil {
		return nil, err
	}
	return &content{kind: s.Type, accepted: s.AcceptedAt, body: s.Body}, nil
}

// load finds out which of refs are to be dispatched, in one round trip, noting
// in the replica's in-flight hash that token stands for them. at holds those
// that are at hand, in order; the others are read. Settled ones are left out;
// rest is what did not fit the budget.
func (s *Store) load(ctx context.Context, replica, token string, refs []events.Ref, at []*content) (found []loadedEvent, rest []events.Ref, err error) {
	list := make([]loadedEvent, 0, len(refs))
	for i, c := range at {
		list = append(list, loadedEvent{ref: refs[i], at: c})
	}
	groups := script.Groups(s.client, list, dispatchChunk, func(e loadedEvent) int { return events.Partition(e.ref.Company) })
	calls := make([]*script.Call, len(groups))
	for i, g := range groups {
		calls[i] = loadCall(g)
	}
	note := func(p redis.Pipeliner) { p.HSet(ctx, inFlightKey(replica), token, joinRefs(refs)) }
	if err := script.Run(ctx, s.client, note, calls...); err != nil {
		return nil, nil, fmt.Errorf("load events: %w", err)
	}
	for i, g := range groups {
		f, r, err := readLoaded(g, calls[i].Reply())
		if err != nil {
			return nil, nil, err
		}
		found, rest = append(found, f...), append(rest, r...)
	}
	return found, rest, nil
}

func loadCall(group []loadedEvent) *script.Call {
	keys := make([]string, 0, 2+2*len(group))
	numbers := make(map[uuid.UUID]int, 1) // of companies
	for _, e := range group {
		if company := e.ref.Company; numbers[company] == 0 {
			numbers[company] = len(numbers) + 1
			keys = append(keys, events.OpenKey(events.Partition(company)), subscribers.CompanyKey(company))
		}
	}
	args := append(make([]any, 0, 2+3*len(group)), loadBudget, len(numbers))
	var bodies []string // keys of those that are wanted
	for _, e := range group {
		keys = append(keys, deliveriesKey(e.ref))
		if e.at == nil {
			bodies = append(bodies, events.EventKey(e.ref))
		}
		args = append(args, numbers[e.ref.Company], flag(e.at == nil), e.ref.String())
	}
	return &script.Call{Script: loadScript, Keys: append(keys, bodies...), Args: args}
}

func readLoaded(group []loadedEvent, reply any) (found []loadedEvent, rest []events.Ref, err error) {
	list, ok := reply.([]any)
	if !ok || len(list) != len(group) {
		return nil, nil, errors.New("load events: unexpected reply")
	}
	for i, e := range group {
		switch v := list[i].(type) {
		case []any: // waits for its dispatch
			e.raw, _ = v[0].(string)
			e.known, e.version = stringsOf(v[1]), parseVersion(v[2])
			found = append(found, e)
		case int64:
			if v == 1 { // over budget
				rest = append(rest, e.ref)
			}
		}
	}
	return found, rest, nil
}

// begun is a delivery whose attempt has begun.
type begun struct {
	ref     ref
	rec     *record
	raw     string // the event as events keeps it; "" when it has expired
	version int64  // of the company's subscribers
}

// begin marks deliveries as being attempted, in one round trip. stamp is the
// moment the clock handed them out; what was handed out again since, or is
// settled, is left out.
func (s *Store) begin(ctx context.Context, replica, token string, stamp int64, refs []ref) ([]begun, error) {
	calls := make([]*script.Call, len(refs))
	texts := make([]string, len(refs))
	for i, r := range refs {
		texts[i] = r.String()
		calls[i] = &script.Call{
			Script: beginScript,
			Keys: []string{
				events.OpenKey(events.Partition(r.Company)), deliveriesKey(r.Ref),
				events.EventKey(r.Ref), subscribers.CompanyKey(r.Company),
			},
			Args: []any{texts[i], r.Subscriber.String(), stamp},
		}
	}
	note := func(p redis.Pipeliner) { p.HSet(ctx, inFlightKey(replica), token, strings.Join(texts, " ")) }
	if err := script.Run(ctx, s.client, note, calls...); err != nil {
		return nil, fmt.Errorf("begin attempts: %w", err)
	}
	var out []begun
	for i, r := range refs {
		v, _ := calls[i].Reply().([]any)
		if len(v) != 3 {
			continue
		}
		text, _ := v[0].(string)
		rec, err := decodeRecord(text)
		if err != nil {
			return nil, fmt.Errorf("begin %s: %w", r, err)
		}
		raw, _ := v[1].(string)
		out = append(out, begun{ref: r, rec: rec, raw: raw, version: parseVersion(v[2])})
	}
	return out, nil
}

// claim hands out what is due, at most limit of each partition.
func (s *Store) claim(ctx context.Context, now time.Time, limit int) ([]string, error) {
	return s.everyPartition(ctx, func(p int) *script.Call {
		return &script.Call{
			Script: claimScript,
			Keys:   []string{delayedKey(p), events.OpenKey(p)},
			Args:   []any{now.UnixMilli(), limit},
		}
	})
}

// handedOut is an open reference and the stamp of its hand-out, unix ms.
type handedOut struct {
	ref   string
	stamp int64
}

// openUntil reads references that were handed out until then, the oldest of
// each partition first.
func (s *Store) openUntil(ctx context.Context, until time.Time, limit int64) ([]handedOut, error) {
	return s.open(ctx, &redis.ZRangeBy{Min: "-inf", Max: strconv.FormatInt(until.UnixMilli(), 10), Count: limit})
}

// openFrom is openUntil for those handed out from then on.
func (s *Store) openFrom(ctx context.Context, from time.Time, limit int64) ([]handedOut, error) {
	return s.open(ctx, &redis.ZRangeBy{Min: strconv.FormatInt(from.UnixMilli(), 10), Max: "+inf", Count: limit})
}

func (s *Store) open(ctx context.Context, by *redis.ZRangeBy) ([]handedOut, error) {
	pipe := s.client.Pipeline()
	var parts [events.Partitions]*redis.ZSliceCmd
	for p := range parts {
		parts[p] = pipe.ZRangeByScoreWithScores(ctx, events.OpenKey(p), by)
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return nil, fmt.Errorf("read open references: %w", err)
	}
	var out []handedOut
	for _, cmd := range parts {
		for _, z := range cmd.Val() {
			ref, _ := z.Member.(string)
			out = append(out, handedOut{ref: ref, stamp: int64(z.Score)})
		}
	}
	return out, nil
}

// replicas is those that live or whose work has not been taken over.
func (s *Store) replicas(ctx context.Context) ([]string, error) {
	ids, err := s.client.ZRange(ctx, replicasKey, 0, -1).Result()
	if err != nil {
		return nil, fmt.Errorf("list replicas: %w", err)
	}
	return ids, nil
}

// noted is what any replica has noted as in flight.
func (s *Store) noted(ctx context.Context) (map[string]bool, error) {
	replicas, err := s.replicas(ctx)
	if err != nil {
		return nil, err
	}
	out := make(map[string]bool)
	for _, replica := range replicas {
		for cursor := uint64(0); ; {
			refs, next, err := s.inFlight(ctx, replica, cursor)
			if err != nil {
				return nil, err
			}
			for _, r := range refs {
				out[r] = true
			}
			if cursor = next; cursor == 0 {
				break
			}
		}
	}
	return out, nil
}

// reclaim stamps anew the open references that still have the stamp given, and
// returns them: they are the caller's to hand out.
func (s *Store) reclaim(ctx context.Context, now time.Time, lost []handedOut) ([]string, error) {
	groups := make(map[int][]any)
	for _, h := range lost {
		p, err := partitionOf(h.ref)
		if err != nil {
			return nil, err
		}
		groups[p] = append(groups[p], h.ref, h.stamp)
	}
	calls := make([]*script.Call, 0, len(groups))
	for p, g := range groups {
		for part := range slices.Chunk(g, reclaimArgs) {
			calls = append(calls, &script.Call{
				Script: reclaimScript,
				Keys:   []string{events.OpenKey(p)},
				Args:   append([]any{now.UnixMilli()}, part...),
			})
		}
	}
	if err := script.Run(ctx, s.client, nil, calls...); err != nil {
		return nil, fmt.Errorf("reclaim lost work: %w", err)
	}
	var out []string
	for _, c := range calls {
		out = append(out, stringsOf(c.Reply())...)
	}
	return out, nil
}

// reclaimArgs is how many references and stamps one script call takes; even.
const reclaimArgs = 1000

func (s *Store) everyPartition(ctx context.Context, call func(p int) *script.Call) ([]string, error) {
	calls := make([]*script.Call, events.Partitions)
	for p := range calls {
		calls[p] = call(p)
	}
	if err := script.Run(ctx, s.client, nil, calls...); err != nil {
		return nil, err
	}
	var out []string
	for _, c := range calls {
		out = append(out, stringsOf(c.Reply())...)
	}
	return out, nil
}

// giveBack makes references due at once, where they are still open.
func (s *Store) giveBack(ctx context.Context, now time.Time, refs []string) (int, error) {
	groups := make(map[int][]any)
	for _, r := range refs {
		p, err := partitionOf(r)
		if err != nil {
			return 0, err
		}
		groups[p] = append(groups[p], r)
	}
	calls := make([]*script.Call, 0, len(groups))
	for p, g := range groups {
		calls = append(calls, &script.Call{
			Script: givebackScript,
			Keys:   []string{events.OpenKey(p), delayedKey(p)},
			Args:   append([]any{now.UnixMilli()}, g...),
		})
	}
	if err := script.Run(ctx, s.client, nil, calls...); err != nil {
		return 0, fmt.Errorf("give work back: %w", err)
	}
	n := 0
	for _, c := range calls {
		v, _ := c.Reply().(int64)
		n += int(v)
	}
	return n, nil
}

// beat says that this replica lives, and returns those silent for longer than silence.
func (s *Store) beat(ctx context.Context, replica string, silence time.Duration) ([]string, error) {
	v, err := beatScript.Run(ctx, s.client, []string{replicasKey}, replica, silence.Milliseconds()).StringSlice()
	if err != nil {
		return nil, fmt.Errorf("say that this replica lives: %w", err)
	}
	return v, nil
}

// inFlight reads what a replica noted as in flight, a page at a time.
func (s *Store) inFlight(ctx context.Context, replica string, cursor uint64) (refs []string, next uint64, err error) {
	pairs, next, err := s.client.HScan(ctx, inFlightKey(replica), cursor, "", 100).Result()
	if err != nil {
		return nil, 0, fmt.Errorf("read work in flight: %w", err)
	}
	for i := 1; i < len(pairs); i += 2 {
		refs = append(refs, strings.Fields(pairs[i])...)
	}
	return refs, next, nil
}

// lockTakeover reports whether this replica is the one to take over from dead.
func (s *Store) lockTakeover(ctx context.Context, dead, replica string) (bool, error) {
	err := s.client.SetArgs(ctx, takeoverKey(dead), replica, redis.SetArgs{Mode: "NX", TTL: takeoverLock}).Err()
	if errors.Is(err, redis.Nil) {
		return false, nil
	}
	return err == nil, err
}

// takeoverLock is how long a takeover may take before another replica tries.
const takeoverLock = 10 * time.Second

// forget removes a replica that left nothing in flight.
func (s *Store) forget(ctx context.Context, replica string) error {
	pipe := s.client.Pipeline()
	pipe.Del(ctx, inFlightKey(replica))
	pipe.ZRem(ctx, replicasKey, replica)
	pipe.Del(ctx, takeoverKey(replica))
	_, err := pipe.Exec(ctx)
	return err
}

// gauges is the state of the store that metrics show.
type gauges struct {
	open, delayed, dead int64
	oldest              time.Time // enqueue time of the oldest open reference; zero when none
}

func (s *Store) gauges(ctx context.Context) (gauges, error) {
	pipe := s.client.Pipeline()
	var open, delayed, dead [events.Partitions]*redis.IntCmd
	var oldest [events.Partitions]*redis.ZSliceCmd
	for p := range events.Partitions {
		open[p] = pipe.ZCard(ctx, events.OpenKey(p))
		delayed[p] = pipe.ZCard(ctx, delayedKey(p))
		dead[p] = pipe.ZCard(ctx, deadKey(p))
		oldest[p] = pipe.ZRangeWithScores(ctx, events.OpenKey(p), 0, 0)
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return gauges{}, fmt.Errorf("count deliveries: %w", err)
	}
	var g gauges
	for p := range events.Partitions {
		g.open += open[p].Val()
		g.delayed += delayed[p].Val()
		g.dead += dead[p].Val()
		for _, z := range oldest[p].Val() {
			if at := msTime(int64(z.Score)); g.oldest.IsZero() || at.Before(g.oldest) {
				g.oldest = at
			}
		}
	}
	return g, nil
}

// purgeDead drops dead letters that are past their retention from the count,
// at most limit of each partition; their records expire by themselves.
func (s *Store) purgeDead(ctx context.Context, now time.Time, limit int64) error {
	before := strconv.FormatInt(now.Add(-s.policy.DeadRetention).UnixMilli(), 10)
	pipe := s.client.Pipeline()
	var old [events.Partitions]*redis.StringSliceCmd
	for p := range old {
		old[p] = pipe.ZRangeByScore(ctx, deadKey(p), &redis.ZRangeBy{Min: "-inf", Max: before, Count: limit})
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return fmt.Errorf("find old dead letters: %w", err)
	}
	pipe = s.client.Pipeline()
	for p, cmd := range old {
		if refs := cmd.Val(); len(refs) > 0 {
			pipe.ZRem(ctx, deadKey(p), anys(refs)...)
		}
	}
	if pipe.Len() == 0 {
		return nil
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return fmt.Errorf("purge dead letters: %w", err)
	}
	return nil
}

func joinRefs(refs []events.Ref) string {
	texts := make([]string, len(refs))
	for i, r := range refs {
		texts[i] = r.String()
	}
	return strings.Join(texts, " ")
}

// partitionOf is the partition of any reference: event, delivery or job.
func partitionOf(text string) (int, error) {
	company, _, _ := strings.Cut(strings.TrimPrefix(text, jobPrefix), "/")
	c, err := uuid.Parse(company)
	if err != nil {
		return 0, fmt.Errorf("reference %q: %w", text, err)
	}
	return events.Partition(c), nil
}

func parseVersion(v any) int64 {
	text, _ := v.(string)
	n, _ := strconv.ParseInt(text, 10, 64) // an absent version is 0
	return n
}

func stringsOf(v any) []string {
	list, _ := v.([]any)
	out := make([]string, 0, len(list))
	for _, e := range list {
		if s, ok := e.(string); ok {
			out = append(out, s)
		}
	}
	return out
}

func anys(texts []string) []any {
	out := make([]any, len(texts))
	for i, t := range texts {
		out[i] = t
	}
	return out
}

func isNil(err error) bool { return errors.Is(err, redis.Nil) }
