package tail

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/internal/redistest"
	"spendhook/internal/waittest"
)

const patience = 5 * time.Minute

// replica runs a Tail until the test ends.
func replica(t *testing.T, client redis.UniversalClient) *Tail {
	t.Helper()
	tail := New(client)
	tail.within = time.Minute
	ctx, end := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { tail.Run(ctx) })
	t.Cleanup(func() {
		end()
		running.Wait()
		tail.Close()
	})
	return tail
}

func everything(Entry) bool { return true }

func watch(t *testing.T, tail *Tail, company *uuid.UUID, keep func(Entry) bool) *Viewer {
	t.Helper()
	v, err := tail.Watch(t.Context(), company, keep)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(v.Leave)
	return v
}

func next(t *testing.T, v *Viewer) ([]Entry, int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	entries, dropped, err := v.Next(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return entries, dropped
}

// Viewers of the company and of all companies see the attempts of every replica. Without
// viewers nothing is written.
func TestAttemptsAreShownAtOtherReplicas(t *testing.T) {
	t.Parallel()
	client := redistest.New(t)
	a, b := replica(t, client), replica(t, client)
	company, other := uuid.New(), uuid.New()
	if a.Watched(company) {
		t.Error("a company has a viewer before Watch")
	}
	failures := watch(t, b, &company, func(e Entry) bool { return e.Error != "" })
	all := watch(t, b, nil, everything)
	waittest.Until(t, "both are known", func() bool { return a.Watched(company) && a.Watched(other) })
	for i := range 4 {
		e := Entry{Company: company, EventID: strconv.Itoa(i)}
		if i == 2 {
			e.Error = "timeout"
		}
		a.Add(e)
	}
	a.Add(Entry{Company: other, EventID: "other", Error: "dns"})
	if got, dropped := next(t, failures); len(got) != 1 || got[0].EventID != "2" || dropped != 0 {
		t.Errorf("the failures of the company: %+v, %d dropped", got, dropped)
	}
	var seen []Entry
	waittest.Until(t, "all are seen", func() bool {
		got, _ := next(t, all)
		seen = append(seen, got...)
		return len(seen) == 5
	})
	failures.Leave()
	all.Leave()
	client.Del(t.Context(), watchedKey) // as after watchLife
	waittest.Until(t, "no company has viewers", func() bool { return !a.Watched(company) && !a.Watched(other) })
	a.Add(Entry{Company: company})
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.gathered) != 0 {
		t.Error("entries are gathered without viewers")
	}
}

// Of many attempts, some are dropped and counted: when a replica writes them, and when a viewer does
// not read them.
func TestAFloodIsDroppedAndCounted(t *testing.T) {
	t.Parallel()
	tail := replica(t, redistest.New(t))
	company := uuid.New()
	slow := watch(t, tail, &company, everything)
	waittest.Until(t, "it is known", func() bool { return tail.Watched(company) })
	const sent = 20 * maxWritten
	for range sent {
		tail.Add(Entry{Company: company})
	}
	shown, lost := 0, 0
	waittest.Until(t, "all are shown or counted", func() bool {
		got, dropped := next(t, slow)
		shown, lost = shown+len(got), lost+dropped
		return shown+lost == sent
	})
	if shown == 0 || lost == 0 {
		t.Errorf("%d shown, %d dropped", shown, lost)
	}
	tail.mu.Lock()
	tail.gathered[company] = make([]Entry, 2*streamLength)
	tail.mu.Unlock()
	waittest.Until(t, "all are written", func() bool {
		newest, err := tail.client.XRevRangeN(t.Context(), streamKey(company), "+", "-", 1).Result()
		return err == nil && len(newest) == 1 && numberOf(newest[0]) == slow.last+2*streamLength
	})
	shown, lost = 0, 0
	waittest.Until(t, "a viewer that did not read gets the number of entries that it missed", func() bool {
		got, dropped := next(t, slow)
		shown, lost = shown+len(got), lost+dropped
		return shown == streamLength && lost == streamLength
	})
}

// A viewer also gets entries after Redis lost the stream, when numbers begin at 1 again.
func TestAViewerOutlivesItsStream(t *testing.T) {
	t.Parallel()
	tail := replica(t, redistest.New(t))
	company := uuid.New()
	v := watch(t, tail, &company, everything)
	waittest.Until(t, "it is known", func() bool { return tail.Watched(company) })
	for i := range 3 {
		tail.Add(Entry{Company: company, EventID: strconv.Itoa(i)})
		if got, _ := next(t, v); len(got) != 1 {
			t.Fatalf("%+v", got)
		}
	}
	if err := tail.client.Del(t.Context(), streamKey(company)).Err(); err != nil {
		t.Fatal(err)
	}
	tail.Add(Entry{Company: company, EventID: "after"})
	if got, dropped := next(t, v); len(got) != 1 || got[0].EventID != "after" || dropped != 0 {
		t.Errorf("after the loss: %+v, %d dropped", got, dropped)
	}
}

// The viewers of a company are bounded, and so are all viewers. Close ends their views.
func TestViewersAreBounded(t *testing.T) {
	t.Parallel()
	tail := replica(t, redistest.New(t))
	company := uuid.New()
	var last *Viewer
	for range maxOfCompany {
		last = watch(t, tail, &company, everything)
	}
	if _, err := tail.Watch(t.Context(), &company, everything); !errors.Is(err, ErrTooMany) {
		t.Errorf("one more of the company: %v", err)
	}
	for len(tail.viewers) < maxViewers {
		watch(t, tail, new(uuid.New()), everything)
	}
	if _, err := tail.Watch(t.Context(), new(uuid.New()), everything); !errors.Is(err, ErrTooMany) {
		t.Errorf("one more: %v", err)
	}
	last.Leave()
	watch(t, tail, &company, everything)
	tail.Close()
	if _, _, err := last.Next(t.Context()); !errors.Is(err, context.Canceled) {
		t.Errorf("after the end: %v", err)
	}
}
