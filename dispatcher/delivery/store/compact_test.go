package store_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	"go.opentelemetry.io/otel/trace"

	"spendhook/dispatcher/delivery"
	"spendhook/dispatcher/delivery/attempt"
	"spendhook/dispatcher/delivery/store"
	"spendhook/events"
	"spendhook/events/history"
	"spendhook/events/layout"
	"spendhook/events/publish"
	"spendhook/events/sequence"
	"spendhook/internal/partition"
	"spendhook/internal/redistest"
	"spendhook/internal/tracing"
)

const (
	keepDelivered = 72 * time.Hour
	keepIDs       = 7 * 24 * time.Hour
)

// A replica whose clock is ahead compacts nothing early, forgets no id, and trims no dead letter.
func TestAWrongClockDestroysNothing(t *testing.T) {
	t.Parallel()
	s := newSettled(t, redistest.New(t))
	s.accept(t, "a", "delivered", "dead", "late", "early")
	s.deliveries = store.New(store.Options{ // as a daemon makes it: the scripts use Redis's clock
		Client: s.client,
		Policy: delivery.Policy{Retention: keepIDs, DeadRetention: 30 * 24 * time.Hour, KeepDelivered: keepDelivered},
	})
	dead, other := uuid.New(), uuid.New()
	s.record(t, "dead", dead, delivery.StatusDead, false, false)
	s.record(t, "early", other, delivery.StatusDelivered, false, false)
	s.now = s.began.Add(60 * 24 * time.Hour) // from here on the clock is wrong
	s.record(t, "delivered", other, delivery.StatusDelivered, false, false)
	s.record(t, "late", dead, delivery.StatusDead, false, false) // trims the dead letters of its subscriber
	if n := s.compact(t); n != 0 {
		t.Errorf("%d events were compacted", n)
	}
	for _, id := range []string{"delivered", "dead", "late"} {
		key := partition.Key(s.company, "e:"+s.company.String()+":"+id)
		if left := s.client.PTTL(t.Context(), key).Val(); left < keepIDs-time.Hour {
			t.Errorf("%s is kept for %v", id, left)
		}
	}
	letters := partition.Key(s.company, "dd:"+s.company.String()+"/"+dead.String())
	if n := s.client.ZCard(t.Context(), letters).Val(); n != 2 {
		t.Errorf("%d dead letters are left", n)
	}
}

// settled settles events of one company without a dispatcher, by a clock that only the test
// moves.
type settled struct {
	client     redis.UniversalClient
	events     *history.Reader
	numbers    *sequence.Reader
	publisher  *publish.Publisher
	deliveries *store.Store
	company    uuid.UUID
	began, now time.Time
}

func newSettled(t *testing.T, client redis.UniversalClient) *settled {
	t.Helper()
	now := time.Now().Truncate(time.Second)
	s := &settled{client: client, company: uuid.New(), began: now, now: now}
	clock := func() time.Time { return s.now }
	s.events = history.New(history.Options{Client: client, Retention: keepIDs, Now: clock})
	s.publisher = publish.New(publish.Options{Client: client, Retention: keepIDs, Wake: func(context.Context, []int) {}, Now: clock})
	t.Cleanup(s.publisher.Close)
	s.numbers = sequence.New(client)
	t.Cleanup(s.numbers.Close)
	s.deliveries = store.New(store.Options{
		Client: client, Now: clock,
		Policy: delivery.Policy{Retention: keepIDs, DeadRetention: 30 * 24 * time.Hour, KeepDelivered: keepDelivered},
	})
	return s
}

func (s *settled) ref(id string) events.Ref { return events.Ref{Company: s.company, ID: id} }

// accept accepts events with the content. A further call with the same ids sends them again.
func (s *settled) accept(t *testing.T, content string, ids ...string) []publish.Result {
	t.Helper()
	batch := make([]events.Event, len(ids))
	for i, id := range ids {
		batch[i] = events.Event{
			ID: id, CompanyUUID: s.company, Type: "PAYMENT_PAID", Timestamp: s.began,
			Metadata: jsontext.Value(`{"content":"` + content + `"}`),
		}
	}
	results, err := s.publisher.Accept(t.Context(), batch)
	if err != nil {
		t.Fatal(err)
	}
	return results
}

