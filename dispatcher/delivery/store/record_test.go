package store

import (
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/dispatcher/delivery"
	"spendhook/dispatcher/delivery/attempt"
	"spendhook/events"
	"spendhook/events/layout"
	"spendhook/internal/partition"
	"spendhook/internal/queues"
	"spendhook/internal/redistest"
)

// contents is every key with its value, and its time to live in minutes.
func contents(t *testing.T, client redis.UniversalClient) map[string]string {
	t.Helper()
	keys, err := client.Keys(t.Context(), "*").Result()
	if err != nil {
		t.Fatal(err)
	}
	out := make(map[string]string)
	for _, key := range keys {
		var value any
		switch kind := client.Type(t.Context(), key).Val(); kind {
		case "hash":
			value, err = client.HGetAll(t.Context(), key).Result()
		case "zset":
			value, err = client.ZRangeWithScores(t.Context(), key, 0, -1).Result()
		case "list":
			value, err = client.Sort(t.Context(), key, &redis.Sort{Alpha: true}).Result() // the order within a second says nothing
		case "string":
			value, err = client.Get(t.Context(), key).Result()
		default:
			t.Fatalf("%s is a %s", key, kind)
		}
		if err != nil {
			t.Fatal(err)
		}
		out[key] = fmt.Sprintf("%v for %v", value, client.PTTL(t.Context(), key).Val().Round(time.Hour)) // a busy machine may write one of them minutes later
	}
	return out
}

// deliveredWrites is events of two companies delivered to some of three
// subscribers; one was delivered to nobody, one is not settled yet.
func deliveredWrites(now time.Time) []Write {
	companies := []uuid.UUID{uuid.MustParse("0b1e0000-0000-4000-8000-000000000001"), uuid.MustParse("0b1e0000-0000-4000-8000-000000000002")}
	subs := []uuid.UUID{uuid.MustParse("5b1e0000-0000-4000-8000-000000000001"), uuid.MustParse("5b1e0000-0000-4000-8000-000000000002"), uuid.MustParse("5b1e0000-0000-4000-8000-000000000003")}
	var writes []Write
	for i := range 200 {
		w := Write{Event: events.Ref{Company: companies[i%2], ID: fmt.Sprint("evt-", i)}, Matched: i != 7}
		for _, sub := range subs[:i%4] {
			base := &delivery.Record{Status: delivery.StatusPending, EventType: "PAYMENT_PAID", Created: now.UnixMilli()}
			next := *base
			next.Status, next.Count = delivery.StatusDelivered, 1
			w.Changes = append(w.Changes, Change{Ref: delivery.Ref{Ref: w.Event, Subscriber: sub}, Base: base, Next: &next})
		}
		w.Fanout = len(w.Changes)
		writes = append(writes, w)
	}
	return writes
}

