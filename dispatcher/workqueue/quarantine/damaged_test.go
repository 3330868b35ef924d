package quarantine_test

import (
	"slices"
	"testing"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/dispatcher/workqueue/quarantine"
)

// A damaged, wrongly typed or missing event is claimed like any other, so that a replica
// can quarantine it. It can also be requeued.
func TestDamagedEventsAreClaimed(t *testing.T) {
	t.Parallel()
	for what, damage := range map[string]func(redis.UniversalClient, string) error{
		"first byte":   func(c redis.UniversalClient, key string) error { return c.Set(t.Context(), key, "Xgarbage", 0).Err() },
		"another type": func(c redis.UniversalClient, key string) error { return c.LPush(t.Context(), key, "x").Err() },
		"gone":         func(redis.UniversalClient, string) error { return nil },
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
				t.Fatalf("claimed %+v", b)
			}
			if err := q.Move(t.Context(), b.Token, e); err != nil {
				t.Fatal(err)
			}
			if got := q.list(&e.Company, 10); !slices.Equal(got, []string{e.Member()}) {
				t.Errorf("quarantined %v", got)
			}
		})
	}
}
