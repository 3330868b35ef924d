package owner

import (
	"context"
	"crypto/sha256"
	_ "embed" // the scripts
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"spendhook/internal/partition"
	"spendhook/internal/pipeline"
	"spendhook/internal/queues"
	"spendhook/internal/script"
)

// Another replica is lost when this one made lostHeartbeats heartbeats in a row without seeing a new one
// of it. Heartbeats are counted, not time: while Redis answers no replica, no replica becomes lost.
const (
	lostHeartbeats = 6
	// extraHeartbeats are added to lostHeartbeats after a heartbeat of this replica failed or was slow:
	// the other replicas may take longer to reach Redis again. They are added once: on a machine that is
	// always busy, no replica would become lost otherwise.
	extraHeartbeats = 10
	slowHeartbeat   = time.Second
)

const (
	beatTimeout = 5 * time.Second
	// locateEvery is the number of heartbeats after which the shards of the partitions are located again.
	locateEvery = 4
)

var (
	//go:embed lua/heartbeat.lua
	heartbeatSource string
	//go:embed lua/own.lua
	ownSource string

	heartbeatScript = newScript(heartbeatSource)
	ownScript       = newScript(ownSource)
	// leaveScript does not check the stored format: a replica that cannot read it leaves too.
	leaveScript = redis.NewScript("#!lua flags=allow-oom\nreturn redis.call('SADD', KEYS[1], ARGV[1])")
)

// newScript makes a script that Redis runs even at its memory limit. It must first call check.
func newScript(source string) *redis.Script {
	return redis.NewScript("#!lua flags=allow-oom\n" + partition.FormatLua() + source)
}

// replicasKey is the sorted set of the last heartbeats in a shard. p is the shard's first partition.
func replicasKey(p int) string { return partition.Prefix(p) + "replicas" }

// readsKey is the hash of the stored formats that the replicas of replicasKey can read.
func readsKey(p int) string { return partition.Prefix(p) + "reads" }

// leavingKey is the set of the replicas of replicasKey that own nothing more.
func leavingKey(p int) string { return partition.Prefix(p) + "leaving" }

// ownerKey is the token of the owner of a partition.
func ownerKey(p int) string { return partition.Prefix(p) + "owner" }

// shard is one Redis server. A replica sends each shard its own heartbeats, so that a shard that is down
// does not affect the others. Owner.mu guards the fields that change.
type shard struct {
	partitions []int // does not change

	beating   sync.Mutex        // held during a heartbeat
	announced bool              // the shard has a heartbeat of this replica
	countedAt time.Time         // when heartbeats were last counted
	ahead     time.Duration     // of Redis's clock, compared with this replica's
	seen      map[string]*other // the other replicas, by run
}

// other is another replica, as seen in one shard.
type other struct {
	at       string // its last heartbeat, unix ms of Redis's clock; "": none was seen
	missed   int    // heartbeats of this replica since then; starts below 0 to allow more of them
	extended bool   // extraHeartbeats were added since then
	leaving  bool   // it owns nothing more
}

// isAlive reports whether a run works on what it has begun, as far as this replica knows.
func (s *shard) isAlive(run, self string) bool {
	o := s.seen[run]
	return run == self || o == nil || o.missed < lostHeartbeats
}

// isServing reports whether a run may own partitions. It is false for an unknown run.
func (s *shard) isServing(run string) bool {
	o := s.seen[run]
	return o != nil && o.missed < lostHeartbeats && !o.leaving
}

func (o *Owner) listShards() (all []*shard) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, s := range o.shards {
		all = append(all, s)
	}
	return all
}