// accept stores the events of writes.
func accept(t *testing.T, client redis.UniversalClient, now time.Time, writes []Write) {
	t.Helper()
	pipe := client.Pipeline()
	for _, w := range writes {
		p := partition.Of(w.Event.Company)
		pipe.Set(t.Context(), layout.EventKey(w.Event), fmt.Sprintf("R%013d%08x%010x{}", now.UnixMilli(), 1, 1), 0)
		pipe.HIncrBy(t.Context(), partition.Key(w.Event.Company, "c:"+w.Event.Company.String()), "pending", 1)
		pipe.Incr(t.Context(), partition.Prefix(p)+"pending")
	}
	if _, err := pipe.Exec(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestManyDeliveredAreWrittenAsEachAloneWouldBe(t *testing.T) {
	t.Parallel()
	now := time.Now()
	one, many := redistest.New(t), redistest.New(t)
	writes := deliveredWrites(now)
	for _, client := range []redis.UniversalClient{one, many} {
		accept(t, client, now, writes)
	}
	recorded, wakes, err := storeOn(many).Record(t.Context(), now, under("replica", writes))
	if err != nil || len(wakes) > 0 {
		t.Fatal(wakes, err)
	}
	for i, r := range recorded {
		if r.Err != nil || len(r.Found) != len(writes[i].Changes) {
			t.Fatalf("%s: %+v", writes[i].Event, r)
		}
		for _, f := range r.Found {
			if f != nil {
				t.Errorf("%s: found %+v", writes[i].Event, f)
			}
		}
	}
	for i := range writes {
		recorded, _, err := storeOn(one).Record(t.Context(), now, under("replica", writes[i:i+1]))
		if all := found(t, recorded, err); len(all) > 0 {
			t.Fatalf("%s: found %+v", writes[i].Event, all)
		}
	}
	if got, want := contents(t, many), contents(t, one); !reflect.DeepEqual(got, want) {
		for key := range want {
			if got[key] != want[key] {
				t.Errorf("%s: got %.200s\nwant %.200s", key, got[key], want[key])
			}
		}
		t.Errorf("%d keys, want %d", len(got), len(want))
	}
}

// found lists what was found instead of what was to be written.
func found(t *testing.T, recorded []Recorded, err error) (all []*Found) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range recorded {
		if r.Err != nil {
			t.Fatal(r.Err)
		}
		for _, f := range r.Found {
			if f != nil {
				all = append(all, f)
			}
		}
	}
	return all
}

// An event with unreadable deliveries is reported. The other events of the same call are
// written.
func TestDamagedDeliveriesDoNotBlockOthers(t *testing.T) {
	t.Parallel()
	for name, outcome := range map[string]func(h *harness) func(delivery.Record) delivery.Record{
		"delivered at once": func(h *harness) func(delivery.Record) delivery.Record { return h.succeed },
		"failed":            func(h *harness) func(delivery.Record) delivery.Record { return h.fail },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHarness(t)
			var writes []Write
			for _, id := range []string{"e1", "damaged", "e3"} {
				e := h.accept(t, id)
				writes = append(writes, Write{Event: e, Matched: true, Fanout: 1, Changes: []Change{h.first(delivery.Ref{Ref: e, Subscriber: uuid.New()}, outcome(h))}})
			}
			if err := h.client.Set(t.Context(), deliveriesKey(writes[1].Event), "no hash", 0).Err(); err != nil {
				t.Fatal(err)
			}
			recorded, _, err := h.Record(t.Context(), h.now, under(testReplica, writes))
			if all := found(t, recorded, err); len(all) != 1 || !all[0].Damaged || recorded[1].Found[0] != all[0] {
				t.Fatalf("found %+v", all)
			}
			for _, i := range []int{0, 2} {
				if got := h.stored(t, writes[i].Changes[0].Ref); got == nil || got.Count != 1 {
					t.Errorf("%s is %+v", writes[i].Event, got)
				}
			}
		})
	}
}

// A damaged key that only compaction needs does not leave the event in the count of pending ones.
func TestDamagedListOfSettledEvents(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	e := h.accept(t, "e1")
	prefix := partition.Prefix(partition.Of(e.Company))
	if err := h.client.Set(t.Context(), prefix+"done:"+e.Company.String(), "damaged", 0).Err(); err != nil {
		t.Fatal(err)
	}
	write := Write{Event: e, Matched: true, Fanout: 1, Changes: []Change{h.first(delivery.Ref{Ref: e, Subscriber: uuid.New()}, h.succeed)}}
	recorded, _, err := h.Record(t.Context(), h.now, under(testReplica, []Write{write}))
	if all := found(t, recorded, err); len(all) > 0 {
		t.Fatalf("found %+v", all)
	}
	for _, count := range []*redis.StringCmd{h.client.HGet(t.Context(), prefix+"c:"+e.Company.String(), "pending"), h.client.Get(t.Context(), prefix+"pending")} {
		if n, err := count.Int(); err != nil || n != 0 {
			t.Errorf("%v: %d events are pending (%v)", count.Args(), n, err)
		}
	}
}

func TestConflictsOfDeliveredWritesAreReported(t *testing.T) {
	t.Parallel()
	now := time.Now()
	s := storeOn(redistest.New(t))
	writes := deliveredWrites(now)[:8]
	for range 2 { // the second time as after a lost answer
		recorded, _, err := s.Record(t.Context(), now, under("replica", writes))
		if conflicts := found(t, recorded, err); len(conflicts) > 0 {
			t.Errorf("conflicts: %+v", conflicts)
		}
	}
	other := deliveredWrites(now)[:8]
	changes := 0
	for i := range other {
		for j := range other[i].Changes {
			other[i].Changes[j].Next.Count = 5
			changes++
		}
	}
	recorded, _, err := s.Record(t.Context(), now, under("replica", other))
	conflicts := found(t, recorded, err)
	if len(conflicts) != changes {
		t.Errorf("%d conflicts of %d", len(conflicts), changes)
	}
	for _, f := range conflicts {
		if f.Record.Status != delivery.StatusDelivered || f.Record.Count != 1 || f.Record.Version != 1 {
			t.Errorf("found %+v", f.Record)
		}
	}
}

