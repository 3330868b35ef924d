package workqueue

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"spendhook/dispatcher/workqueue/queues"
	"spendhook/internal/partition"
	"spendhook/internal/pipeline"
	"spendhook/internal/script"
)

// Another replica is lost when this one made lostHeartbeats heartbeats in a row without
// seeing a new one of it. Heartbeats are counted, not time: while Redis answers no replica,
// no replica becomes lost.
const (
	lostHeartbeats = 6
	// extraHeartbeats are added to lostHeartbeats after a heartbeat of this replica failed
	// or was slow: the other replicas may take longer to reach Redis again.
	extraHeartbeats = 10
	slowHeartbeat   = time.Second
)

// watch sends the replica's heartbeats, takes over lost replicas and serves owned
// partitions. Each shard is handled on its own, so that a shard that is down does not
// affect the others.
type watch struct {
	q      *Queue
	mu     sync.Mutex
	shards map[string]*shard // by address
}

// shard is one Redis server and what this replica knows of its heartbeats.
type shard struct {
	partitions []int
	owned      []int     // those that this replica owns; watch.mu guards it
	ticking    bool      // a heartbeat is under way; watch.mu guards it
	serving    bool      // takeover or service is under way; watch.mu guards it
	sentAt     time.Time // last heartbeat of this replica; the goroutine that sends heartbeats owns it
	servedAt   time.Time // when the owned partitions were last served; watch.mu guards it

	mu        sync.Mutex
	announced string            // the id under which this replica wrote its last heartbeat
	ahead     time.Duration     // of Redis's clock, compared with this replica's
	seen      map[string]*other // the other replicas
}

// other is another replica, as seen in one shard.
type other struct {
	at     int64 // its last heartbeat, unix ms of Redis's clock
	missed int   // heartbeats of this replica since; negative: so many heartbeats are still forgiven
}

func (o *other) lost() bool { return o.missed >= lostHeartbeats }

// waitLonger gives all other replicas extraHeartbeats more before they are lost. Each further
// heartbeat of this replica uses up one of them.
func (s *shard) waitLonger() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range s.seen {
		o.missed = -extraHeartbeats
	}
}

func newWatch(q *Queue) *watch {
	return &watch{q: q, shards: make(map[string]*shard)}
}

// begin sends the first heartbeats and requeues the work of former runs of this process. It
// fails when a shard refuses the stored format, and when no shard answers. A shard that does not
// answer now gets its heartbeats from the ticks, which find the former runs lost.
func (w *watch) begin(ctx context.Context) error {
	if err := w.group(ctx); err != nil {
		return err
	}
	begun, failed := 0, error(nil)
	for _, s := range w.shards {
		err := w.beginShard(ctx, s)
		if _, refused := errors.AsType[*partition.FormatError](err); refused {
			return err
		}
		if err == nil {
			begun++
			continue
		}
		failed = err
		w.q.opts.Logger.Error("shard does not answer, beginning without it", "exception.message", err)
	}
	if begun == 0 {
		return failed
	}
	return ctx.Err()
}

func (w *watch) beginShard(ctx context.Context, s *shard) error {
	first, cancel := context.WithTimeout(ctx, tickTimeout)
	defer cancel()
	if err := w.heartbeat(first, s); err != nil {
		return err
	}
	base := process(*w.q.replica.Load())
	for _, replica := range slices.Collect(maps.Keys(s.seen)) { // takeOver changes it
		if process(replica) == base {
			if err := w.takeOver(ctx, s, replica); err != nil {
				return err
			}
		}
	}
	return nil
}

// process is the part of a replica id that stays the same after a restart. It may contain
// dots.
func process(replica string) string { return replica[:max(0, strings.LastIndexByte(replica, '.'))] }

// group finds out which shard serves which partitions.
func (w *watch) group(ctx context.Context) error {
	groups, err := partition.ByShard(ctx, w.q.opts.Client, partition.All())
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for address, partitions := range groups {
		s := w.shards[address]
		if s == nil || !slices.Equal(s.partitions, partitions) {
			// The partitions have changed, so the heartbeats may be in another key: count
			// them from the start before any replica is lost.
			w.shards[address] = &shard{partitions: partitions, seen: make(map[string]*other), servedAt: time.Now()} //nolint:forbidigo // for a metric
		}
	}
	for address := range w.shards {
		if groups[address] == nil {
			delete(w.shards, address)
		}
	}
	return nil
}

