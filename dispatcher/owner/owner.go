// Package owner decides which replica serves which partition. A partition has one owner at a time.
//
// The replicas of a shard see each other by heartbeats, and choose the owner of each partition by
// rendezvous hashing over those that are alive (Thaler and Ravishankar 1998). Redis stores the owner's
// token with the partition. A script that reads work compares the token, so a replica that has lost a
// partition begins nothing of it, whatever the replica believes.
package owner

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"spendhook/internal/partition"
	"spendhook/internal/script"
)

// Options configures New. Client, Replica and Changed are required.
type Options struct {
	Client  redis.UniversalClient
	Replica string // unique name of this process; it should survive a restart
	// Changed is called when this replica has taken partitions or has given them away. It must return soon.
	Changed func(partitions []int)
	Gone    func(process string) // called when no run of another process is left; nil: not called
	// Giving is called before partitions are given away, with their tokens, under which nothing may begin any more. It
	// returns the partitions in which this replica finishes what it has begun, with the events that it is matching,
	// <company>/<id>. nil: nothing is begun.
	Giving func(ctx context.Context, tokens map[int]string) map[int][]any

	Every time.Duration // between two heartbeats; default 500 ms

	Logger     *slog.Logger
	Registerer prometheus.Registerer
}

// Owner is one replica's part in the choice of owners. Make it with New, call Start once, then Leave and
// Close, in this order and also after an error of Start. Its other methods are safe for concurrent use.
type Owner struct {
	opts    Options
	metrics *metrics
	run     string                                // names this run of the process, among the replicas
	refused atomic.Pointer[partition.FormatError] // why the replica ended its heartbeats; nil: it has not

	mu      sync.Mutex // guards all below, and the shards
	shards  map[string]*shard
	leaving bool
	places  [partition.Count]place

	beats      context.Context //nolint:containedctx // ends with Close: no more heartbeats
	endBeats   context.CancelFunc
	background sync.WaitGroup
	now        chan struct{} // holds one: a heartbeat is to be sent at once
}

// place is what this replica knows about a partition.
type place struct {
	shard  *shard          // nil: not known yet
	stored string          // the owner's token when it was last read; "": none
	token  string          // this replica's token; "": this replica is not the owner
	server string          // run id of the Redis server that has the partition, as of the last heartbeat
	former map[string]bool // tokens of former owners that finish what they have begun
	lost   bool            // the replica that owned the partition before was lost
}

// New returns an Owner that owns nothing before Start.
func New(o Options) *Owner {
	o.Every = cmp.Or(o.Every, 500*time.Millisecond)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	r := &Owner{opts: o, shards: make(map[string]*shard), now: make(chan struct{}, 1), run: o.Replica + "." + random()}
	r.metrics = newMetrics(o.Registerer, r)
	r.beats, r.endBeats = context.WithCancel(context.Background())
	return r
}

func random() string {
	bytes := make([]byte, 8)
	_, _ = rand.Read(bytes) // never fails
	return hex.EncodeToString(bytes)
}

// processOf returns the part of a run that stays the same after a restart. It may contain dots.
func processOf(run string) string { return run[:max(0, strings.LastIndexByte(run, '.'))] }

// runOf returns the run that made a token; "" for no token. A token is a run, a space and a random text:
// a number would repeat after a failover of Redis.
func runOf(token string) string { return token[:max(0, strings.LastIndexByte(token, ' '))] }

// Start sends the first heartbeats and takes the partitions that no other replica owns, also those of a
// former run of this process. It fails when a shard refuses the stored format, and when no shard answers.
func (o *Owner) Start(ctx context.Context) error {
	if err := o.locate(ctx); err != nil {
		return err
	}
	var failed []error
	shards := o.listShards()
	for _, s := range shards {
		if err := o.beat(ctx, s); err != nil {
			failed = append(failed, err)
			o.opts.Logger.Error("shard does not answer, starting without it", "exception.message", err)
		}
	}
	if err := errors.Join(failed...); o.Refuses(err) || len(failed) == len(shards) {
		return err
	}
	o.background.Go(func() { o.runBeats(o.beats) })
	return ctx.Err()
}

