package workqueue

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/dispatcher/schedule"
	"spendhook/internal/partition"
	"spendhook/internal/pipeline"
	"spendhook/internal/queues"
	"spendhook/internal/script"
)

const (
	lookTimeout = 5 * time.Second
	// suspectsMost is how many events of a company may have ended a lost owner: all that it may have had in memory.
	suspectsMost = 2048
	// lostCallsMost is how many ranges of calls with lost answers are remembered of a partition.
	lostCallsMost = 64
)

// shard is the work of the owned partitions of one Redis server. Each shard is served on its own, so that a shard that
// is down does not affect the others. Queue.mu guards the fields that change.
type shard struct {
	schedule *schedule.Schedule
	running  bool        // a goroutine gives turns
	budget   int         // deliveries of a round
	timer    *time.Timer // runs the schedule's timers; nil: none is set
	firesAt  time.Time

	wanted   map[int]bool // partitions to be looked at
	looking  bool         // a goroutine looks at partitions
	lookedAt time.Time    // when the owned partitions were last looked at
}

// owned is a partition that this replica owns and has loaded. Queue.mu guards it.
type owned struct {
	token     string
	server    string // run id of the Redis server when it was loaded
	shard     *shard
	elsewhere map[string]map[string]bool // events that former owners are matching, by token, <company>/<id>
	orderedAt time.Time                  // before this, ordered subscribers wait: attempts of a lost owner may be under way
	lostCalls []calls                    // those whose answers were lost, and perhaps ones of other partitions between them
	answered  bool                       // the answer of the last call was not lost
	unserved  []string                   // what its owner was told, and could not be served
}

// given is what this replica has begun under a token that it has given away. Queue.mu guards it.
type given struct {
	partition  int
	events     map[string]bool // <company>/<id>
	untold     []string        // those that are finished, and the next owner does not know
	telling    bool
	deliveries int
}

// shardAt finds or makes the shard at an address. Queue.mu is held.
func (q *Queue) shardAt(address string) *shard {
	s := q.shards[address]
	if s == nil {
		s = &shard{budget: roundBudget, lookedAt: q.now(), wanted: make(map[int]bool)}
		s.schedule = schedule.New(schedule.Options{MayStart: q.opts.Admission.MayStart, Learned: q.opts.Admission.Learned})
		q.shards[address] = s
	}
	return s
}

// shardOf is the shard of a loaded partition; nil: it is not loaded. Queue.mu is held.
func (q *Queue) shardOf(p int) *shard {
	if o := q.owned[p]; o != nil {
		return o.shard
	}
	return nil
}

