package publish_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/dispatcher/delivery"
	"spendhook/dispatcher/delivery/store"
	"spendhook/events"
	"spendhook/events/layout"
	"spendhook/events/publish"
	"spendhook/internal/partition"
	"spendhook/internal/redistest"
	"spendhook/internal/waittest"
)

// mustBeNumbered checks that a company's events have the sequence numbers 1..n in
// the order of its log, and returns that.
func (b *bundle) mustBeNumbered(t *testing.T, company uuid.UUID, n int) []string {
	t.Helper()
	ready := b.log(t, company)
	refs := make([]events.Ref, len(ready))
	for i, id := range ready {
		refs[i] = events.Ref{Company: company, ID: id}
	}
	stored, err := b.Reader.GetMany(t.Context(), refs)
	if err != nil || len(stored) != n {
		t.Fatalf("%d in the log, want %d, %v", len(stored), n, err)
	}
	for i, s := range stored {
		if s == nil || s.Sequence != int64(i+1) {
			t.Fatalf("number %d of the log is %+v", i+1, s)
		}
	}
	return ready
}

func TestSequenceNumbersAreTheOrderOfAcceptance(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for i := range 5 {
		b.Accept(t, newEvent(fmt.Sprintf("one%d", i)))
	}
	b.Accept(t, append(batchOf(company, "many", 200), newEvent("one0"), newEvent("a.b"))...)
	b.Accept(t, newEvent("last"))
	want := []string{"one0", "one1", "one2", "one3", "one4"}
	for _, e := range batchOf(company, "many", 200) {
		want = append(want, e.ID)
	}
	if got := b.mustBeNumbered(t, company, 206); !slices.Equal(got, append(want, "last")) {
		t.Errorf("log %q", got)
	}
}

// The events of one request stay in order while requests and commits of several companies run
// concurrently.
func TestArraysKeepTheirOrder(t *testing.T) {
	t.Parallel()
	b := setup(t)
	companies := []uuid.UUID{{1}, {2}, {3}}
	const callers, size = 8, 150
	var wg sync.WaitGroup
	for _, c := range companies {
		for caller := range callers {
			wg.Go(func() { b.Accept(t, batchOf(c, fmt.Sprintf("c%d-", caller), size)...) })
		}
	}
	wg.Wait()
	for _, c := range companies {
		last := map[string]string{}
		for _, id := range b.mustBeNumbered(t, c, callers*size) {
			caller := id[:3]
			if id <= last[caller] {
				t.Errorf("%s comes after %s", id, last[caller])
			}
			last[caller] = id
		}
	}
}

func TestConcurrentEventsAreNumbered(t *testing.T) {
	t.Parallel()
	b := setup(t)
	other := uuid.UUID{9}
	b.race(t, 64, func(i int) []events.Event {
		return append(batchOf(company, fmt.Sprintf("a%d-", i), 3), batchOf(other, fmt.Sprintf("b%d-", i), 2)...)
	})
	b.mustBeNumbered(t, company, 64*3)
	b.mustBeNumbered(t, other, 64*2)
}

// A company at its quota of pending events is refused event by event. Its earlier events are
// still known.
func TestBacklogFull(t *testing.T) {
	t.Parallel()
	b := setupOn(t, redistest.New(t), func(o *options) { o.Backlog = 5 })
	want(t, "the first three", b.Accept(t, batchOf(company, "a", 3)...), "ACCEPTED", "ACCEPTED", "ACCEPTED")
	conflict := newEvent("a0001")
	conflict.ErrorCode = "OTHER"
	batch := append(batchOf(company, "b", 4), newEvent("a0000"), conflict, newEvent("b0000"), newEvent("b0003"), newEvent("a.b"))
	foreign := batchOf(uuid.UUID{9}, "x", 1)[0]
	want(t, "two more", b.Accept(t, append(batch, foreign)...),
		"ACCEPTED", "ACCEPTED", "BACKLOG_FULL", "BACKLOG_FULL", "DUPLICATE", "CONFLICT", "DUPLICATE", "BACKLOG_FULL", "INVALID", "ACCEPTED")
	before := b.dump(t)
	want(t, "again", b.Accept(t, batchOf(company, "b", 4)...), "DUPLICATE", "DUPLICATE", "BACKLOG_FULL", "BACKLOG_FULL")
	if after := b.dump(t); after != before {
		t.Errorf("refused events changed Redis from\n%s\nto\n%s", before, after)
	}
	b.settle(t, "a0000", "b0001")
	want(t, "when two have settled", b.Accept(t, batchOf(company, "b", 5)...), "DUPLICATE", "DUPLICATE", "ACCEPTED", "ACCEPTED", "BACKLOG_FULL")
	if ofCompany, ofPartition := b.pending(t, company); ofCompany != 5 || ofPartition != 5 {
		t.Errorf("%d and %d pending, want 5", ofCompany, ofPartition)
	}
}

