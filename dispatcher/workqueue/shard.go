package workqueue

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
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

const (
	// tickTimeout bounds the heartbeat, and the takeover and service, of one tick.
	tickTimeout = 5 * time.Second
	// locateEvery is the number of ticks after which the shards of the partitions are located again.
	locateEvery = 8
	// promoteMost is how many endpoint queues and jobs of a partition become due in one call.
	promoteMost = 200
)

// shard is one Redis server. A replica handles each shard on its own, so that a shard that is down
// does not affect the others. Queue.mu guards the fields that change. A shard to which Redis has moved
// a partition has no partitions here until the next tick locates them.
type shard struct {
	address    string
	partitions []int // does not change

	// Claims, one round after the other, so that each sees the places that the previous one used.
	queued  []int         // partitions to be served, in this order
	serving []int         // partitions of the round under way
	running bool          // a goroutine serves the queued partitions
	budget  int           // deliveries of a round of several partitions
	served  chan struct{} // closed at the end of each round, and replaced

	// Heartbeats, and the service of owned partitions.
	owned     []int             // partitions that this replica owns
	ticking   sync.Mutex        // held during a heartbeat
	servicing sync.Mutex        // held during takeover and service
	sentAt    time.Time         // last heartbeat of this replica
	servedAt  time.Time         // when the owned partitions were last served
	announced string            // the id under which this replica wrote its last heartbeat
	ahead     time.Duration     // of Redis's clock, compared with this replica's
	seen      map[string]*other // the other replicas
}

// other is another replica, as seen in one shard.
type other struct {
	at     string // its last heartbeat, unix ms of Redis's clock
	missed int    // heartbeats of this replica since then; starts below 0 to allow more of them
}

func newShard(address string, partitions []int) *shard {
	return &shard{
		address: address, partitions: partitions, budget: claimLong, served: make(chan struct{}),
		seen: make(map[string]*other), servedAt: time.Now(), //nolint:forbidigo // for a metric
	}
}

// locate finds the shard of each partition. It makes a new shard when the partitions of one have
// changed: the shard may keep its heartbeats in another key, so counting starts again.
func (q *Queue) locate(ctx context.Context) error {
	groups, err := partition.ByShard(ctx, q.opts.Client, partition.All(), partition.Prefix)
	if err != nil {
		return err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	for address, s := range q.shards {
		partitions := groups[address]
		delete(groups, address)
		switch {
		case partitions == nil:
			delete(q.shards, address)
		case !slices.Equal(s.partitions, partitions):
			moved := newShard(address, partitions)
			moved.queued, s.queued = s.queued, nil
			q.shards[address] = moved
		}
	}
	for address, partitions := range groups {
		q.shards[address] = newShard(address, partitions)
	}
	return nil
}

// beginShards sends the first heartbeats. It fails when a shard refuses the stored format, and when
// no shard answers. A shard that does not answer now gets its heartbeats from the ticks.
func (q *Queue) beginShards(ctx context.Context) error {
	if err := q.locate(ctx); err != nil {
		return err
	}
	var failed []error
	shards := q.listShards()
	for _, s := range shards {
		if err := q.heartbeat(ctx, s); err != nil {
			failed = append(failed, err)
			q.opts.Logger.Error("shard does not answer, starting without it", "exception.message", err)
		}
	}
	err := errors.Join(failed...)
	if _, refused := errors.AsType[*partition.FormatError](err); refused || len(failed) == len(shards) {
		return err
	}
	return ctx.Err()
}

func (q *Queue) listShards() (all []*shard) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, s := range q.shards {
		all = append(all, s)
	}
	return all
}

// processOf returns the part of a replica id that stays the same after a restart. It may contain
// dots.
func processOf(replica string) string { return replica[:max(0, strings.LastIndexByte(replica, '.'))] }

