package publish_test

import (
	"context"
	"crypto/sha1"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"spendhook/events"
	"spendhook/events/eventtest"
	"spendhook/events/layout"
	"spendhook/events/publish"
	"spendhook/internal/partition"
	"spendhook/internal/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// The event that tests accept, in short.
var (
	company  = eventtest.Company
	noon     = eventtest.Noon
	newEvent = eventtest.Event
	batchOf  = eventtest.Batch
	want     = eventtest.Want
)

const retention = eventtest.Retention

// options are what a test may change of a bundle.
type options = publish.Options

// bundle notes the woken partitions.
type bundle struct {
	*eventtest.Bundle

	mu    sync.Mutex
	woken []int // partitions, each time that a wake-up was asked for
}

func setup(tb testing.TB) *bundle {
	tb.Helper()
	return setupOn(tb, redistest.New(tb), func(*options) {})
}

func setupOn(tb testing.TB, client redis.UniversalClient, change func(*options)) *bundle {
	tb.Helper()
	b := &bundle{}
	b.Bundle = eventtest.On(tb, client, func(o *options) {
		o.Wake = b.wake
		change(o)
	})
	return b
}

func sorted(s []string) []string { slices.Sort(s); return s }

func (b *bundle) wake(_ context.Context, partitions []int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.woken = append(b.woken, partitions...)
}

// wakes are the partitions that a wake-up was asked for, sorted. It closes the
// publisher, since answers do not wait for wake-ups.
func (b *bundle) wakes() []int {
	b.Publisher.Close()
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Sorted(slices.Values(b.woken))
}

// log lists the events of a company, in their order.
func (b *bundle) log(t *testing.T, company uuid.UUID) []string {
	t.Helper()
	ids, err := b.Redis.ZRange(t.Context(), layout.IndexKey(company), 0, -1).Result()
	if err != nil {
		t.Fatal(err)
	}
	return ids
}

// The keys of other packages that accepting writes; see docs/redis.md.
func StateKey(company uuid.UUID) string { return partition.Key(company, "c:"+company.String()) }

// pending are the counts of a company and of its partition.
func (b *bundle) pending(t *testing.T, company uuid.UUID) (ofCompany, ofPartition int) {
	t.Helper()
	ofCompany, _ = b.Redis.HGet(t.Context(), StateKey(company), "pending").Int()
	ofPartition, _ = b.Redis.Get(t.Context(), partition.Key(company, "pending")).Int()
	return ofCompany, ofPartition
}

func TestAcceptWritesTheEventAndItsPendingDispatch(t *testing.T) {
	t.Parallel()
	b := setup(t)
	e := newEvent("e1")
	e.Metadata = jsontext.Value(`{ "b": 1, "a": "x" }`)
	want(t, "answer", b.Accept(t, e), "ACCEPTED")

	stored, err := b.Reader.Get(t.Context(), events.Ref{Company: company, ID: "e1"})
	if err != nil {
		t.Fatal(err)
	}
	if got := string(stored.Body); got != eventtest.Body(t, e) || !stored.AcceptedAt.Equal(noon) || stored.Type != e.Type {
		t.Errorf("stored %s at %v", got, stored.AcceptedAt)
	}
	if stored.State != events.Ready || stored.Sequence != 1 {
		t.Errorf("state %c, sequence %d", stored.State, stored.Sequence)
	}
	want(t, "log", b.log(t, company), "e1")
	if got := b.wakes(); !slices.Equal(got, []int{partition.Of(company)}) {
		t.Errorf("woken: %v", got)
	}
	var keys []string
	for _, rest := range []string{"active", "c:" + company.String(), "cb:" + company.String(), "companies", "e:" + company.String() + ":e1", "ei:" + company.String(), "en:" + company.String(), "pending", "told"} {
		keys = append(keys, partition.Key(company, rest))
	}
	want(t, "keys", b.keys(t), keys...)
}

func (b *bundle) keys(t *testing.T) []string {
	t.Helper()
	keys, err := b.Redis.Keys(t.Context(), "*").Result()
	if err != nil {
		t.Fatal(err)
	}
	return sorted(keys)
}

func TestAcceptTwice(t *testing.T) {
	t.Parallel()
	b := setup(t)
	e, other, foreign := newEvent("e1"), newEvent("e1"), newEvent("e1")
	e.Metadata, other.Metadata = jsontext.Value(`{"a":1,"b":2}`), jsontext.Value(`{"a":1,"b":3}`)
	want(t, "first", b.Accept(t, e), "ACCEPTED")
	before := b.dump(t)
	e.Metadata = jsontext.Value(`{ "b":2, "a":1 }`)
	want(t, "again", b.Accept(t, e, other, e), "DUPLICATE", "CONFLICT", "DUPLICATE")
	if after := b.dump(t); after != before {
		t.Errorf("a known id changed Redis from\n%s\nto\n%s", before, after)
	}
	foreign.CompanyUUID = uuid.New()
	want(t, "the id at another company", b.Accept(t, foreign), "ACCEPTED")
	want(t, "log", b.log(t, company), "e1")
	want(t, "log of the other", b.log(t, foreign.CompanyUUID), "e1")
}

// dump is all that Redis holds, without times to live.
func (b *bundle) dump(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	for _, key := range b.keys(t) {
		value, err := b.Redis.Dump(t.Context(), key).Result()
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&all, "%s=%q\n", key, value)
	}
	return all.String()
}