// runLooks looks at the owned partitions every LookEvery, until ctx ends.
func (q *Queue) runLooks(ctx context.Context) {
	tick := time.NewTicker(q.opts.LookEvery)
	defer tick.Stop()
	for {
		q.forgetLost(ctx)
		q.tellGiven()
		q.lookAt(q.owner.Owned())
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// lookAt has partitions looked at that this replica owns. It does not wait.
func (q *Queue) lookAt(partitions []int) {
	groups, _ := partition.ByShard(q.looks, q.opts.Client, partitions, partition.Prefix) // a later look sees those without a known shard
	q.mu.Lock()
	defer q.mu.Unlock()
	for address, group := range groups {
		s := q.shardAt(address)
		for _, p := range group {
			s.wanted[p] = true
		}
		if !s.looking && q.looks.Err() == nil {
			s.looking = true
			q.background.Go(func() { q.runLook(s) })
		}
	}
}

// runLook looks at the wanted partitions of a shard until there are none.
func (q *Queue) runLook(s *shard) {
	for {
		var partitions []int
		q.locked(func() {
			partitions = slices.Sorted(maps.Keys(s.wanted))
			clear(s.wanted)
			s.looking = len(partitions) > 0 && q.looks.Err() == nil
		})
		if len(partitions) == 0 || q.looks.Err() != nil {
			return
		}
		q.look(q.looks, s, partitions)
	}
}

// look loads the partitions that are owned and not loaded, reads what the owner of the others was told, and keeps what
// the next owner needs.
func (q *Queue) look(ctx context.Context, s *shard, partitions []int) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	var todo []part
	q.locked(func() {
		for _, p := range partitions {
			token := q.owner.Token(p)
			o := q.owned[p]
			switch {
			case token == "":
			case o == nil || o.token != token:
				todo = append(todo, part{p, token})
			}
		}
	})
	err := errors.Join(q.load(ctx, s, todo), q.readTold(ctx, partitions), q.followFormer(ctx, partitions))
	served := map[*shard]bool{s: true} // and those with which partitions were loaded that have moved since then
	q.locked(func() {
		for _, p := range partitions {
			if of := q.shardOf(p); of != nil {
				served[of] = true
			}
		}
	})
	for of := range served {
		err = errors.Join(err, q.readUnsure(ctx, of), q.keep(ctx, of))
	}
	if err != nil && !q.owner.Refuses(err) && !errors.Is(err, context.Canceled) {
		q.opts.Logger.Error("partitions not served", "exception.message", err)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	for of := range served {
		if err == nil {
			of.lookedAt = q.now()
		}
		q.begin(of)
		q.arm(of)
	}
}

// part is a partition and the token of its owner.
type part struct {
	id    int
	token string
}

// load reads what waits in partitions that this replica has come to own.
func (q *Queue) load(ctx context.Context, s *shard, parts []part) error {
	if len(parts) == 0 {
		return nil
	}
	type found struct {
		active *redis.StringSliceCmd
		clock  *redis.SliceCmd
		begun  map[string]*redis.StringSliceCmd
	}
	read := make([]found, len(parts))
	due, err := pipeline.Each(ctx, q.opts.Client, parts, func(pipe redis.Pipeliner, p part) *redis.ZSliceCmd {
		f := &read[slices.Index(parts, p)]
		prefix := partition.Prefix(p.id)
		f.active, f.clock = pipe.SMembers(ctx, prefix+"active"), pipe.HMGet(ctx, queues.ClockKey(p.id), "last", "ahead")
		f.begun = make(map[string]*redis.StringSliceCmd)
		gone, working := q.owner.Former(p.id)
		for _, token := range append(gone, working...) {
			f.begun[token] = pipe.SMembers(ctx, prefix+"begun:"+token)
		}
		return pipe.ZRangeWithScores(ctx, queues.DueKey(p.id), 0, -1)
	})
	if err != nil {
		return err
	}
	for i, p := range parts {
		entries := make(map[string]time.Duration)
		companies := make(map[uuid.UUID]bool)
		now := q.workTime(p.id, read[i].clock.Val())
		for _, z := range due[i].Val() {
			member, _ := z.Member.(string)
			entries[member] = time.Duration(z.Score-float64(now)) * time.Millisecond
			companies[companyOf(member)] = true
		}
		for _, id := range read[i].active.Val() {
			companies[parseID(id)] = true
		}
		delete(companies, uuid.Nil)
		logs, err := q.logs(ctx, companies)
		if err != nil {
			return err
		}
		q.locked(func() { q.loaded(s, p, logs, entries, read[i].begun) })
	}
	return nil
}

// loaded notes what was read of a partition, unless it has another owner meanwhile. Queue.mu is held.
func (q *Queue) loaded(s *shard, p part, logs []companyLog, entries map[string]time.Duration, begun map[string]*redis.StringSliceCmd) {
	if q.owner.Token(p.id) != p.token {
		return
	}
	if q.owned[p.id] != nil {
		q.forget(p.id)
	}
	now, suspects := q.now(), 0
	o := &owned{token: p.token, server: q.owner.ServerRun(p.id), shard: s, elsewhere: make(map[string]map[string]bool)}
	if q.owner.TakenFromLost(p.id) {
		suspects, o.orderedAt = suspectsMost, now.Add(q.opts.AttemptTimeout+BeginWithin)
	}
	for token, refs := range begun {
		o.elsewhere[token] = make(map[string]bool)
		for _, ref := range refs.Val() {
			o.elsewhere[token][ref] = true
		}
	}
	q.owned[p.id] = o
	for _, l := range logs {
		s.schedule.Load(p.id, l.company, l.cursor, l.last, l.cost, l.last, suspects)
	}
	for member, wait := range entries {
		q.told(s, member, wait, now)
	}
	for company, log := range q.early[p.id] {
		if s.schedule.Has(company) {
			s.schedule.Events(company, log.last)
		} else {
			s.schedule.Load(p.id, company, log.cursor, log.last, log.cost, 0, 0)
		}
	}
	delete(q.early, p.id)
}

// forgetLost forgets the partitions that this replica does not own any more, or under another token, or is giving away.
func (q *Queue) forgetLost(ctx context.Context) {
	shards := make(map[*shard]bool)
	q.locked(func() {
		for p, o := range q.owned {
			if q.owner.Token(p) != o.token {
				shards[o.shard] = true
			}
		}
	})
	for s := range shards {
		ctx, cancel := context.WithTimeout(ctx, lookTimeout)
		_ = q.keep(ctx, s) // Redis refuses what this replica does not own
		cancel()
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	for p, o := range q.owned {
		if q.owner.Token(p) != o.token && shards[o.shard] {
			q.forget(p)
		}
	}
}

// companyLog is how far the log of a company goes, and how far it is matched.
type companyLog struct {
	company            uuid.UUID
	cursor, last, cost float64
}

// logs reads the logs of companies of one partition.
func (q *Queue) logs(ctx context.Context, companies map[uuid.UUID]bool) (all []companyLog, err error) {
	ids := make([]uuid.UUID, 0, len(companies))
	for id := range companies {
		ids = append(ids, id)
	}
	subs := make([]*redis.IntCmd, 0, len(ids))
	read, err := pipeline.Readable(ctx, q.opts.Client, ids, func(pipe redis.Pipeliner, id uuid.UUID) *redis.SliceCmd {
		subs = append(subs, pipe.HLen(ctx, partition.Key(id, "s:"+id.String())))
		return pipe.HMGet(ctx, partition.Key(id, "c:"+id.String()), "cursor", "at", "cost")
	})
	q.mu.Lock()
	defer q.mu.Unlock()
	for i, cmd := range read {
		v := cmd.Val()
		if len(v) != 3 { // its key is damaged: the company waits until it is mended
			q.unsure[ids[i]] = unsure{from: q.now().Add(damagedAgain), last: true}
			continue
		}
		cost := cmp.Or(parseFloat(v[2]), float64(subs[i].Val()-1)) // else one delivery to each subscriber
		all = append(all, companyLog{ids[i], parseFloat(v[0]), parseFloat(v[1]), cost})
	}
	return all, err
}

// companyOf is the company of a member of the due set or of what an owner was told.
func companyOf(member string) uuid.UUID {
	_, rest, _ := strings.Cut(member, ":")
	id, _, _ := strings.Cut(rest, "/")
	return parseID(id)
}

// told notes that something is to be served after a time. Queue.mu is held.
func (q *Queue) told(s *shard, member string, wait time.Duration, now time.Time) {
	kind, rest, _ := strings.Cut(member, ":")
	company, id, _ := strings.Cut(rest, "/")
	c := parseID(company)
	switch kind {
	case "e":
		s.schedule.Endpoint(c, parseID(id), now, wait)
	case "j":
		s.schedule.Job(c, parseID(id), now, wait)
	case "m":
		s.schedule.MatchAgain(c, id)
	}
}

// readTold reads what the owner of partitions was told, and has it served.
func (q *Queue) readTold(ctx context.Context, partitions []int) error {
	told, err := pipeline.Each(ctx, q.opts.Client, partitions, func(pipe redis.Pipeliner, p int) *redis.StringSliceCmd {
		return pipe.SMembers(ctx, partition.Prefix(p)+"told")
	})
	if err != nil {
		return err
	}
	for i, p := range partitions {
		members := told[i].Val()
		q.locked(func() {
			if o := q.owned[p]; o != nil {
				members, o.unserved = append(members, o.unserved...), nil
				slices.Sort(members)
				members = slices.Compact(members)
			}
		})
		if len(members) > 0 {
			err = errors.Join(err, q.serveTold(ctx, p, members))
		}
	}
	return err
}

// unsure is a company whose log is to be read from a time on.
type unsure struct {
	from time.Time
	last bool // the next time is the last
}

// unsureAgain is how long after it was read a log is read once more: a call that was under way may have run since then.
const unsureAgain = 5 * time.Second

// damagedAgain is how long after a damaged key of a company was found its log is read again.
const damagedAgain = time.Second

// readUnsure reads the logs of the companies of a shard again whose events may have been accepted, and what waits of
// those that were not loaded.
func (q *Queue) readUnsure(ctx context.Context, s *shard) error {
	companies := make(map[uuid.UUID]bool) // whether they are loaded
	q.locked(func() {
		for c, u := range q.unsure {
			if q.shardOf(partition.Of(c)) == s && !q.now().Before(u.from) {
				companies[c] = s.schedule.Has(c)
			}
		}
	})
	if len(companies) == 0 {
		return nil
	}
	logs, err := q.logs(ctx, companies)
	if err != nil {
		return err
	}
	waiting := make(map[int][]string)
	for _, l := range logs {
		if p := partition.Of(l.company); !companies[l.company] && waiting[p] == nil {
			entries, err := q.opts.Client.ZRange(ctx, queues.DueKey(p), 0, -1).Result()
			if err != nil {
				return err
			}
			waiting[p] = slices.DeleteFunc(entries, func(m string) bool {
				loaded, listed := companies[companyOf(m)]
				return loaded || !listed
			})
		}
	}
	q.locked(func() {
		for _, l := range logs {
			switch u, still := q.unsure[l.company]; {
			case u.last:
				delete(q.unsure, l.company)
			case still:
				q.unsure[l.company] = unsure{from: q.now().Add(unsureAgain), last: true}
			}
			if p := partition.Of(l.company); q.shardOf(p) == s {
				s.schedule.Load(p, l.company, l.cursor, l.last, l.cost, l.last, 0)
			}
		}
		q.begin(s)
	})
	for p, entries := range waiting {
		if len(entries) > 0 {
			err = errors.Join(err, q.serveTold(ctx, p, entries))
		}
	}
	return err
}

// serveTold removes what the owner of a partition was told before it reads what that is about: what is told
// meanwhile is read by the next look.
func (q *Queue) serveTold(ctx context.Context, p int, members []string) error {
	token := ""
	q.locked(func() {
		if o := q.owned[p]; o != nil {
			token = o.token
		}
	})
	args := []any{partition.Prefix(p), token}
	companies := make(map[uuid.UUID]bool)
	for _, m := range members {
		args = append(args, m)
		companies[companyOf(m)] = true
	}
	delete(companies, uuid.Nil)
	jobs := slices.DeleteFunc(slices.Clone(members), func(m string) bool { return m[0] != 'j' })
	var logs []companyLog
	var scores []*redis.FloatCmd
	var clock *redis.SliceCmd
	call := &script.Call{Script: untellScript, Keys: queues.Keys(p), Args: args}
	err := script.Run(ctx, q.opts.Client, call)
	if err == nil && call.Reply() == int64(0) {
		return nil // another replica owns the partition, or this one has not loaded it yet
	}
	if err == nil {
		logs, err = q.logs(ctx, companies)
	}
	if err == nil {
		scores, err = pipeline.Readable(ctx, q.opts.Client, jobs, func(pipe redis.Pipeliner, m string) *redis.FloatCmd {
			clock = pipe.HMGet(ctx, queues.ClockKey(p), "last", "ahead")
			return pipe.ZScore(ctx, queues.DueKey(p), m)
		})
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	o := q.owned[p]
	switch {
	case o == nil: // it will be loaded
		return err
	case err != nil:
		o.unserved = append(o.unserved, members...)
		return err
	}
	s, now := o.shard, q.now()
	for _, l := range logs {
		s.schedule.Load(p, l.company, l.cursor, l.last, l.cost, 0, 0)
	}
	for i, m := range jobs {
		wait := time.Duration(0) // also for one that has just ended, and has more to do since then
		if at, err := scores[i].Result(); err == nil {
			wait = time.Duration(at-float64(q.workTime(p, clock.Val()))) * time.Millisecond
		}
		q.told(s, m, wait, now)
	}
	for _, m := range members {
		switch m[0] {
		case 'e':
			_, rest, _ := strings.Cut(m, "/")
			s.schedule.Changed(companyOf(m), parseID(rest))
		case 'm':
			q.told(s, m, 0, now)
		}
	}
	q.begin(s)
	q.arm(s)
	return nil
}

// workTime is the time of a partition's work in unix ms, as the function work_time of the scripts, by the fields
// last and ahead of the partition's clock.
func (q *Queue) workTime(p int, noted []any) int64 {
	if len(noted) < 2 {
		return q.owner.Clock(p).UnixMilli()
	}
	last, _ := strconv.ParseInt(text(noted[0]), 10, 64) // a missing one is 0
	ahead, _ := strconv.ParseInt(text(noted[1]), 10, 64)
	return max(last, q.owner.Clock(p).UnixMilli()+ahead)
}

// followFormer notes what former owners of partitions have finished of what they had begun, and begins again what
// replicas that are lost had begun.
func (q *Queue) followFormer(ctx context.Context, partitions []int) error {
	var former []part
	lost := make(map[part]bool)
	for _, p := range partitions {
		gone, working := q.owner.Former(p)
		for _, token := range gone {
			former = append(former, part{p, token})
			lost[part{p, token}] = true
		}
		for _, token := range working {
			former = append(former, part{p, token})
		}
	}
	if len(former) == 0 {
		return nil
	}
	working := make([]*redis.BoolCmd, len(former))
	begun, err := pipeline.Each(ctx, q.opts.Client, former, func(pipe redis.Pipeliner, p part) *redis.StringSliceCmd {
		prefix := partition.Prefix(p.id)
		if lost[p] {
			pipe.SRem(ctx, prefix+"handover", p.token)
			pipe.Del(ctx, prefix+"begun:"+p.token)
		}
		working[slices.Index(former, p)] = pipe.SIsMember(ctx, prefix+"handover", p.token)
		return pipe.SMembers(ctx, prefix+"begun:"+p.token)
	})
	if err != nil {
		return err
	}
	for i, p := range former {
		still := make(map[string]bool)
		for _, ref := range begun[i].Val() {
			still[ref] = true
		}
		finished := !working[i].Val()
		q.locked(func() { q.followed(p, still, finished) })
		if finished {
			members, err := q.opts.Client.ZRange(ctx, queues.DueKey(p.id), 0, -1).Result()
			if err != nil {
				return err
			}
			q.owner.Finished(p.id, p.token)
			if err := q.serveEndpoints(ctx, p.id, members); err != nil {
				return err
			}
		}
	}
	return nil
}

// serveEndpoints serves endpoints that have something that waits: a former owner has left deliveries. entries are all
// entries of the due set.
func (q *Queue) serveEndpoints(ctx context.Context, p int, entries []string) error {
	endpoints := slices.DeleteFunc(entries, func(m string) bool { return m[0] != 'e' })
	if len(endpoints) == 0 {
		return nil
	}
	return q.serveTold(ctx, p, endpoints)
}

// followed has the events matched that a former owner no longer matches. Queue.mu is held.
func (q *Queue) followed(p part, still map[string]bool, finished bool) {
	o := q.owned[p.id]
	if o == nil {
		return
	}
	for ref := range o.elsewhere[p.token] {
		if !still[ref] || finished {
			delete(o.elsewhere[p.token], ref)
			company, id, _ := strings.Cut(ref, "/")
			o.shard.schedule.MatchAgain(parseID(company), id)
		}
	}
	if finished {
		delete(o.elsewhere, p.token)
	}
}

// keep writes what the next owners need to know.
func (q *Queue) keep(ctx context.Context, s *shard) error {
	var changes []schedule.Change
	of := make(map[int]*owned)
	now := q.now()
	byPart := make(map[int][]schedule.Change)
	q.locked(func() {
		changes = s.schedule.Changes()
		for _, c := range changes {
			if o := q.owned[c.Partition]; o != nil {
				of[c.Partition] = o
				byPart[c.Partition] = append(byPart[c.Partition], c)
			}
		}
	})
	var calls []*script.Call
	var kept [][]schedule.Change
	for p, list := range byPart {
		for chunk := range slices.Chunk(list, 100) {
			args := []any{partition.Prefix(p), of[p].token, of[p].server}
			for _, c := range chunk {
				args = append(args, c.Company.String(), place(c.Cursor), strconv.FormatFloat(c.Cost, 'g', 6, 64), len(c.Matched), len(c.Rates))
				for _, id := range c.Matched {
					args = append(args, id)
				}
				for _, r := range c.Rates {
					args = append(args, r.Endpoint.String(), r.Due.Sub(now).Milliseconds())
				}
			}
			calls = append(calls, &script.Call{Script: keepScript, Keys: queues.Keys(p), Args: args})
			kept = append(kept, chunk)
		}
	}
	if len(calls) == 0 {
		return nil
	}
	err := script.Run(ctx, q.opts.Client, calls...)
	q.mu.Lock()
	defer q.mu.Unlock()
	for i, call := range calls {
		reply, failed := call.Result()
		for _, c := range kept[i] {
			if failed != nil || reply == int64(0) {
				s.schedule.Unwritten(c)
			} else {
				s.schedule.Kept(c)
			}
		}
	}
	return err
}

// place formats a place in a log for Redis.
func place(at float64) string { return strconv.FormatFloat(at, 'f', -1, 64) }

// arm sets the timer of a shard's schedule, and begins what is due. Queue.mu is held.
func (q *Queue) arm(s *shard) {
	next := s.schedule.Fire(q.now())
	q.begin(s)
	if next.IsZero() || s.timer != nil && !next.Before(s.firesAt) && s.firesAt.After(q.now()) || q.ctx.Err() != nil {
		return
	}
	if s.timer != nil {
		s.timer.Stop()
	}
	s.firesAt = next
	s.timer = time.AfterFunc(max(0, next.Sub(q.now())), func() { q.locked(func() { s.timer = nil; q.arm(s) }) })
}

// lag is the time since the owned partitions were last looked at, in the shard where that is longest; 0 when this
// replica owns none.
func (q *Queue) lag(now time.Time) (longest time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, o := range q.owned {
		longest = max(longest, now.Sub(o.shard.lookedAt))
	}
	return longest
}
