package owner_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"spendhook/dispatcher/owner"
	"spendhook/internal/partition"
	"spendhook/internal/redistest"
	"spendhook/internal/waittest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// replica is a running Owner, and the partitions for which Changed was called.
type replica struct {
	*owner.Owner

	mu      sync.Mutex
	changed []int
	begun   map[int]bool // partitions in which it finishes what it has begun
}

// seldom is the time between heartbeats of tests that need none.
const seldom = time.Hour

func run(t *testing.T, client redis.UniversalClient, name string, every time.Duration) *replica {
	t.Helper()
	r := &replica{begun: make(map[int]bool)}
	r.Owner = owner.New(owner.Options{
		Client: client, Replica: name, Every: every, Registerer: prometheus.NewRegistry(),
		Changed: func(partitions []int) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.changed = append(r.changed, partitions...)
		},
		Giving: func(_ context.Context, tokens map[int]string) map[int][]any {
			working := make(map[int][]any)
			for p := range tokens {
				if r.begun[p] {
					working[p] = []any{"company/event"}
				}
			}
			return working
		},
	})
	if err := r.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = r.Leave(context.Background()) // a test may have done this
		if err := r.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return r
}

func (r *replica) seen() []int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.changed)
}

// share waits until two replicas own all partitions, each some of them.
func share(t *testing.T, a, b *replica) {
	t.Helper()
	waittest.Until(t, "both own partitions, and together all", func() bool {
		return len(a.Owned()) > 0 && len(b.Owned()) > 0 && len(a.Owned())+len(b.Owned()) == partition.Count
	})
}

func ownerOf(t *testing.T, client redis.UniversalClient, p int) string {
	t.Helper()
	return client.Get(t.Context(), partition.Prefix(p)+"owner").Val()
}