// record writes a delivery with a status as the next version of its record, and ends the
// matching of its event.
func (s *settled) record(t *testing.T, id string, subscriber uuid.UUID, status delivery.Status, held, guarded bool) *store.Found {
	t.Helper()
	r := delivery.Ref{Ref: s.ref(id), Subscriber: subscriber}
	stored, err := s.events.Get(t.Context(), r.Ref)
	if err != nil {
		t.Fatal(err)
	}
	base := delivery.NewRecord(stored, "")
	if kept, err := s.deliveries.Get(t.Context(), []delivery.Ref{r}); err != nil {
		t.Fatal(err)
	} else if kept[0] != nil {
		base = kept[0]
	}
	next := *base
	next.Status, next.Updated = status, s.now.UnixMilli()
	w := store.Write{Event: r.Ref, Matched: !guarded, Fanout: 1, Held: held, Changes: []store.Change{
		{Ref: r, Base: base, Next: &next, Guarded: guarded},
	}}
	return s.write(t, w)[0]
}

func (s *settled) write(t *testing.T, w store.Write) []*store.Found {
	t.Helper()
	recorded, _, err := s.deliveries.Record(t.Context(), s.now, []store.Write{w})
	if err == nil {
		err = recorded[0].Err
	}
	if err != nil {
		t.Fatal(err)
	}
	return recorded[0].Found
}

// compact compacts all that is due, and returns how many.
func (s *settled) compact(t *testing.T) int {
	t.Helper()
	total := 0
	for more := true; more; {
		n, rest, err := s.deliveries.Compact(t.Context(), s.now, []int{0, partition.Of(s.company), 255})
		if err != nil {
			t.Fatal(err)
		}
		total, more = total+n, len(rest) > 0
	}
	return total
}

func (s *settled) state(t *testing.T, id string) events.State {
	t.Helper()
	stored, err := s.events.Get(t.Context(), s.ref(id))
	if err != nil {
		t.Fatalf("event %s: %v", id, err)
	}
	return stored.State
}

func (s *settled) wantStates(t *testing.T, want map[string]events.State) {
	t.Helper()
	for id, state := range want {
		if got := s.state(t, id); got != state {
			t.Errorf("event %s is %c, want %c", id, got, state)
		}
	}
}