func TestAnArrayIsAnsweredInOrder(t *testing.T) {
	t.Parallel()
	b := setup(t)
	bad, old, twice := newEvent("a.b"), newEvent("old"), newEvent("e1")
	old.Timestamp = noon.Add(-retention - time.Second)
	twice.ErrorCode = "E"
	binary, truncated := newEvent("bin"), newEvent("cut")
	binary.ErrorMessage, truncated.Metadata = "\xff", jsontext.Value(`{"a":`)
	want(t, "answer",
		b.Accept(t, newEvent("e1"), bad, newEvent("e2"), newEvent("e1"), old, twice, binary, truncated),
		"ACCEPTED", "INVALID", "ACCEPTED", "DUPLICATE", "INVALID", "CONFLICT", "INVALID", "INVALID")
	want(t, "log", b.log(t, company), "e1", "e2")
	const metrics = `# HELP spendhook_events_total Events submitted, by result: storage_full when the company holds its share of Redis's memory, memory_full when Redis has none left for any company.
# TYPE spendhook_events_total counter
spendhook_events_total{result="accepted"} 2
spendhook_events_total{result="backlog_full"} 0
spendhook_events_total{result="conflict"} 1
spendhook_events_total{result="duplicate"} 1
spendhook_events_total{result="invalid"} 4
spendhook_events_total{result="memory_full"} 0
spendhook_events_total{result="storage_full"} 0
spendhook_events_total{result="unavailable"} 0
`
	if err := testutil.GatherAndCompare(b.Registry, strings.NewReader(metrics), "spendhook_events_total"); err != nil {
		t.Error(err)
	}
}

func TestNothingValidWritesNothing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	want(t, "none", b.Accept(t))
	want(t, "answer", b.Accept(t, newEvent("a.b")), "INVALID")
	want(t, "keys", b.keys(t))
}

// An answer waits only until the event and its place in the log are written.
func TestTheAnswerDoesNotWaitForTheWakeUp(t *testing.T) {
	t.Parallel()
	answered := make(chan struct{})
	var b *bundle
	b = setupOn(t, redistest.New(t), func(o *options) {
		o.Wake = func(ctx context.Context, partitions []int) {
			<-answered
			b.wake(ctx, partitions)
		}
	})
	want(t, "answer", b.Accept(t, newEvent("e1")), "ACCEPTED")
	want(t, "log", b.log(t, company), "e1")
	close(answered)
	if got := b.wakes(); !slices.Equal(got, []int{partition.Of(company)}) {
		t.Errorf("woken: %v", got)
	}
}

// Until the owner of a partition has read what it was told, Accept asks for no other wake-up.
func TestAPartitionIsWokenOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for i := range 5 {
		b.Accept(t, newEvent(strconv.Itoa(i)))
	}
	b.Redis.Del(t.Context(), partition.Key(company, "told")) // as the owner does
	b.Accept(t, newEvent("again"))
	if got := b.wakes(); len(got) != 2 {
		t.Errorf("woken: %v", got)
	}
}

// Invariant 2: of concurrent requests with the same event, exactly one is answered ACCEPTED.
func TestConcurrentAcceptsOfOneID(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const rounds, callers = 20, 64
	for round := range rounds {
		id := fmt.Sprintf("e%d", round)
		count := map[string]int{}
		for _, said := range b.race(t, callers, func(int) []events.Event { return []events.Event{newEvent(id), newEvent(id)} }) {
			count[said]++
		}
		if count["ACCEPTED"] != 1 || count["DUPLICATE"] != 2*callers-1 {
			t.Fatalf("answers %v, want one ACCEPTED and the rest DUPLICATE", count)
		}
	}
	if got := b.log(t, company); len(got) != rounds {
		t.Errorf("%d in the log, want %d", len(got), rounds)
	}
}