// Token returns the token under which this replica owns partition p; "" when it does not.
func (o *Owner) Token(p int) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.places[p].token
}

// ServerRun returns the run id of the Redis server that has partition p, as of the last heartbeat.
func (o *Owner) ServerRun(p int) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.places[p].server
}

// Lost notes that Redis refused a token of partition p: another replica owns the partition. The next
// heartbeat reads which one.
func (o *Owner) Lost(p int, token string) {
	o.mu.Lock()
	lost := o.places[p].token == token
	if lost {
		o.places[p].token = ""
		o.metrics.lost.Inc()
		o.opts.Logger.Warn("another replica has taken over a partition", "partition", p)
	}
	o.mu.Unlock()
	if lost {
		o.Look()
	}
}

// Owned lists the partitions that this replica owns.
func (o *Owner) Owned() (owned []int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for p := range o.places {
		if o.places[p].token != "" {
			owned = append(owned, p)
		}
	}
	return owned
}

// Former lists the tokens of partition p's former owners that had begun work: those of replicas that are gone, and
// those of replicas that finish it.
func (o *Owner) Former(p int) (gone, working []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for token := range o.places[p].former {
		if s := o.places[p].shard; s != nil && !s.isAlive(runOf(token), o.run) {
			gone = append(gone, token)
		} else {
			working = append(working, token)
		}
	}
	return gone, working
}

// TakenFromLost reports whether the replica that owned partition p before was lost.
func (o *Owner) TakenFromLost(p int) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.places[p].lost
}

// Finished notes that a former owner of partition p has nothing left that it had begun.
func (o *Owner) Finished(p int, token string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.places[p].former, token)
}

// Server returns the process that serves partition p: its owner, or the replica that is to be its owner
// next; "" when there is none.
func (o *Owner) Server(p int) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	s := o.places[p].shard
	if s == nil {
		return ""
	}
	if run := runOf(o.places[p].stored); s.isServing(run) {
		return processOf(run)
	}
	return processOf(choose(o.candidates(s), p))
}

// Clock returns Redis's time in the shard of partition p.
func (o *Owner) Clock(p int) time.Time {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := time.Now() //nolint:forbidigo // Redis's clock
	if s := o.places[p].shard; s != nil {
		return now.Add(s.ahead)
	}
	return now
}

// Look sends a heartbeat to each shard soon, and reads the owners.
func (o *Owner) Look() {
	select {
	case o.now <- struct{}{}:
	default:
	}
}

// Refused returns the *partition.FormatError because of which this replica owns nothing; nil while the
// replica can read the stored format.
func (o *Owner) Refused() error {
	if format := o.refused.Load(); format != nil {
		return format
	}
	return nil
}

// Leave gives all partitions away. From then on this replica owns none, and the others choose their
// owners without it. It still sends heartbeats: what it has begun is left to it.
func (o *Owner) Leave(ctx context.Context) error {
	given := o.Owned()
	o.locked(func() {
		o.leaving = true
		for p := range o.places {
			o.places[p].token = ""
		}
	})
	var calls []*script.Call
	for _, s := range o.listShards() {
		calls = append(calls, &script.Call{Script: leaveScript, Keys: []string{leavingKey(s.partitions[0])}, Args: []any{o.run}})
	}
	err := script.Run(ctx, o.opts.Client, calls...)
	err = errors.Join(err, o.Give(ctx, partition.All())) // if this fails, the others miss the heartbeats
	if len(given) > 0 {
		o.opts.Changed(given)
	}
	return err
}

// Give gives away those of the partitions that Redis still has as this replica's. Call it again after
// Leave has failed.
func (o *Owner) Give(ctx context.Context, partitions []int) error {
	var changes []change
	o.locked(func() {
		for _, p := range partitions {
			if stored := o.places[p].stored; runOf(stored) == o.run {
				changes = append(changes, change{partition: p, seen: stored})
			}
		}
	})
	_, err := o.change(ctx, changes)
	return err
}

// Close ends the heartbeats and removes the last ones: what this replica has begun and not finished is
// left to others. Call it after Leave.
func (o *Owner) Close(ctx context.Context) error {
	o.endBeats()
	o.background.Wait()
	return o.remove(ctx, o.listShards(), o.run)
}