// runTicks starts a tick of each shard, and the recovery of lost claims, every ServiceEvery, until ctx
// ends or the stored format is refused.
func (q *Queue) runTicks(ctx context.Context) {
	tick := time.NewTicker(q.opts.ServiceEvery)
	defer tick.Stop()
	var ticks sync.WaitGroup
	defer ticks.Wait()
	for n := 0; q.Refused() == nil; n++ {
		isNew := func(s *shard) bool { return len(s.partitions) == 0 }
		if n%locateEvery == 0 || slices.ContainsFunc(q.listShards(), isNew) {
			if err := q.locate(ctx); err != nil && ctx.Err() == nil {
				q.opts.Logger.Error("shards of the partitions not found", "exception.message", err)
			}
		}
		for _, s := range q.listShards() {
			if !isNew(s) {
				ticks.Go(func() { q.tick(ctx, s) })
			}
		}
		q.kickLost()
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
	ticks.Wait()
	for _, s := range q.listShards() { // other replicas take over the partitions and the work
		q.locked(func() { s.owned = nil })
	}
}

// locked calls f while it holds Queue.mu.
func (q *Queue) locked(f func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	f()
}

// tick sends a heartbeat, if one is due, then takes over lost replicas and serves owned
// partitions. The heartbeat of the next tick does not wait for takeover and service.
func (q *Queue) tick(ctx context.Context, s *shard) {
	if !s.ticking.TryLock() {
		return
	}
	err := q.heartbeatIfDue(ctx, s)
	s.ticking.Unlock()
	if q.isFailure(err) {
		q.opts.Logger.Error("heartbeat failed", "exception.message", err)
	}
	if err != nil || !s.servicing.TryLock() {
		return
	}
	defer s.servicing.Unlock()
	ctx, cancel := context.WithTimeout(ctx, tickTimeout)
	defer cancel()
	q.takeOverLost(ctx, s)
	err = q.service(ctx, s)
	if q.isFailure(err) {
		q.opts.Logger.Error("partitions not served", "exception.message", err)
	}
	if err == nil {
		q.locked(func() { s.servedAt = time.Now() }) //nolint:forbidigo // for a metric
	}
}

func (q *Queue) heartbeatIfDue(ctx context.Context, s *shard) error {
	now := time.Now() //nolint:forbidigo // paces the heartbeat; Redis's clock judges it
	due := false
	q.locked(func() {
		due = now.Sub(s.sentAt) >= q.opts.HeartbeatEvery-q.opts.ServiceEvery/2 || s.announced != *q.replica.Load()
	})
	if !due {
		return nil
	}
	return q.heartbeat(ctx, s)
}

// isFailure reports whether an error is to be logged: neither the stored format nor a shutdown caused it.
func (q *Queue) isFailure(err error) bool {
	return err != nil && !q.stopIfRefused(err) && !errors.Is(err, context.Canceled)
}

// heartbeat writes this replica's heartbeat and counts the heartbeats of the others.
func (q *Queue) heartbeat(ctx context.Context, s *shard) error {
	ctx, cancel := context.WithTimeout(ctx, tickTimeout)
	defer cancel()
	replica, p := *q.replica.Load(), s.partitions[0]
	began := time.Now() //nolint:forbidigo // as above
	q.locked(func() { s.sentAt = began })
	call := &script.Call{
		Script: heartbeatScript, Keys: []string{replicasKey(p), queues.AbsentKey(p)}, Args: []any{partition.Prefix(p), replica},
	}
	err := script.Run(ctx, q.opts.Client, call)
	ended := time.Now() //nolint:forbidigo // as above
	q.mu.Lock()
	defer q.mu.Unlock()
	if err != nil || ended.Sub(began) > slowHeartbeat {
		s.waitLonger()
	}
	if err != nil {
		return fmt.Errorf("write heartbeat: %w", err)
	}
	s.count(call.Reply(), replica, began)
	s.announced = replica
	q.begin(s)
	return nil
}

// waitLonger lets extraHeartbeats of this replica pass before other replicas can miss any.
func (s *shard) waitLonger() {
	for _, o := range s.seen {
		o.missed = -extraHeartbeats
	}
}

// count reads the answer of the heartbeat script.
func (s *shard) count(reply any, self string, asked time.Time) {
	list, _ := reply.([]any)
	now, _ := list[0].(int64)
	s.ahead = time.UnixMilli(now).Sub(asked)
	before := s.seen
	s.seen = make(map[string]*other)
	for i := 1; i+1 < len(list); i += 2 {
		replica, at, missed := text(list[i]), text(list[i+1]), 0
		if s.announced == "" && processOf(replica) == processOf(self) {
			missed = lostHeartbeats // a former run of this process
		} else if o := before[replica]; o != nil && o.at == at {
			missed = o.missed + 1
		} else if o != nil {
			missed = min(o.missed+1, 0)
		}
		if replica != self {
			s.seen[replica] = &other{at: at, missed: missed}
		}
	}
}

// isAnnounced reports whether a shard has a heartbeat of this replica under its present id. Only then
// may the replica claim there: the other replicas take over the work of ids that they know. The next
// tick writes the heartbeat. Queue.mu is held.
func (q *Queue) isAnnounced(s *shard) bool {
	return s != nil && q.shards[s.address] == s && s.announced == *q.replica.Load()
}

// others lists the other replicas of a shard, live and lost ones.
func (q *Queue) others(s *shard) (live, lost []string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for replica, o := range s.seen {
		if o.missed >= lostHeartbeats {
			lost = append(lost, replica)
		} else {
			live = append(live, replica)
		}
	}
	return live, lost
}

// owns returns a function that reports whether this replica is the owner of a partition or of a lost
// replica. All replicas that see the same live replicas choose the same owner (rendezvous hashing,
// Thaler and Ravishankar 1998).
func (q *Queue) owns(live []string) func(name string) bool {
	self := *q.replica.Load()
	return func(name string) bool { return owner(append([]string{self}, live...), name) == self }
}

func owner(replicas []string, name string) string {
	best, highest := "", uint64(0)
	for _, replica := range replicas {
		sum := sha256.Sum256([]byte(replica + "/" + name))
		if score := binary.BigEndian.Uint64(sum[:]); best == "" || score > highest || score == highest && replica < best {
			best, highest = replica, score
		}
	}
	return best
}

func (q *Queue) takeOverLost(ctx context.Context, s *shard) {
	live, lost := q.others(s)
	owns, process := q.owns(live), processOf(*q.replica.Load())
	for _, replica := range lost {
		if !owns(replica) && processOf(replica) != process {
			continue
		}
		q.opts.Logger.Warn("replica is lost, requeuing its work", "lost_replica", replica)
		if err := q.takeOver(ctx, s, replica); err != nil && !errors.Is(err, context.Canceled) {
			q.opts.Logger.Error("takeover failed", "lost_replica", replica, "exception.message", err)
		}
	}
}

// takeOver requeues what a lost replica has in flight in a shard.
func (q *Queue) takeOver(ctx context.Context, s *shard, replica string) error {
	n, err := q.requeueAll(ctx, s.partitions, replica)
	q.metrics.requeued.Add(float64(n))
	if err != nil {
		return err
	}
	q.metrics.takeovers.Inc()
	q.locked(func() { delete(s.seen, replica) }) // a later heartbeat counts as that of a new replica
	return nil
}

// service promotes due endpoint queues and jobs of the partitions that this replica owns,
// and serves wake-ups that no worker took.
func (q *Queue) service(ctx context.Context, s *shard) error {
	live, _ := q.others(s)
	owns := q.owns(live)
	var owned []int
	for _, p := range s.partitions {
		if owns(strconv.Itoa(p)) {
			owned = append(owned, p)
		}
	}
	now := time.Now() //nolint:forbidigo // Redis's clock
	q.locked(func() { s.owned, now = owned, now.Add(s.ahead) })
	firsts, err := pipeline.Each(ctx, q.opts.Client, owned, func(pipe redis.Pipeliner, p int) *redis.ZSliceCmd {
		return pipe.ZRangeWithScores(ctx, queues.DueKey(p), 0, 0)
	})
	if err != nil {
		return fmt.Errorf("read due work: %w", err)
	}
	var calls []*script.Call
	var due []int
	for i, p := range owned {
		if z := firsts[i].Val(); len(z) > 0 && int64(z[0].Score) <= now.UnixMilli() {
			due = append(due, p)
			calls = append(calls, &script.Call{Script: promoteScript, Keys: queues.Keys(p), Args: []any{partition.Prefix(p), promoteMost}})
		}
	}
	if len(due) == 0 {
		return nil
	}
	if err := script.Run(ctx, q.opts.Client, calls...); err != nil {
		return fmt.Errorf("promote due work: %w", err)
	}
	var ready []int
	for i, c := range calls {
		if n, _ := c.Reply().(int64); n == 1 {
			ready = append(ready, due[i])
		}
	}
	if len(live) > 0 && (q.ctx.Err() != nil || !anyFree(q.opts.Admission.Holding())) {
		q.Wake(ctx, ready) // another replica may have places
	} else {
		q.Kick(ready...)
	}
	return nil
}

// Owned lists the partitions that this replica schedules now.
func (q *Queue) Owned() (owned []int) {
	for _, s := range q.listShards() {
		q.locked(func() { owned = append(owned, s.owned...) })
	}
	return owned
}

// replicas is the number of live replicas, in the shard where it is highest.
func (q *Queue) replicas() (most int) {
	for _, s := range q.listShards() {
		live, _ := q.others(s)
		most = max(most, len(live)+1)
	}
	return most
}

// lag is the time since the owned partitions were last served, in the shard where that is
// longest; 0 when this replica owns none.
func (q *Queue) lag(now time.Time) (longest time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, s := range q.shards {
		if len(s.owned) > 0 {
			longest = max(longest, now.Sub(s.servedAt))
		}
	}
	return longest
}