func TestConcurrentAcceptsOfOneIDWithDifferentContent(t *testing.T) {
	t.Parallel()
	b := setup(t)
	count := map[string]int{}
	for _, said := range b.race(t, 64, func(i int) []events.Event {
		e := newEvent("e1")
		e.ErrorCode = strconv.Itoa(i)
		return []events.Event{e}
	}) {
		count[said]++
	}
	if count["ACCEPTED"] != 1 || count["CONFLICT"] != 63 {
		t.Errorf("answers %v, want one ACCEPTED and 63 CONFLICT", count)
	}
}

// race lets n callers accept at once and returns all answers.
func (b *bundle) race(t *testing.T, n int, batch func(int) []events.Event) []string {
	t.Helper()
	var (
		wg  sync.WaitGroup
		mu  sync.Mutex
		all []string
	)
	start := make(chan struct{})
	for i := range n {
		wg.Go(func() {
			<-start
			said := b.Accept(t, batch(i)...)
			mu.Lock()
			defer mu.Unlock()
			all = append(all, said...)
		})
	}
	close(start)
	wg.Wait()
	return all
}

// Random sends over a few ids are answered as by a map of ids.
func TestAcceptAgainstModel(t *testing.T) {
	t.Parallel()
	b := setup(t)
	var run int
	rapid.Check(t, func(rt *rapid.T) {
		run++
		model := map[string]string{}
		for range rapid.IntRange(1, 5).Draw(rt, "calls") {
			var batch []events.Event
			var expect []string
			for range rapid.IntRange(1, 8).Draw(rt, "size") {
				e := newEvent(fmt.Sprintf("r%d-%d", run, rapid.IntRange(0, 3).Draw(rt, "id")))
				e.ErrorCode = rapid.SampledFrom([]string{"", "A", "B"}).Draw(rt, "content")
				batch = append(batch, e)
				expect = append(expect, sendToModel(model, e))
			}
			want(t, "answers", b.Accept(t, batch...), expect...)
		}
		if t.Failed() {
			rt.Fatalf("the model differs")
		}
	})
}

func sendToModel(model map[string]string, e events.Event) string {
	known, ok := model[e.ID]
	switch {
	case !ok:
		model[e.ID] = e.ErrorCode
		return "ACCEPTED"
	case known == e.ErrorCode:
		return "DUPLICATE"
	}
	return "CONFLICT"
}

func TestScriptFlushIsMended(t *testing.T) {
	t.Parallel()
	b := setupOn(t, redistest.Start(t, redistest.Options{}).Client(), func(*options) {})
	want(t, "fresh server", b.Accept(t, newEvent("e1"), newEvent("e2"), newEvent("e1")), "ACCEPTED", "ACCEPTED", "DUPLICATE")
	if err := b.Redis.ScriptFlush(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	want(t, "flushed server", b.Accept(t, newEvent("e2"), newEvent("e3")), "DUPLICATE", "ACCEPTED")
	want(t, "log", b.log(t, company), "e1", "e2", "e3")
}

func TestClosedPublisherRefuses(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Publisher.Close()
	b.Publisher.Close()
	if _, err := b.Publisher.Accept(t.Context(), []events.Event{newEvent("e1")}); !errors.Is(err, publish.ErrClosed) {
		t.Errorf("accept after close: %v, want ErrClosed", err)
	}
	want(t, "keys", b.keys(t))
}

// What is queued when Close is called is still accepted and answered.
func TestCloseCommitsTheQueue(t *testing.T) {
	t.Parallel()
	busy, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	b := setupOn(t, redistest.New(t), func(o *options) {
		o.Wake = func(context.Context, []int) { once.Do(func() { close(busy); <-release }) }
	})
	var wg sync.WaitGroup
	want(t, "first", b.Accept(t, newEvent("e")), "ACCEPTED")
	<-busy
	for i := range 4 {
		wg.Go(func() { want(t, "queued", b.Accept(t, newEvent(strconv.Itoa(i))), "ACCEPTED") })
	}
	for b.Publisher.Queued() < 4 {
		runtime.Gosched()
	}
	wg.Go(b.Publisher.Close)
	for !b.refuses(t) {
		runtime.Gosched()
	}
	close(release)
	wg.Wait()
	if got := len(b.log(t, company)); got != 5 {
		t.Errorf("%d in the log, want 5", got)
	}
}

// refuses reports whether the publisher is closing; nothing is sent.
func (b *bundle) refuses(t *testing.T) bool {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := b.Publisher.Accept(ctx, []events.Event{newEvent("probe")})
	return errors.Is(err, publish.ErrClosed)
}

// Each Accept that overlaps Close is either refused or durable.
func TestCloseDrains(t *testing.T) {
	t.Parallel()
	b := setup(t)
	var wg sync.WaitGroup
	var mu sync.Mutex
	var accepted []string
	for i := range 64 {
		wg.Go(func() {
			id := fmt.Sprintf("e%02d", i)
			results, err := b.Publisher.Accept(t.Context(), []events.Event{newEvent(id)})
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil && results[0].Status == publish.Accepted:
				accepted = append(accepted, id)
			case !errors.Is(err, publish.ErrClosed):
				t.Errorf("accept: %+v, %v", results, err)
			}
		})
	}
	b.Publisher.Close()
	wg.Wait()
	want(t, "log", sorted(b.log(t, company)), sorted(accepted)...)
}