// locate finds the shard of each partition. It makes a new shard when the partitions of one have
// changed: the shard may keep its heartbeats in another key, so counting starts again.
func (o *Owner) locate(ctx context.Context) error {
	groups, err := partition.ByShard(ctx, o.opts.Client, partition.All(), partition.Prefix)
	if err != nil {
		return err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for address, s := range o.shards {
		if !slices.Equal(s.partitions, groups[address]) {
			delete(o.shards, address)
		}
	}
	for address, partitions := range groups {
		if o.shards[address] == nil {
			s := &shard{partitions: partitions, seen: make(map[string]*other)}
			o.shards[address] = s
			for _, p := range partitions {
				o.places[p].shard = s
			}
		}
	}
	return nil
}

// runBeats sends heartbeats until ctx ends or the stored format is refused.
func (o *Owner) runBeats(ctx context.Context) {
	tick := time.NewTicker(o.opts.Every)
	defer tick.Stop()
	var beats sync.WaitGroup
	defer beats.Wait()
	for n := 1; ; n++ {
		select {
		case <-tick.C:
		case <-o.now:
		case <-ctx.Done():
			return
		}
		if o.Refused() != nil { // other replicas may read the stored format
			_ = o.Leave(ctx) // they see the announcement, or the loss of heartbeats
			return
		}
		if n%locateEvery == 0 {
			if err := o.locate(ctx); err != nil && ctx.Err() == nil {
				o.opts.Logger.Error("shards of the partitions not found", "exception.message", err)
			}
		}
		for _, s := range o.listShards() {
			beats.Go(func() {
				if !s.beating.TryLock() {
					return
				}
				defer s.beating.Unlock()
				if err := o.beat(ctx, s); err != nil && !o.Refuses(err) && ctx.Err() == nil {
					o.opts.Logger.Error("heartbeat failed", "exception.message", err)
				}
			})
		}
	}
}

// Refuses reports whether err says that this replica cannot read the stored format. If so, the replica
// leaves all partitions to others.
func (o *Owner) Refuses(err error) bool {
	format, ok := errors.AsType[*partition.FormatError](err)
	if ok && o.refused.CompareAndSwap(nil, format) {
		o.opts.Logger.Error("stored format not readable, owning nothing more", "exception.message", format)
		o.Look()
	}
	return ok
}

// beat writes a heartbeat, counts those of the others, reads the owners of the shard's partitions, and
// takes and gives away partitions.
func (o *Owner) beat(ctx context.Context, s *shard) error {
	ctx, cancel := context.WithTimeout(ctx, beatTimeout)
	defer cancel()
	p := s.partitions[0]
	began := time.Now() //nolint:forbidigo // for the clock of Redis, and to recognise a slow heartbeat
	leaving := false
	o.locked(func() { leaving = o.leaving })
	call := &script.Call{
		Script: heartbeatScript, Keys: []string{replicasKey(p), queues.AbsentKey(p)}, Args: []any{partition.Prefix(p), o.run, leaving},
	}
	err := script.Run(ctx, o.opts.Client, call)
	var owners []*redis.StringCmd
	if err == nil {
		owners, err = pipeline.Readable(ctx, o.opts.Client, s.partitions, func(pipe redis.Pipeliner, p int) *redis.StringCmd {
			return pipe.Get(ctx, ownerKey(p))
		})
	}
	if err != nil || time.Since(began) > slowHeartbeat { //nolint:forbidigo // as above
		o.locked(s.waitLonger)
	}
	if err != nil {
		return fmt.Errorf("write heartbeat: %w", err)
	}
	reply, _ := call.Reply().([]any)
	if o.replaced(p, text(reply[1])) { // or only this partition has moved to another server
		if err := o.locate(ctx); err != nil {
			return fmt.Errorf("find the shards of the partitions: %w", err)
		}
	}
	var changes []change
	o.locked(func() {
		if !slices.Contains(slices.Collect(maps.Values(o.shards)), s) { // the next heartbeat is to the new shards
			return
		}
		for i, p := range s.partitions {
			o.read(p, owners[i].Val())
		}
		first := !s.announced
		o.count(s, call.Reply(), began)
		changes = o.changes(s, first)
	})
	o.removeLost(ctx, s)
	changed, err := o.change(ctx, changes)
	if len(changed) > 0 {
		o.opts.Changed(changed)
	}
	if err != nil && !o.Refuses(err) && ctx.Err() == nil { // the next heartbeat tries again
		o.opts.Logger.Error("partitions not taken or given away", "exception.message", err)
	}
	return o.Refused()
}

// locked calls f while it holds Owner.mu.
func (o *Owner) locked(f func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	f()
}

// waitLonger lets extraHeartbeats of this replica pass before other replicas can miss any. A lost replica
// stays lost until it sends a heartbeat.
func (s *shard) waitLonger() {
	for _, of := range s.seen {
		if !of.extended && of.missed < lostHeartbeats {
			of.missed, of.extended = -extraHeartbeats, true
		}
	}
}

// read notes the token of a partition's owner, as Redis has it.
func (o *Owner) read(p int, stored string) {
	place := &o.places[p]
	place.stored = stored
	if place.token != "" && place.token != stored { // a failover forgot it, or another replica has taken over
		place.token = ""
		o.metrics.lost.Inc()
	}
}

// count reads the answer of the heartbeat script. A heartbeat that Look caused counts nothing.
func (o *Owner) count(s *shard, reply any, asked time.Time) {
	one := 0
	if asked.Sub(s.countedAt) >= o.opts.Every*3/4 {
		one, s.countedAt = 1, asked
	}
	list, _ := reply.([]any)
	now, _ := list[0].(int64)
	s.ahead = time.UnixMilli(now).Sub(asked)
	o.served(s, text(list[1]))
	before := s.seen
	s.seen = make(map[string]*other)
	for i := 2; i+2 < len(list); i += 3 {
		run, at, leaving := text(list[i]), text(list[i+1]), text(list[i+2]) == "1"
		if run == o.run {
			continue
		}
		of := &other{at: at, leaving: leaving}
		if was := before[run]; was != nil && was.at == at {
			of.missed, of.extended = was.missed+one, was.extended
		} else if was != nil {
			of.missed = min(was.missed+one, 0)
		}
		s.see(run, of, o.run)
	}
	for run := range o.mentioned(s) {
		if s.seen[run] == nil { // without a heartbeat: one more was missed
			of := &other{}
			if was := before[run]; was != nil {
				*of = *was
				of.missed += one
			}
			s.see(run, of, o.run)
		}
	}
	s.announced = true
}

// replaced reports whether another run of a Redis server has a partition than at the last heartbeat.
func (o *Owner) replaced(p int, server string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.places[p].server != "" && o.places[p].server != server
}

// served notes which run of a Redis server has the partitions of a shard. Another one than before may have forgotten
// writes: this replica takes its partitions there under new tokens, and reads them again.
func (o *Owner) served(s *shard, server string) {
	for _, p := range s.partitions {
		place := &o.places[p]
		if place.server != "" && place.server != server {
			place.token = ""
		}
		place.server = server
	}
}

// see notes another replica. A former run of this process is lost.
func (s *shard) see(run string, of *other, self string) {
	if !s.announced && processOf(run) == processOf(self) {
		of.missed = lostHeartbeats
	}
	s.seen[run] = of
}

// mentioned returns the runs, except this one, that own partitions of a shard or have begun work there.
func (o *Owner) mentioned(s *shard) map[string]bool {
	runs := make(map[string]bool)
	for _, p := range s.partitions {
		runs[runOf(o.places[p].stored)] = true
		for token := range o.places[p].former {
			runs[runOf(token)] = true
		}
	}
	delete(runs, "")
	delete(runs, o.run)
	return runs
}

func text(v any) string {
	s, _ := v.(string)
	return s
}

// candidates lists the runs that may own partitions of a shard.
func (o *Owner) candidates(s *shard) (runs []string) {
	if !o.leaving && s.announced {
		runs = append(runs, o.run)
	}
	for run, of := range s.seen {
		if of.at != "" && s.isServing(run) {
			runs = append(runs, run)
		}
	}
	return runs
}

// choose returns the run that is to own partition p: all replicas that see the same live replicas choose
// the same one. "" when there is none.
func choose(runs []string, p int) string {
	best, highest, name := "", uint64(0), "/"+strconv.Itoa(p)
	for _, run := range runs {
		sum := sha256.Sum256([]byte(run + name))
		if score := binary.BigEndian.Uint64(sum[:]); best == "" || score > highest || score == highest && run < best {
			best, highest = run, score
		}
	}
	return best
}

// change is a new owner of a partition: of this replica, or none.
type change struct {
	partition   int
	seen, token string
	lost        bool // the replica that owned it is lost
}

// changes lists the partitions that this replica is to take or to give away. With its first heartbeat it
// takes all partitions of a former run of this process, since that can finish nothing.
func (o *Owner) changes(s *shard, first bool) (all []change) {
	runs := o.candidates(s)
	for _, p := range s.partitions {
		place := &o.places[p]
		self, run := choose(runs, p) == o.run, runOf(place.stored)
		self = self || first && !o.leaving && processOf(run) == o.opts.Replica
		switch {
		case !self && run == o.run: // also if Redis has brought back a former token, as after a failover
			place.token = "" // from here on nothing begins
			all = append(all, change{partition: p, seen: place.stored})
		case place.token == "" && self && (run == "" || run == o.run || !s.isAlive(run, o.run)): // a leaving one gives it away
			former := s.seen[run]
			all = append(all, change{
				partition: p, seen: place.stored, token: o.run + " " + random(), lost: former != nil && !former.leaving,
			})
		}
	}
	return all
}

// change takes and gives away partitions, those that no other replica has changed meanwhile.
func (o *Owner) change(ctx context.Context, changes []change) (changed []int, err error) {
	if len(changes) == 0 {
		return nil, nil
	}
	own := make(map[int]string) // partitions that this replica gives away, or takes under another token
	for _, c := range changes {
		if runOf(c.seen) == o.run {
			own[c.partition] = c.seen
		}
	}
	var begun map[int][]any
	if o.opts.Giving != nil && len(own) > 0 {
		begun = o.opts.Giving(ctx, own)
	}
	calls := make([]*script.Call, len(changes))
	for i, c := range changes {
		p := c.partition
		args := []any{partition.Prefix(p), c.seen, c.token, ""}
		if events, working := begun[p]; working {
			args = append(append(args[:3], "1"), events...)
		}
		calls[i] = &script.Call{Script: ownScript, Keys: queues.Keys(p), Args: args}
	}
	err = script.Run(ctx, o.opts.Client, calls...)
	o.locked(func() {
		for i, c := range changes {
			reply, failed := calls[i].Strings()
			if failed != nil {
				continue
			}
			place := &o.places[c.partition]
			place.stored = reply[0]
			if reply[0] != c.token {
				continue
			}
			changed = append(changed, c.partition)
			if c.token == "" || o.leaving {
				continue
			}
			place.token, place.former, place.lost = c.token, make(map[string]bool), c.lost
			for _, token := range reply[1:] {
				place.former[token] = true
			}
			if c.lost {
				o.metrics.takenOver.Inc()
			}
		}
	})
	if err != nil {
		return changed, fmt.Errorf("take or give partitions: %w", err)
	}
	return changed, nil
}

// removeLost removes the heartbeats of lost replicas that own nothing in a shard. The owner of its first
// partition does this.
func (o *Owner) removeLost(ctx context.Context, s *shard) {
	var lost []string
	o.locked(func() {
		if o.places[s.partitions[0]].token == "" {
			return
		}
		owners := make(map[string]bool)
		for _, p := range s.partitions {
			owners[runOf(o.places[p].stored)] = true
		}
		for run, of := range s.seen {
			if of.missed >= lostHeartbeats && of.at != "" && !owners[run] {
				lost = append(lost, run)
			}
		}
	})
	for _, run := range lost {
		o.opts.Logger.Warn("replica is lost", "lost_replica", run)
		if err := o.remove(ctx, []*shard{s}, run); err != nil && !errors.Is(err, context.Canceled) {
			o.opts.Logger.Error("heartbeat of a lost replica not removed", "lost_replica", run, "exception.message", err)
			continue
		}
		o.locked(func() {
			if of := s.seen[run]; of != nil {
				of.at = "" // it is still listed while it has work left
			}
		})
		if process := processOf(run); o.opts.Gone != nil && !o.isHere(process) {
			o.opts.Gone(process)
		}
	}
}

// isHere reports whether a run of a process is alive.
func (o *Owner) isHere(process string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	here := process == o.opts.Replica
	for _, s := range o.shards {
		for run := range s.seen {
			here = here || processOf(run) == process && s.isServing(run)
		}
	}
	return here
}

// remove removes the heartbeats of a run.
func (o *Owner) remove(ctx context.Context, shards []*shard, run string) error {
	pipe := o.opts.Client.Pipeline()
	for _, s := range shards {
		p := s.partitions[0]
		pipe.ZRem(ctx, replicasKey(p), run)
		pipe.HDel(ctx, readsKey(p), run)
		pipe.SRem(ctx, leavingKey(p), run)
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return fmt.Errorf("remove heartbeat: %w", err)
	}
	return nil
}

// replicas is the number of live replicas, in the shard where it is highest.
func (o *Owner) replicas() (most int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, s := range o.shards {
		live := 1
		for _, of := range s.seen {
			if of.missed < lostHeartbeats && of.at != "" {
				live++
			}
		}
		most = max(most, live)
	}
	return most
}