// settle settles events as the dispatcher does when no subscriber matches.
func (b *bundle) settle(t *testing.T, ids ...string) {
	t.Helper()
	deliveries := store.New(store.Options{
		Client: b.Redis, Policy: delivery.Policy{Retention: retention, DeadRetention: retention}, Now: time.Now,
	})
	var writes []store.Write
	for _, id := range ids {
		writes = append(writes, store.Write{Event: events.Ref{Company: company, ID: id}, Matched: true})
	}
	recorded, _, err := deliveries.Record(t.Context(), noon, writes)
	for _, r := range recorded {
		err = errors.Join(err, r.Err)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestTheBacklogIsExactUnderConcurrency(t *testing.T) {
	t.Parallel()
	const limit = 100
	b := setupOn(t, redistest.New(t), func(o *options) { o.Backlog = limit })
	count := map[string]int{}
	for _, said := range b.race(t, 32, func(i int) []events.Event { return batchOf(company, fmt.Sprintf("c%d-", i), 7) }) {
		count[said]++
	}
	if count["ACCEPTED"] != limit || count["BACKLOG_FULL"] != 32*7-limit {
		t.Errorf("answers %v, want %d accepted", count, limit)
	}
	b.mustBeNumbered(t, company, limit)
}

// An array of one company does not delay an event of another: a commit takes at most 64 events
// of a company while others wait.
func TestArrayDoesNotDelayOtherCompanies(t *testing.T) {
	t.Parallel()
	other := uuid.UUID{9}
	busy, release := make(chan struct{}), make(chan struct{})
	commits := 0
	var b *bundle
	b = setupOn(t, redistest.New(t), func(o *options) {
		o.Wake = func(ctx context.Context, _ []int) { // a commit was answered
			switch commits++; commits {
			case 1:
				close(busy)
				<-release
			case 2:
				if b.Redis.ZCard(ctx, layout.IndexKey(other)).Val() != 1 {
					t.Error("the first possible commit left out the other company's event")
				}
				if n := b.Redis.ZCard(ctx, layout.IndexKey(company)).Val(); n > 1+64 {
					t.Errorf("%d events of the array were committed before another company's event", n-1)
				}
			}
		}
	})
	b.Accept(t, newEvent("first"))
	<-busy
	var wg sync.WaitGroup
	wg.Go(func() { b.Accept(t, batchOf(company, "big", 1000)...) })
	b.waitForQueued(1000)
	wg.Go(func() { want(t, "the other's", b.Accept(t, batchOf(other, "small", 1)...), "ACCEPTED") })
	b.waitForQueued(1001)
	close(release)
	wg.Wait()
	b.mustBeNumbered(t, company, 1001)
}

func (b *bundle) waitForQueued(n int) {
	for b.Publisher.Queued() < n {
		runtime.Gosched()
	}
}

// A shard without events that wait has no committer: addresses of shards that are gone leave nothing behind.
func TestAnIdleShardHasNoCommitter(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for i := range 3 {
		want(t, "accept", b.Accept(t, newEvent(strconv.Itoa(i))), "ACCEPTED")
		waittest.Until(t, "the committer ends", func() bool { return b.Publisher.Committers() == 0 })
	}
}

// A commit is bounded, however many companies its events belong to.
func TestACommitIsBounded(t *testing.T) {
	t.Parallel()
	companies := []uuid.UUID{{1}, {2}, {3}}
	busy, release := make(chan struct{}), make(chan struct{})
	commits, before := 0, int64(0)
	var b *bundle
	b = setupOn(t, redistest.New(t), func(o *options) {
		o.Wake = func(ctx context.Context, _ []int) {
			if commits++; commits == 1 {
				close(busy)
				<-release
			}
			now := int64(0)
			for _, c := range companies {
				now += b.Redis.ZCard(ctx, layout.IndexKey(c)).Val()
			}
			if now-before > 128 {
				t.Errorf("commit %d wrote %d events", commits, now-before)
			}
			before = now
		}
	})
	b.Accept(t, newEvent("first"))
	<-busy
	var wg sync.WaitGroup
	for _, c := range companies {
		wg.Go(func() { b.Accept(t, batchOf(c, "e", 200)...) })
	}
	b.waitForQueued(3 * 200)
	close(release)
	wg.Wait()
	b.Publisher.Close() // after the last wake-up
}

// A shard that hangs fails the events of its own companies only.
func TestAHungShardFailsItsOwnCompaniesOnly(t *testing.T) {
	t.Parallel()
	t.Cleanup(func() { waitForDialers(t) })
	servers := redistest.Cluster(t, 3)
	var addrs []string
	for _, s := range servers {
		addrs = append(addrs, s.Addr())
		// The other nodes must not mark the hung one as failed, however long the test takes.
		if err := s.Client().ConfigSet(t.Context(), "cluster-node-timeout", "3600000").Err(); err != nil {
			t.Fatal(err)
		}
	}
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs, ContextTimeoutEnabled: true})
	t.Cleanup(func() { _ = client.Close() })
	b := setupOn(t, client, func(*options) {})
	hung, well := b.companiesOf(t, servers[1].Addr()), b.companiesOf(t, servers[0].Addr())
	for _, c := range append(hung, well...) {
		want(t, "before", b.Accept(t, batchOf(c, "before", 1)...), "ACCEPTED")
	}
	servers[1].Pause()
	var waiting sync.WaitGroup
	done := make(chan struct{})
	for i, c := range slices.Concat(hung, hung, hung) {
		waiting.Go(func() { b.mustFailUntil(t, done, batchOf(c, "hung"+strconv.Itoa(i), 3)) })
	}
	// If each waited for one commit of the hung shard, they would take longer.
	patience, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for i := range 100 {
		for _, c := range well {
			results, err := b.Publisher.Accept(patience, batchOf(c, fmt.Sprintf("e%d-", i), 1))
			if err != nil || results[0].Status != publish.Accepted {
				t.Fatalf("accept beside a hung shard: %+v, %v", results, err)
			}
		}
	}
	close(done)
	waiting.Wait()
	servers[1].Resume()
	for _, c := range hung {
		b.acceptAgain(t, batchOf(c, "after", 1)[0])
	}
}

// mustFailUntil sends a batch to a server that does not answer, until done.
func (b *bundle) mustFailUntil(t *testing.T, done <-chan struct{}, batch []events.Event) {
	t.Helper()
	for {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		_, err := b.Publisher.Accept(ctx, batch)
		cancel()
		if !errors.Is(err, events.ErrUnavailable) {
			t.Errorf("accept by a hung shard: %v, want ErrUnavailable", err)
			return
		}
		select {
		case <-done:
			return
		case <-t.Context().Done():
			return
		default:
		}
	}
}

// companiesOf are three companies whose partitions a server serves.
func (b *bundle) companiesOf(t *testing.T, addr string) []uuid.UUID {
	t.Helper()
	var found []uuid.UUID
	for i := 0; len(found) < 3; i++ {
		c := uuid.UUID{byte(i), byte(i >> 8), 3}
		shard, err := partition.Shard(t.Context(), b.Redis, partition.Of(c))
		if err != nil {
			t.Fatal(err)
		}
		if shard == addr {
			found = append(found, c)
		}
	}
	return found
}