// A write whose answer was lost is tried again, and counts once.
func TestWriteTriedAgainIsRecognised(t *testing.T) {
	t.Parallel()
	now := time.Now()
	s := storeOn(redistest.New(t))
	r := delivery.Ref{Ref: events.Ref{Company: uuid.New(), ID: "e"}, Subscriber: uuid.New()}
	policy := delivery.Policy{Schedule: []time.Duration{time.Minute}}
	next := delivery.Decide(delivery.Record{EventType: "PAYMENT_PAID", Created: now.UnixMilli()}, attempt.Result{StatusCode: 500, Class: attempt.ClassHTTP5xx, StartedAt: now}, policy, now, middle)
	for range 2 {
		recorded, _, err := s.Record(t.Context(), now, under("replica", []Write{{Event: r.Ref, Changes: []Change{{Ref: r, Base: &delivery.Record{}, Next: &next}}}}))
		if conflicts := found(t, recorded, err); len(conflicts) > 0 {
			t.Fatalf("conflicts: %+v", conflicts[0].Record)
		}
	}
	records, err := s.Get(t.Context(), []delivery.Ref{r})
	if err != nil || records[0].Count != 1 || records[0].Version != 1 {
		t.Errorf("record = %+v, %v", records[0], err)
	}
}

func TestChangeOfAnOlderVersionIsRefused(t *testing.T) {
	t.Parallel()
	s := storeOn(redistest.New(t))
	now := time.Now()
	r := delivery.Ref{Ref: events.Ref{Company: uuid.New(), ID: "e"}, Subscriber: uuid.New()}
	dead := &delivery.Record{Status: delivery.StatusDead, Reason: delivery.ReasonExhausted, EventType: "PAYMENT_PAID", Created: now.UnixMilli()}
	first, _, err := s.Record(t.Context(), now, []Write{{Event: r.Ref, Changes: []Change{{Ref: r, Base: &delivery.Record{}, Next: dead}}}})
	if err != nil || first[0].Err != nil || first[0].Found[0] != nil {
		t.Fatalf("not written: %+v, %v", first, err)
	}
	late := delivery.Restart(delivery.Record{EventType: "PAYMENT_PAID", Created: now.UnixMilli()}, delivery.ReasonReplay, now)
	recorded, _, err := s.Record(t.Context(), now, []Write{{Event: r.Ref, Changes: []Change{{Ref: r, Base: &delivery.Record{}, Next: &late}}}})
	if conflicts := found(t, recorded, err); len(conflicts) != 1 || conflicts[0].Record.Status != delivery.StatusDead {
		t.Fatalf("conflicts: %+v", conflicts)
	}
	if records, err := s.Get(t.Context(), []delivery.Ref{r}); err != nil || records[0].Status != delivery.StatusDead {
		t.Errorf("record = %+v, %v", records[0], err)
	}
	if n := s.client.Exists(t.Context(), queues.RetrySetKey(r.Company, r.Subscriber)).Val(); n != 0 {
		t.Error("it waits in the retry set")
	}
}

// What is learned of an endpoint is kept for the next owner, unless its subscriber is disabled: then nothing of it is due
// before it is enabled.
func TestWhatIsLearnedOfAnEndpoint(t *testing.T) {
	t.Parallel()
	for name, disabled := range map[string]bool{"enabled": false, "disabled": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHarness(t)
			e := h.accepted(t, "e")
			sub := h.refs(e, 1)[0]
			state := partition.Key(h.company, "es:"+h.company.String()+"/"+sub.Subscriber.String())
			if disabled {
				h.client.HSet(t.Context(), state, "until", 1e13)
			}
			change := h.first(sub, h.fail)
			change.Learned = &Learned{Failures: 3, Wait: time.Minute}
			if _, _, err := h.Record(t.Context(), h.now, under(testReplica, []Write{{Event: e, Changes: []Change{change}, Matched: true}})); err != nil {
				t.Fatal(err)
			}
			until, _ := h.client.HGet(t.Context(), state, "until").Float64()
			if fails := h.client.HGet(t.Context(), state, "fails").Val(); disabled != (until == 1e13) || disabled == (fails == "3") {
				t.Errorf("until %.0f, fails %q", until, fails)
			}
		})
	}
}