// Pending events do not expire. The index and the byte counters expire once no more events
// arrive.
func TestPendingHasNoTimeToLive(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Accept(t, newEvent("e1"))
	for _, key := range b.keys(t) {
		ttl, err := b.Redis.PTTL(t.Context(), key).Result()
		if err != nil {
			t.Fatal(err)
		}
		if key == partition.Key(company, "cb:"+company.String()) || key == partition.Key(company, "en:"+company.String()) {
			continue
		}
		if key != layout.IndexKey(company) {
			if ttl >= 0 {
				t.Errorf("%s expires in %v: pending work would be lost", key, ttl)
			}
			continue
		}
		if full := retention + 10*time.Minute; ttl > full || ttl < full-time.Minute {
			t.Errorf("%s expires in %v, want %v", key, ttl, full)
		}
	}
}

func TestAcceptTrimsTheIndexes(t *testing.T) {
	t.Parallel()
	b := setup(t)
	index, companies := layout.IndexKey(company), partition.Key(company, "companies")
	for i := range 25 {
		expired := redis.Z{Score: float64(noon.Add(-retention).UnixMilli() - 1), Member: fmt.Sprintf("old%02d", i)}
		b.Redis.ZAdd(t.Context(), index, expired)
		b.Redis.ZAdd(t.Context(), companies, expired)
	}
	b.Redis.ZAdd(t.Context(), index, redis.Z{Score: float64(noon.Add(-retention).UnixMilli()), Member: "kept"})
	b.Redis.HSet(t.Context(), StateKey(company), "cursor", noon.UnixMilli()) // all are matched
	for i, left := range []int64{25 - 10 + 2, 25 - 20 + 3, 4, 5} {
		b.Accept(t, newEvent(fmt.Sprintf("e%d", i)))
		if got := b.Redis.ZCard(t.Context(), index).Val(); got != left {
			t.Errorf("after accept %d the index has %d ids, want %d", i, got, left)
		}
	}
	want(t, "companies", b.Redis.ZRange(t.Context(), companies, 0, -1).Val(), company.String())
}

// A compacted event is recognised by its digest when it is sent again.
func TestACompactedEventIsKnown(t *testing.T) {
	t.Parallel()
	b := setup(t)
	e, other := newEvent("evt_1"), newEvent("evt_1")
	other.ErrorCode = "OTHER"
	header := fmt.Sprintf("C%013d%08x%010x", noon.UnixMilli(), 1, 17)
	sum := sha1.Sum(layout.Encode(&events.Stored{Event: e, Body: []byte(eventtest.Body(t, e))}))
	ref := events.Ref{Company: company, ID: e.ID}
	if err := b.Redis.Set(t.Context(), layout.EventKey(ref), header+string(sum[:12]), 0).Err(); err != nil {
		t.Fatal(err)
	}
	before := b.dump(t)
	want(t, "sent again", b.Accept(t, e, other, e), "DUPLICATE", "CONFLICT", "DUPLICATE")
	if after := b.dump(t); after != before {
		t.Errorf("Redis changed from\n%s\nto\n%s", before, after)
	}
	got, err := b.Reader.Get(t.Context(), ref)
	if err != nil || got.State != events.Compacted || got.Body != nil || got.Ref() != ref || got.Sequence != 17 || !got.AcceptedAt.Equal(noon) {
		t.Errorf("read %+v, %v", got, err)
	}
}

// A clock that is years ahead, or days behind, does not decide the times of acceptance.
func TestAWrongClockDoesNotSetTheTimeOfAcceptance(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for id, clock := range map[string]func() time.Time{
		"ahead":  func() time.Time { return time.Date(2099, 1, 1, 0, 0, 0, 0, time.UTC) },
		"behind": func() time.Time { return time.Now().Add(-48 * time.Hour) },
	} {
		b.Publisher.SetClock(clock)
		e := newEvent(id)
		e.Timestamp = clock()
		before := time.Now()
		want(t, id, b.Accept(t, e), "ACCEPTED")
		stored, err := b.Reader.Get(t.Context(), events.Ref{Company: company, ID: id})
		if err != nil || stored.AcceptedAt.Before(before.Add(-time.Minute)) || stored.AcceptedAt.After(time.Now().Add(time.Minute)) {
			t.Errorf("%s: read %+v, %v", id, stored, err)
		}
	}
}
