package delivery

import (
	"fmt"
	"reflect"
	"spendhook/internal/partition"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/dispatcher/webhook"
	"spendhook/events"
	"spendhook/internal/redistest"
	"spendhook/internal/script"
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
		default:
			t.Fatalf("%s is a %s", key, kind)
		}
		if err != nil {
			t.Fatal(err)
		}
		out[key] = fmt.Sprintf("%v for %v", value, client.PTTL(t.Context(), key).Val().Round(time.Minute))
	}
	return out
}

// smoothWrites is events of two companies delivered to some of three
// subscribers; one was delivered to nobody, one is not settled yet.
func smoothWrites(now time.Time) []write {
	companies := []uuid.UUID{uuid.MustParse("0b1e0000-0000-4000-8000-000000000001"), uuid.MustParse("0b1e0000-0000-4000-8000-000000000002")}
	subs := []uuid.UUID{uuid.MustParse("5b1e0000-0000-4000-8000-000000000001"), uuid.MustParse("5b1e0000-0000-4000-8000-000000000002"), uuid.MustParse("5b1e0000-0000-4000-8000-000000000003")}
	var writes []write
	for i := range 200 {
		w := write{event: events.Ref{Company: companies[i%2], ID: fmt.Sprint("evt-", i)}, settled: i != 7}
		for _, sub := range subs[:i%4] {
			base := &record{Status: StatusPending, EventType: "PAYMENT_PAID", Created: now.UnixMilli()}
			next := *base
			next.Status, next.Count = StatusDelivered, 1
			w.changes = append(w.changes, change{ref: ref{Ref: w.event, Subscriber: sub}, base: base, next: &next})
		}
		writes = append(writes, w)
	}
	return writes
}

// open makes the events of writes open, as accepting them does.
func open(t *testing.T, client redis.UniversalClient, writes []write) {
	t.Helper()
	for i, w := range writes {
		key := events.OpenKey(partition.Of(w.event.Company))
		if i%3 == 0 {
			key = delayedKey(partition.Of(w.event.Company))
		}
		if err := client.ZAdd(t.Context(), key, redis.Z{Score: 1, Member: w.event.String()}).Err(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestManyDeliveredAreWrittenAsEachAloneWouldBe(t *testing.T) {
	t.Parallel()
	now := time.Now()
	policy := Policy{Retention: 7 * 24 * time.Hour, DeadRetention: 30 * 24 * time.Hour}
	one, many := redistest.New(t), redistest.New(t)
	writes := smoothWrites(now)
	for _, client := range []redis.UniversalClient{one, many} {
		open(t, client, writes)
	}
	found, err := NewStore(many, policy).record(t.Context(), now, writes, "replica", nil)
	if err != nil {
		t.Fatal(err)
	}
	for i, f := range found {
		if len(f) != len(writes[i].changes) {
			t.Fatalf("%s: %d answers", writes[i].event, len(f))
		}
		for _, rec := range f {
			if rec != nil {
				t.Errorf("%s: found %+v", writes[i].event, rec)
			}
		}
	}
	for i := range writes { // texts are encoded by now
		if err := script.Run(t.Context(), one, nil, NewStore(one, policy).changedCall(&writes[i], now)); err != nil {
			t.Fatal(err)
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

func TestDeliveredConflictsAreTold(t *testing.T) {
	t.Parallel()
	now := time.Now()
	s := NewStore(redistest.New(t), Policy{Retention: time.Hour, DeadRetention: time.Hour})
	writes := smoothWrites(now)[:8]
	if _, err := s.record(t.Context(), now, writes, "replica", nil); err != nil {
		t.Fatal(err)
	}
	again, err := s.record(t.Context(), now, writes, "replica", nil) // as after a lost answer
	if err != nil {
		t.Fatal(err)
	}
	for i, f := range again {
		for _, rec := range f {
			if rec != nil {
				t.Errorf("%s: the same again is a conflict with %+v", writes[i].event, rec)
			}
		}
	}
	other := smoothWrites(now)[:8]
	for i := range other {
		for j := range other[i].changes {
			other[i].changes[j].next.Count = 5
		}
	}
	found, err := s.record(t.Context(), now, other, "replica", nil)
	if err != nil {
		t.Fatal(err)
	}
	for i, f := range found {
		for _, rec := range f {
			if rec == nil || rec.Status != StatusDelivered || rec.Count != 1 || rec.Version != 1 {
				t.Errorf("%s: found %+v", other[i].event, rec)
			}
		}
	}
}

// The answer of a record is lost, and before it is tried again the delivery is
// handed out and begun anew: the attempt is counted once.
func TestAttemptIsCountedOnceThoughItsRecordWasLost(t *testing.T) {
	t.Parallel()
	now := time.Now()
	policy := Policy{Schedule: []time.Duration{time.Millisecond, time.Minute}, Retention: time.Hour, DeadRetention: time.Hour}
	s := NewStore(redistest.New(t), policy)
	r := &recorder{store: s, replica: "replica", now: func() time.Time { return now }}
	res := webhook.Result{StartedAt: now, Duration: time.Millisecond, StatusCode: 500, Class: webhook.ClassHTTP5xx}
	delivery := ref{Ref: events.Ref{Company: uuid.New(), ID: "evt"}, Subscriber: uuid.New()}
	o := &outcome{
		work:   work{ref: delivery, base: &record{Status: StatusPending, EventType: "PAYMENT_PAID", Created: now.UnixMilli()}},
		result: &res,
		apply: func(rec record, now time.Time) record {
			return decide(rec, res, policy, now, func() float64 { return 0.5 })
		},
	}
	if conflicts, done, err := r.try(t.Context(), []*outcome{o}, nil); err != nil || len(conflicts) > 0 || len(done) != 1 {
		t.Fatalf("recorded: %v, %v, %v", conflicts, done, err)
	}
	stamp := now.Add(time.Second)
	due, err := s.claim(t.Context(), stamp, 10)
	if err != nil || len(due) != 1 {
		t.Fatalf("due: %v, %v", due, err)
	}
	begun, err := s.begin(t.Context(), "replica", "task", stamp.UnixMilli(), []ref{delivery})
	if err != nil || len(begun) != 1 || begun[0].rec.Count != 1 {
		t.Fatalf("begun: %+v, %v", begun, err)
	}
	conflicts, done, err := r.try(t.Context(), []*outcome{o}, nil)
	if err != nil || len(conflicts) > 0 || len(done) != 1 {
		t.Errorf("recorded again: %d conflicts, %d done, %v", len(conflicts), len(done), err)
	}
	recs, err := s.get(t.Context(), []ref{delivery})
	if err != nil || recs[0].Count != 1 || recs[0].Status != StatusDelivering {
		t.Errorf("the delivery is %+v, %v", recs[0], err)
	}
}