// run starts a tick of each shard every ServiceEvery, until ctx ends.
func (w *watch) run(ctx context.Context) {
	tick := time.NewTicker(w.q.opts.ServiceEvery)
	defer tick.Stop()
	var ticks sync.WaitGroup
	defer ticks.Wait()
	for n := 0; ; n++ {
		if n%8 == 0 {
			if err := w.group(ctx); err != nil && ctx.Err() == nil {
				w.q.opts.Logger.Error("shards not found", "exception.message", err)
			}
		}
		w.mu.Lock()
		for _, s := range w.shards {
			if !s.ticking {
				s.ticking = true
				ticks.Go(func() { w.tick(ctx, s) })
			}
		}
		w.mu.Unlock()
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// tickTimeout bounds the heartbeat and the service of one tick.
const tickTimeout = 5 * time.Second

// tick sends a heartbeat, if one is due, then takes over lost replicas and serves owned
// partitions. The heartbeat of the next tick does not wait for takeover and service.
func (w *watch) tick(ctx context.Context, s *shard) {
	if w.q.Refused() != nil { // other replicas take over its partitions and its work
		w.own(s, nil)
		w.mu.Lock()
		s.ticking = false
		w.mu.Unlock()
		return
	}
	err := w.heartbeatIfDue(ctx, s)
	w.mu.Lock()
	s.ticking = false
	begins := !s.serving && err == nil
	s.serving = s.serving || begins
	w.mu.Unlock()
	if err != nil && !w.q.refuse(err) && !errors.Is(err, context.Canceled) {
		w.q.opts.Logger.Error("heartbeat failed", "exception.message", err)
	}
	if !begins {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, tickTimeout)
	defer cancel()
	w.takeOverLost(ctx, s)
	err = w.service(ctx, s)
	if err != nil && !w.q.refuse(err) && !errors.Is(err, context.Canceled) {
		w.q.opts.Logger.Error("partitions not served", "exception.message", err)
	}
	w.mu.Lock()
	s.serving = false
	if err == nil {
		s.servedAt = time.Now() //nolint:forbidigo // for a metric
	}
	w.mu.Unlock()
}

func (w *watch) heartbeatIfDue(ctx context.Context, s *shard) error {
	now := time.Now() //nolint:forbidigo // paces the heartbeat; Redis's clock judges it
	if now.Sub(s.sentAt) < w.q.opts.HeartbeatEvery-w.q.opts.ServiceEvery/2 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, tickTimeout)
	defer cancel()
	return w.heartbeat(ctx, s)
}

// heartbeat writes this replica's heartbeat and counts the heartbeats of the others.
func (w *watch) heartbeat(ctx context.Context, s *shard) error {
	replica := *w.q.replica.Load()
	began := time.Now() //nolint:forbidigo // as above
	s.sentAt = began
	reply, err := w.writeHeartbeat(ctx, s, replica)
	ended := time.Now() //nolint:forbidigo // as above
	if err != nil || ended.Sub(began) > slowHeartbeat {
		s.waitLonger()
	}
	if err != nil {
		return err
	}
	return s.count(reply, replica, began)
}

// writeHeartbeat writes a heartbeat under an id, and returns the heartbeats of all replicas.
func (w *watch) writeHeartbeat(ctx context.Context, s *shard, replica string) (reply any, err error) {
	p := s.partitions[0]
	call := &script.Call{
		Script: heartbeatScript, Keys: []string{replicasKey(p), queues.AbsentKey(p)}, Args: []any{partition.Prefix(p), replica},
	}
	if err := script.Run(ctx, w.q.opts.Client, call); err != nil {
		return nil, fmt.Errorf("write heartbeat: %w", err)
	}
	s.mu.Lock()
	s.announced = replica
	s.mu.Unlock()
	return call.Reply(), nil
}

// at returns the shard at an address; nil when there is none.
func (w *watch) at(address string) *shard {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.shards[address]
}

// announcedAs reports whether the shard has a heartbeat of this replica under the id. Only then may
// the replica claim there under it: the other replicas take over the work of ids that they know.
func (s *shard) announcedAs(replica string) bool {
	if s == nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.announced == replica
}

// announce writes a heartbeat to a shard that has none of this replica under the id: the replica
// was fenced, or the shard is new, or did not answer before.
func (w *watch) announce(ctx context.Context, address, replica string) error {
	s := w.at(address)
	if s == nil {
		if err := w.group(ctx); err != nil {
			return err
		}
		if s = w.at(address); s == nil {
			return fmt.Errorf("there is no shard %q", address)
		}
	}
	if s.announcedAs(replica) {
		return nil
	}
	_, err := w.writeHeartbeat(ctx, s, replica)
	return err
}

// count reads the answer of the heartbeat script.
func (s *shard) count(reply any, self string, asked time.Time) error {
	list, _ := reply.([]any)
	if len(list) < 1 {
		return errors.New("write heartbeat: unexpected reply")
	}
	now, _ := list[0].(int64)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ahead = time.UnixMilli(now).Sub(asked)
	living := make(map[string]bool)
	for i := 1; i+1 < len(list); i += 2 {
		replica := text(list[i])
		if replica == self {
			continue
		}
		living[replica] = true
		at, err := strconv.ParseInt(text(list[i+1]), 10, 64)
		if err != nil {
			return fmt.Errorf("read heartbeats: %w", err)
		}
		o := s.seen[replica]
		switch {
		case o == nil:
			s.seen[replica] = &other{at: at}
		case o.at != at:
			*o = other{at: at, missed: min(o.missed+1, 0)}
		default:
			o.missed++
		}
	}
	for replica := range s.seen {
		if !living[replica] {
			delete(s.seen, replica)
		}
	}
	return nil
}

// living lists the replicas of a shard that are not lost, this one among them.
func (w *watch) living(s *shard) []string {
	out := []string{*w.q.replica.Load()}
	s.mu.Lock()
	defer s.mu.Unlock()
	for replica, o := range s.seen {
		if !o.lost() {
			out = append(out, replica)
		}
	}
	return out
}

// owner chooses one replica for a partition or a lost replica. All replicas that see the
// same list choose the same owner (rendezvous hashing, Thaler and Ravishankar 1998).
func owner(replicas []string, thing string) string {
	best, highest := "", uint64(0)
	for _, replica := range replicas {
		sum := sha256.Sum256([]byte(replica + "/" + thing))
		if score := binary.BigEndian.Uint64(sum[:]); best == "" || score > highest || score == highest && replica < best {
			best, highest = replica, score
		}
	}
	return best
}

func (w *watch) takeOverLost(ctx context.Context, s *shard) {
	living := w.living(s)
	for _, replica := range s.lost() {
		if owner(living, replica) != living[0] {
			continue
		}
		w.q.opts.Logger.Warn("replica is lost, requeuing its work", "lost_replica", replica)
		if err := w.takeOver(ctx, s, replica); err != nil && !errors.Is(err, context.Canceled) {
			w.q.opts.Logger.Error("takeover failed", "lost_replica", replica, "exception.message", err)
		}
	}
}

// lost lists the replicas that are lost.
func (s *shard) lost() (out []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for replica, o := range s.seen {
		if o.lost() {
			out = append(out, replica)
		}
	}
	return out
}

// takeOver requeues what a lost replica has in flight in a shard.
func (w *watch) takeOver(ctx context.Context, s *shard, replica string) error {
	n, err := w.q.requeue(ctx, s.partitions, replica)
	w.q.metrics.requeued.Add(float64(n))
	if err != nil {
		return err
	}
	w.q.metrics.takeovers.Inc()
	s.mu.Lock()
	delete(s.seen, replica) // a later heartbeat counts as that of a new replica
	s.mu.Unlock()
	return w.q.forget(ctx, s.partitions[0], replica)
}

// forget removes a replica's heartbeat.
func (q *Queue) forget(ctx context.Context, leader int, replica string) error {
	pipe := q.opts.Client.Pipeline()
	pipe.ZRem(ctx, replicasKey(leader), replica)
	pipe.HDel(ctx, readsKey(leader), replica)
	if _, err := pipe.Exec(ctx); err != nil {
		return fmt.Errorf("remove heartbeat: %w", err)
	}
	return nil
}

// requeuePage is how many notes one call requeues.
const requeuePage = 500

// ClaimLife is how long after its claim the attempt of an ordered delivery may start. A
// replica that was suspended for longer may have been taken over.
const ClaimLife = 2 * time.Second

// requeueArgs are the arguments of the requeue script before the notes.
func (q *Queue) requeueArgs(p int, replica, fence string, claim any) []any {
	return []any{partition.Prefix(p), replica, requeuePage, fence, claim, (q.opts.AttemptTimeout + ClaimLife).Milliseconds()}
}

// reportQuarantined logs that the requeue script has quarantined work.
func (q *Queue) reportQuarantined(p int, reply any) {
	counts, _ := reply.([]any)
	if len(counts) < 4 || counts[3] == int64(0) {
		return
	}
	q.opts.Logger.Error("work quarantined that could not be requeued: a key of its company is damaged", "partition", p, "entries", counts[3])
}

// requeue fences a replica in partitions, requeues all its notes there and wakes the
// partitions. It returns the number of notes.
func (q *Queue) requeue(ctx context.Context, partitions []int, replica string) (int, error) {
	n := 0
	for rest := partitions; len(rest) > 0; {
		calls := make([]*script.Call, len(rest))
		for i, p := range rest {
			calls[i] = &script.Call{
				Script: requeueScript, Keys: queues.Keys(p),
				Args: q.requeueArgs(p, replica, "1", ""),
			}
		}
		if err := script.Run(ctx, q.opts.Client, calls...); err != nil {
			return n, fmt.Errorf("requeue work: %w", err)
		}
		var left, wake []int
		for i, c := range calls {
			counts, _ := c.Reply().([]any)
			if len(counts) != 4 {
				return n, errors.New("requeue work: unexpected reply")
			}
			q.reportQuarantined(rest[i], counts)
			done, _ := counts[0].(int64)
			n += int(done)
			if notes, _ := counts[1].(int64); notes > 0 {
				left = append(left, rest[i])
			}
			if flag, _ := counts[2].(int64); flag == 1 {
				wake = append(wake, rest[i])
			}
		}
		q.Wake(ctx, wake)
		rest = left
	}
	return n, nil
}

// release fences this replica id, so that claims still under way are refused, requeues all
// its notes, and removes its heartbeats.
func (q *Queue) release(ctx context.Context, replica string) error {
	var failed error
	for _, group := range q.byShard(ctx, partition.All()) {
		_, err := q.requeue(ctx, group, replica)
		if err == nil {
			err = q.forget(ctx, group[0], replica)
		}
		failed = errors.Join(failed, err)
	}
	return failed
}

// own notes which partitions of a shard this replica owns.
func (w *watch) own(s *shard, partitions []int) {
	w.mu.Lock()
	s.owned = partitions
	w.mu.Unlock()
	w.q.metrics.owned.Set(float64(len(w.ownedPartitions())))
}

// promoteMost is how many endpoint queues and jobs of a partition become due in
// one call.
const promoteMost = 200

// service promotes due endpoint queues and jobs of the partitions that this replica owns,
// and serves wake-ups that no worker took.
func (w *watch) service(ctx context.Context, s *shard) error {
	living := w.living(s)
	var owned []int
	for _, p := range s.partitions {
		if owner(living, strconv.Itoa(p)) == living[0] {
			owned = append(owned, p)
		}
	}
	w.own(s, owned)
	due, err := w.due(ctx, s, owned)
	if err != nil || len(due) == 0 {
		return err
	}
	calls := make([]*script.Call, len(due))
	for i, p := range due {
		calls[i] = &script.Call{Script: promoteScript, Keys: queues.Keys(p), Args: []any{partition.Prefix(p), promoteMost}}
	}
	if err := script.Run(ctx, w.q.opts.Client, calls...); err != nil {
		return fmt.Errorf("promote what is due: %w", err)
	}
	var ready []int
	for i, c := range calls {
		if n, _ := c.Reply().(int64); n == 1 {
			ready = append(ready, due[i])
		}
	}
	if anyFree(w.q.opts.Admission.Holding()) {
		w.q.Kick(ready...)
	} else { // another replica may have places
		w.q.Wake(ctx, ready)
	}
	return nil
}

// due lists the partitions of owned that need service now.
func (w *watch) due(ctx context.Context, s *shard, owned []int) ([]int, error) {
	firsts, err := pipeline.Each(ctx, w.q.opts.Client, owned, func(pipe redis.Pipeliner, p int) *redis.ZSliceCmd {
		return pipe.ZRangeWithScores(ctx, queues.DueKey(p), 0, 0)
	})
	if err != nil {
		return nil, fmt.Errorf("read what is due: %w", err)
	}
	s.mu.Lock()
	ahead := s.ahead
	s.mu.Unlock()
	now := time.Now().Add(ahead).UnixMilli() //nolint:forbidigo // Redis's clock
	var due []int
	for i, first := range firsts {
		if z := first.Val(); len(z) > 0 && int64(z[0].Score) <= now {
			due = append(due, owned[i])
		}
	}
	return due, nil
}

// Owned lists the partitions that this replica schedules now.
func (q *Queue) Owned() []int { return q.watch.ownedPartitions() }

// ownedPartitions lists the partitions that this replica owned at the last service.
func (w *watch) ownedPartitions() []int {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []int
	for _, s := range w.shards {
		out = append(out, s.owned...)
	}
	return out
}

// replicas is the number of living replicas, in the shard where it is highest.
func (w *watch) replicas() (most int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.shards {
		most = max(most, len(w.living(s)))
	}
	return most
}

// lag is the time since the owned partitions were last served, in the shard where that is
// longest; 0 when this replica owns none.
func (w *watch) lag(now time.Time) (longest time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.shards {
		if len(s.owned) > 0 {
			longest = max(longest, now.Sub(s.servedAt))
		}
	}
	return longest
}