// A replica that joins gets its part of the partitions from the owner, and one that leaves gives its part
// back. At no time does a partition have two owners.
func TestPartitionsAreHandedOver(t *testing.T) {
	t.Parallel()
	client := redistest.New(t)
	first := run(t, client, "first", 50*time.Millisecond)
	if n := len(first.Owned()); n != partition.Count || len(first.seen()) != partition.Count {
		t.Fatalf("alone it owns %d", n)
	}
	second := run(t, client, "second", 50*time.Millisecond)
	share(t, first, second)
	for p := range partition.Count {
		a, b := first.Token(p), second.Token(p)
		if stored := ownerOf(t, client, p); a != "" && b != "" || stored != a+b {
			t.Fatalf("partition %d has the tokens %q and %q, Redis has %q", p, a, b, stored)
		}
		if want := map[bool]string{true: "first", false: "second"}[a != ""]; first.Server(p) != want || second.Server(p) != want {
			t.Errorf("partition %d of %s is served by %s or %s", p, want, first.Server(p), second.Server(p))
		}
	}
	given := second.Owned()
	if err := second.Leave(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, p := range given {
		if second.Server(p) != "first" || second.Token(p) != "" {
			t.Fatalf("partition %d is served by %s after the second has left", p, second.Server(p))
		}
	}
	first.Look() // as its wake-ups cause
	waittest.Until(t, "the first owns all again", func() bool { return len(first.Owned()) == partition.Count })
}

// A replica that leaves still does so after another one counted it as lost, and removed what it had written.
func TestLostReplicaIsStillLeaving(t *testing.T) {
	t.Parallel()
	client := redistest.New(t)
	leaving := run(t, client, "leaving", seldom)
	if err := leaving.Leave(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := client.Del(t.Context(), "sh:{0}:replicas", "sh:{0}:leaving").Err(); err != nil {
		t.Fatal(err)
	}
	leaving.Look()
	waittest.Until(t, "it sends a heartbeat", func() bool { return client.ZCard(t.Context(), "sh:{0}:replicas").Val() == 1 })
	other := run(t, client, "other", seldom)
	if n := len(other.Owned()); n != partition.Count {
		t.Errorf("the other owns %d of %d partitions", n, partition.Count)
	}
}

// The successor of an owner knows which of its predecessors, also those before the last one, have begun something
// and not finished it, and whether they still work on it.
func TestFormerOwnersAreKnown(t *testing.T) {
	t.Parallel()
	client := redistest.New(t)
	first := run(t, client, "first", 50*time.Millisecond)
	token := first.Token(7)
	first.begun[7] = true
	if err := first.Leave(t.Context()); err != nil {
		t.Fatal(err)
	}
	second := run(t, client, "second", seldom)
	if gone, working := second.Former(7); len(gone) > 0 || !slices.Equal(working, []string{token}) {
		t.Errorf("after a hand-over: gone %q, working %q", gone, working)
	}
	other := second.Token(7)
	second.begun[7] = true
	if err := second.Leave(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := second.Close(t.Context()); err != nil { // it is not there any more
		t.Fatal(err)
	}
	if events := client.SMembers(t.Context(), partition.Prefix(7)+"begun:"+other).Val(); !slices.Equal(events, []string{"company/event"}) {
		t.Errorf("the second is said to match %v", events)
	}
	third := run(t, client, "third", 50*time.Millisecond)
	waittest.Until(t, "the second counts as gone", func() bool {
		gone, working := third.Former(7)
		return slices.Equal(gone, []string{other}) && slices.Equal(working, []string{token})
	})
	third.Finished(7, other)
	if gone, _ := third.Former(7); len(gone) > 0 {
		t.Errorf("%q is not finished", gone)
	}
}

// Of two replicas that take a partition from the same owner one gets it.
func TestOneOfTwoTakersOwns(t *testing.T) {
	t.Parallel()
	client := redistest.New(t)
	run(t, client, "lost", seldom)
	a, b := run(t, client, "a", 50*time.Millisecond), run(t, client, "b", 50*time.Millisecond)
	share(t, a, b)
	for p := range partition.Count {
		if stored := ownerOf(t, client, p); stored != a.Token(p)+b.Token(p) {
			t.Fatalf("partition %d has the tokens %q and %q, Redis has %q", p, a.Token(p), b.Token(p), stored)
		}
	}
	waittest.Until(t, "the lost replica is forgotten", func() bool {
		return client.ZCard(t.Context(), "sh:{0}:replicas").Val() == 2
	})
}

// An owner whose token Redis has forgotten, as after a failover, takes a new one.
func TestForgottenOwner(t *testing.T) {
	t.Parallel()
	client := redistest.New(t)
	r := run(t, client, "r", 50*time.Millisecond)
	before := r.Token(7)
	if err := client.Del(t.Context(), partition.Prefix(7)+"owner").Err(); err != nil {
		t.Fatal(err)
	}
	waittest.Until(t, "it owns the partition under a new token", func() bool {
		now := r.Token(7)
		return now != "" && now != before && now == ownerOf(t, client, 7)
	})
}

// After a failover Redis may have the token of a former owner again. That replica gives the partition away.
func TestFormerTokenComesBack(t *testing.T) {
	t.Parallel()
	client := redistest.New(t)
	a, b := run(t, client, "a", 50*time.Millisecond), run(t, client, "b", 50*time.Millisecond)
	share(t, a, b)
	p := b.Owned()[0]
	before := b.Token(p)
	former, _, _ := strings.Cut(a.Token(a.Owned()[0]), " ")
	if err := client.Set(t.Context(), partition.Prefix(p)+"owner", former+" forgotten", 0).Err(); err != nil {
		t.Fatal(err)
	}
	waittest.Until(t, "the owner has a new token", func() bool {
		now := b.Token(p)
		return now != "" && now != before && now == ownerOf(t, client, p)
	})
}

// A replica that Redis refuses as owner stops to be it at once.
func TestRefusedOwner(t *testing.T) {
	t.Parallel()
	r := run(t, redistest.New(t), "r", seldom)
	token := r.Token(7)
	r.Lost(7, "another "+token)
	if r.Token(7) != token {
		t.Error("a refused token of another run ended the ownership")
	}
	r.Lost(7, token)
	if got := r.Token(7); got == token {
		t.Errorf("it owns the partition under the refused token %q", got)
	}
}

// A restarted process takes the partitions of its former run at once.
func TestFormerRunOwnsNothing(t *testing.T) {
	t.Parallel()
	client := redistest.New(t)
	run(t, client, "r", seldom)
	run(t, client, "other", seldom) // alive: it is to own some of them
	again := run(t, client, "r", seldom)
	if n := len(again.Owned()); n != partition.Count {
		t.Errorf("the new run owns %d partitions", n)
	}
	if gone, working := again.Former(7); len(gone)+len(working) > 0 || !again.TakenFromLost(7) {
		t.Errorf("gone %q, working %q, taken from a lost replica: %v", gone, working, again.TakenFromLost(7))
	}
}
