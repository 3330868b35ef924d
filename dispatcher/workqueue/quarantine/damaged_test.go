package quarantine_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/dispatcher/workqueue/quarantine"
	"spendhook/internal/partition"
	"spendhook/internal/waittest"
)

// A damaged or wrongly typed event is begun like any other, so that the owner can quarantine it. It can also be put
// back.
func TestDamagedEventsAreBegun(t *testing.T) {
	t.Parallel()
	for what, damage := range map[string]func(redis.UniversalClient, string) error{
		"first byte":   func(c redis.UniversalClient, key string) error { return c.Set(t.Context(), key, "Xgarbage", 0).Err() },
		"another type": func(c redis.UniversalClient, key string) error { return c.LPush(t.Context(), key, "x").Err() },
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			q := newBench(t)
			e := quarantine.Entry{Company: uuid.New(), EventID: "e"}
			if err := damage(q.client, companyKey(e.Company, "e", ":e")); err != nil {
				t.Fatal(err)
			}
			q.add(1000, e)
			q.start()
			if err := q.Retry(t.Context(), e); err != nil {
				t.Fatal(err)
			}
			b := q.next()
			if err := q.queue.Requeue(t.Context(), b); err != nil {
				t.Fatal(err)
			}
			if b = q.next(); len(b.Events) != 1 || b.Events[0].ID != "e" {
				t.Fatalf("begun %+v", b)
			}
			if err := q.Move(t.Context(), e); err != nil {
				t.Fatal(err)
			}
			if got := q.list(&e.Company, 10); !slices.Equal(got, []string{e.Member()}) {
				t.Errorf("quarantined %v", got)
			}
		})
	}
}

// An event that has expired meanwhile is not begun.
func TestRetryOfAnEventThatIsGone(t *testing.T) {
	t.Parallel()
	q := newBench(t)
	gone := quarantine.Entry{Company: uuid.New(), EventID: "e"}
	q.add(1000, gone)
	q.start()
	if err := q.Retry(t.Context(), gone); err != nil {
		t.Fatal(err)
	}
	waittest.Until(t, "nothing waits", func() bool {
		return q.client.ZCard(t.Context(), partition.Key(gone.Company, "due")).Val() == 0
	})
	if len(q.taken) > 0 {
		t.Errorf("begun %+v", q.next())
	}
}

// A retry that fails half-way, for a damaged key, leaves the entry in the quarantine.
func TestRetryThatFailsHalfWay(t *testing.T) {
	t.Parallel()
	q := newBench(t)
	e := quarantine.Entry{Company: uuid.New(), EventID: "e", Subscriber: new(uuid.New())}
	waiting := partition.Key(e.Company, "eq:"+e.Company.String()+"/"+e.Subscriber.String())
	if err := q.client.Set(t.Context(), waiting, "damaged", 0).Err(); err != nil {
		t.Fatal(err)
	}
	q.add(1000, e)
	q.start()
	if q.Retry(t.Context(), e) == nil {
		t.Fatal("it succeeds with a damaged key")
	}
	if got := q.list(&e.Company, 10); !slices.Equal(got, []string{e.Member()}) {
		t.Errorf("quarantined %v", got)
	}
	if err := errors.Join(q.client.Del(t.Context(), waiting).Err(), q.Retry(t.Context(), e)); err != nil {
		t.Fatal(err)
	}
	if got := q.list(&e.Company, 10); len(got) > 0 {
		t.Errorf("quarantined %v", got)
	}
}