// keys lists the company's keys that have the text.
func (s *settled) keys(t *testing.T, text string) []string {
	t.Helper()
	found, err := s.client.Keys(t.Context(), "*"+text+"*").Result()
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func TestDeliveredEventIsCompacted(t *testing.T) {
	t.Parallel()
	s := newSettled(t, redistest.New(t))
	sub := []uuid.UUID{uuid.New(), uuid.New()}
	s.accept(t, "it", "delivered", "cancelled", "nobody", "later", "pending")
	s.record(t, "delivered", sub[0], delivery.StatusDelivered, false, false)
	s.record(t, "delivered", sub[1], delivery.StatusDelivered, false, true)
	s.record(t, "cancelled", sub[0], delivery.StatusCancelled, false, false)
	s.write(t, store.Write{Event: s.ref("nobody"), Matched: true})
	s.record(t, "later", sub[0], delivery.StatusRetrying, false, false)
	s.record(t, "pending", sub[0], delivery.StatusPending, false, false)
	s.now = s.began.Add(time.Hour)
	s.record(t, "later", sub[0], delivery.StatusDelivered, false, false)

	s.now = s.began.Add(keepDelivered - time.Second)
	if n := s.compact(t); n != 0 {
		t.Errorf("%d were compacted too soon", n)
	}
	s.now = s.began.Add(keepDelivered)
	if n := s.compact(t); n != 3 {
		t.Errorf("%d were compacted, want 3", n)
	}
	s.wantStates(t, map[string]events.State{
		"delivered": events.Compacted, "cancelled": events.Compacted, "nobody": events.Compacted,
		"later": events.Settled, "pending": events.Matched,
	})
	if kept := s.keys(t, "delivered"); len(kept) != 1 || s.client.TTL(t.Context(), kept[0]).Val() <= 0 {
		t.Errorf("keys of a compacted event: %v, or without an end", kept)
	}
	for _, index := range []string{"ei:" + s.company.String(), "da:" + s.company.String() + "/" + sub[0].String()} {
		left := s.client.ZRange(t.Context(), partition.Key(s.company, index), 0, -1).Val()
		if strings.Join(left, " ") != "later pending" {
			t.Errorf("index %s holds %v", index, left)
		}
	}
	for id, want := range map[string]string{"delivered": "DUPLICATE", "later": "DUPLICATE"} {
		if r := s.accept(t, "it", id)[0]; string(r.Status) != want {
			t.Errorf("%s sent again: %v, want %s", id, r, want)
		}
		if r := s.accept(t, "other", id)[0]; !errors.Is(r.Err, publish.ErrConflict) {
			t.Errorf("%s sent again with other content: %v", id, r)
		}
	}
	s.now = s.began.Add(keepDelivered + time.Hour)
	if n := s.compact(t); n != 1 || s.state(t, "later") != events.Compacted {
		t.Errorf("%d were compacted an hour later, want 1", n)
	}
	for _, left := range []string{"done:", "compact"} {
		if k := s.keys(t, left); len(k) != 0 {
			t.Errorf("left behind: %v", k)
		}
	}
}

func TestSomeEventsAreNeverCompacted(t *testing.T) {
	t.Parallel()
	s := newSettled(t, redistest.New(t))
	sub, other := uuid.New(), uuid.New()
	s.accept(t, "it", "dead", "revived", "held", "held-alone", "half", "relapsed")
	for _, status := range []delivery.Status{delivery.StatusDelivered, delivery.StatusDead, delivery.StatusDelivered} {
		s.record(t, "relapsed", sub, status, false, false)
	}
	s.record(t, "dead", sub, delivery.StatusDead, false, false)
	s.record(t, "revived", sub, delivery.StatusDead, false, false)
	s.record(t, "revived", sub, delivery.StatusDelivered, false, true)
	s.record(t, "held", sub, delivery.StatusDelivered, true, false)
	s.write(t, store.Write{Event: s.ref("held-alone"), Matched: true, Held: true})
	s.record(t, "half", sub, delivery.StatusDelivered, false, false)
	s.record(t, "half", other, delivery.StatusDead, false, true)
	s.now = s.began.Add(6 * 24 * time.Hour)
	if n := s.compact(t); n != 0 {
		t.Errorf("%d were compacted", n)
	}
	s.wantStates(t, map[string]events.State{
		"dead": events.Settled, "revived": events.Settled, "held": events.Settled, "held-alone": events.Settled, "half": events.Settled,
		"relapsed": events.Settled,
	})
}

// Replay and compaction race for an event: the first one wins, atomically.
func TestReplayAndCompaction(t *testing.T) {
	t.Parallel()
	s := newSettled(t, redistest.New(t))
	sub := uuid.New()
	s.accept(t, "it", "before", "again", "after")
	for _, id := range []string{"before", "again", "after"} {
		s.record(t, id, sub, delivery.StatusDelivered, false, false)
	}
	s.now = s.began.Add(keepDelivered)
	for _, id := range []string{"before", "again"} { // just before
		if found := s.record(t, id, sub, delivery.StatusPending, false, true); found != nil {
			t.Fatalf("not replayed: %+v", found)
		}
	}
	s.record(t, "again", sub, delivery.StatusDelivered, false, false)
	if n := s.compact(t); n != 1 {
		t.Errorf("%d were compacted, want 1", n)
	}
	s.wantStates(t, map[string]events.State{"before": events.Matched, "again": events.Settled, "after": events.Compacted})
	for _, guarded := range []bool{true, false} { // a replay that had read it before; a late outcome
		if found := s.record(t, "after", sub, delivery.StatusPending, false, guarded); found == nil || !found.Compacted {
			t.Errorf("a delivery of a compacted event was written: %+v", found)
		}
	}
	if k := s.keys(t, "d:"+s.company.String()+"/after"); len(k) != 0 {
		t.Errorf("left behind: %v", k)
	}
	s.now = s.began.Add(2*keepDelivered - time.Second)
	s.record(t, "before", sub, delivery.StatusDelivered, false, false)
	if n := s.compact(t); n != 0 {
		t.Errorf("%d were compacted too soon", n)
	}
	s.now = s.began.Add(2 * keepDelivered)
	if n := s.compact(t); n != 1 || s.state(t, "again") != events.Compacted {
		t.Errorf("%d were compacted, want the one that was settled again", n)
	}
}

func TestCompactionGivesTheCompanyItsBytesBack(t *testing.T) {
	t.Parallel()
	s := newSettled(t, redistest.New(t))
	sub := uuid.New()
	s.accept(t, strings.Repeat("x", 5000), "a", "b")
	s.record(t, "a", sub, delivery.StatusDelivered, false, false)
	bytes := func() (n int64) {
		n, _ = s.client.HGet(t.Context(), partition.Key(s.company, "c:"+s.company.String()), "bytes").Int64()
		return n
	}
	before := bytes()
	s.now = s.began.Add(keepDelivered)
	if n := s.compact(t); n != 1 {
		t.Fatalf("%d were compacted", n)
	}
	if gone := before - bytes(); gone < 5000 || gone >= before/2 {
		t.Errorf("of %d bytes %d are gone", before, gone)
	}
	sum := int64(0)
	for _, text := range s.client.HGetAll(t.Context(), partition.Key(s.company, "cb:"+s.company.String())).Val() {
		n, _ := strconv.ParseInt(text, 10, 64)
		sum += n
	}
	if sum != bytes() {
		t.Errorf("the hours hold %d bytes, the total %d", sum, bytes())
	}
}

// Compaction skips damaged events.
func TestCompactionPassesDamagedEvents(t *testing.T) {
	t.Parallel()
	s := newSettled(t, redistest.New(t))
	sub := uuid.New()
	ids := []string{"a", "list", "gone", "fields", "z"}
	s.accept(t, "it", ids...)
	for _, id := range ids {
		s.record(t, id, sub, delivery.StatusDelivered, false, false)
	}
	s.client.Del(t.Context(), layout.EventKey(s.ref("list")), layout.EventKey(s.ref("gone")))
	s.client.RPush(t.Context(), layout.EventKey(s.ref("list")), "x")
	s.client.Set(t.Context(), partition.Key(s.company, "d:"+s.ref("fields").String()), "x", 0)
	s.now = s.began.Add(keepDelivered)
	if n := s.compact(t); n != 2 {
		t.Errorf("%d were compacted, want 2", n)
	}
}

// TestBytesPerEvent checks the bytes of Redis per event against bounds: pending, delivered and
// compacted.
func TestBytesPerEvent(t *testing.T) {
	t.Parallel()
	const n = 30_000
	s := newSettled(t, redistest.Start(t, redistest.Options{Args: []string{"--hash-max-listpack-value", "512"}}).Client())
	batch := make([]events.Event, n)
	for i := range batch {
		batch[i] = events.Event{ID: fmt.Sprintf("evt_%012d", rand.Int64N(1e12)), CompanyUUID: s.company, Type: "PAYMENT_PAID", Timestamp: s.began}
		body, _ := batch[i].Body()
		batch[i].Metadata = jsontext.Value(`{"f":"` + strings.Repeat("x", 512-len(body)-6) + `"}`)
	}
	if body, _ := batch[0].Body(); len(body) != 512 {
		t.Fatalf("a body of %d bytes", len(body))
	}
	if _, err := s.publisher.Accept(t.Context(), batch); err != nil {
		t.Fatal(err)
	}
	pending := used(t, s.client)
	for part := range slices.Chunk(s.delivered(batch), 1000) { // one call may take longer than the client waits
		if _, _, err := s.deliveries.Record(t.Context(), s.now, part); err != nil {
			t.Fatal(err)
		}
	}
	delivered := used(t, s.client)
	s.now = s.began.Add(keepDelivered)
	if compacted := s.compact(t); compacted != n {
		t.Fatalf("%d of %d were compacted", compacted, n)
	}
	compacted := used(t, s.client)
	if err := s.client.FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	empty := used(t, s.client) // with the server's own, for connections and scripts
	got := [3]int64{(pending - empty) / n, (delivered - empty) / n, (compacted - empty) / n}
	t.Logf("bytes of Redis for an event of 512, pending, delivered and compacted: %d", got)
	// The bounds leave a few percent to the allocators of other builds of Redis.
	if got[0] > 800 || got[1] > 1150 || got[2] > 290 {
		t.Errorf("%d bytes, want at most 800, 1,150 and 290", got)
	}
}

// delivered is what is recorded of events that were delivered at once.
func (s *settled) delivered(batch []events.Event) []store.Write {
	subscriber := uuid.New()
	writes := make([]store.Write, len(batch))
	for i := range batch {
		r := delivery.Ref{Ref: s.ref(batch[i].ID), Subscriber: subscriber}
		base := delivery.NewRecord(events.Stored{Event: batch[i], AcceptedAt: s.now}, "")
		result := attempt.Result{StatusCode: 204, StartedAt: s.now, Duration: 5 * time.Millisecond}
		next := delivery.Decide(*base, result, delivery.Policy{}, s.now, rand.Float64)
		writes[i] = store.Write{Event: r.Ref, Matched: true, Fanout: 1, Changes: []store.Change{{Ref: r, Base: base, Next: &next}}}
	}
	return writes
}

// used is the memory of Redis, after it has freed memory in the background.
func used(t *testing.T, client redis.UniversalClient) int64 {
	t.Helper()
	last := int64(-1)
	for {
		text, err := client.Info(t.Context(), "memory", "stats").Result()
		if err != nil {
			t.Fatal(err)
		}
		now := infoNumber(text, "used_memory:") - infoNumber(text, "mem_clients_normal:")
		lazy := infoNumber(text, "lazyfree_pending_objects:")
		if lazy == 0 && now == last {
			return now
		}
		last = now
	}
}

func infoNumber(info, name string) int64 {
	for line := range strings.Lines(info) {
		if rest, ok := strings.CutPrefix(line, name); ok {
			n, _ := strconv.ParseInt(strings.TrimSpace(rest), 10, 64)
			return n
		}
	}
	return 0
}

// Compacted events can be read by their numbers, with type and times.
func TestCompactedEventsAreReadByNumber(t *testing.T) {
	t.Parallel()
	s := newSettled(t, redistest.New(t))
	sub := uuid.New()
	kinds := []string{"PAYMENT_PAID", "PAYMENT_PAID", "a-b.c:d_0", strings.Repeat("X", 128)}
	var want []sequence.Event
	for i := range 300 {
		e := events.Event{
			ID: uuid.NewString(), CompanyUUID: s.company, Type: kinds[rand.IntN(4)],
			Timestamp: s.began.Add(time.Duration(rand.IntN(600_000)-300_000) * time.Millisecond).UTC(),
		}
		switch i % 3 {
		case 1:
			e.ID = strings.ToUpper(e.ID)
		case 2:
			e.ID += strings.Repeat("-", 92)
		}
		s.now = s.began.Add(time.Duration(i) * 7 * time.Millisecond)
		if _, err := s.publisher.Accept(t.Context(), []events.Event{e}); err != nil {
			t.Fatal(err)
		}
		n := sequence.Event{Ref: s.ref(e.ID), Sequence: int64(i + 1), AcceptedAt: s.now.UTC(), Compacted: i%5 != 0}
		if n.Compacted {
			n.Type, n.Timestamp = e.Type, e.Timestamp
			s.record(t, e.ID, sub, delivery.StatusDelivered, false, false)
		}
		want = append(want, n)
	}
	s.now = s.began.Add(keepDelivered + time.Hour)
	if n := s.compact(t); n != 240 {
		t.Fatalf("%d were compacted", n)
	}
	var got []sequence.Event
	for after := int64(0); after < 300; {
		f, err := s.numbers.After(t.Context(), s.company, after)
		if err != nil {
			t.Fatal(err)
		}
		got, after = append(got, f.Events...), f.Through
	}
	for i := range got {
		got[i].Bytes = 0
	}
	if !slices.Equal(got, want) {
		t.Errorf("read\n%+v\nwant\n%+v", got, want)
	}
}

// A compacted or erased event is recognised as a duplicate in any trace.
func TestCompactionForgetsTheTrace(t *testing.T) {
	t.Parallel()
	s := newSettled(t, redistest.New(t))
	accept := func(id string, of tracing.Parent) publish.Result {
		t.Helper()
		results, err := s.publisher.Accept(t.Context(), []events.Event{
			{ID: id, CompanyUUID: s.company, Type: "PAYMENT_PAID", Timestamp: s.began, Trace: of},
		})
		if err != nil {
			t.Fatal(err)
		}
		return results[0]
	}
	sent := tracing.Parent{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{1}}
	for _, id := range []string{"compacted", "erased"} {
		accept(id, sent)
		s.record(t, id, uuid.New(), delivery.StatusDelivered, false, false)
	}
	if err := s.deliveries.Erase(t.Context(), s.ref("erased")); err != nil {
		t.Fatal(err)
	}
	s.now = s.began.Add(keepDelivered + time.Hour)
	if n := s.compact(t); n != 1 {
		t.Fatalf("%d were compacted", n)
	}
	for _, id := range []string{"compacted", "erased"} {
		if r := accept(id, tracing.Parent{}); r.Status != publish.Duplicate {
			t.Errorf("%s, sent again: %+v", id, r)
		}
		if r := accept(id, tracing.Parent{TraceID: trace.TraceID{2}, SpanID: trace.SpanID{1}}); r.Status != publish.Duplicate {
			t.Errorf("%s, sent again in another trace: %+v", id, r)
		}
	}
}
