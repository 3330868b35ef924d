package publish_test

import (
	"context"
	"errors"
	"io"
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/events"
	"spendhook/events/eventtest"
	"spendhook/events/layout"
	"spendhook/events/publish"
	"spendhook/internal/partition"
	"spendhook/internal/redistest"
)

// owner is an Owner of the partitions of some companies. It records its calls.
type owner struct {
	mu     sync.Mutex
	owns   []uuid.UUID
	begun  []publish.Begun
	unsure []uuid.UUID
}

const testToken = "r.1 token" // of the owner of all partitions

func (o *owner) Token(company uuid.UUID) string {
	if slices.Contains(o.owns, company) {
		return testToken
	}
	return ""
}

func (o *owner) Accepted(events []publish.Begun) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.begun = append(o.begun, events...)
}

func (o *owner) Unsure(companies []uuid.UUID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.unsure = append(o.unsure, companies...)
}

// ids lists the events that the owner got.
func (o *owner) ids(company uuid.UUID) (ids []string) {
	for _, b := range o.begun {
		if b.Company == company {
			for _, e := range b.Events {
				ids = append(ids, e.ID)
			}
		}
	}
	return ids
}

// own makes the holder of testToken the owner of the partitions of companies.
func (b *bundle) own(t *testing.T, companies ...uuid.UUID) {
	t.Helper()
	for _, company := range companies {
		if err := b.Redis.Set(t.Context(), partition.Key(company, "owner"), testToken, 0).Err(); err != nil {
			t.Fatal(err)
		}
	}
}

// of is an event of a company.
func of(company uuid.UUID, n int) events.Event {
	return events.Event{ID: "e" + strconv.Itoa(n), CompanyUUID: company, Type: "PAYMENT_PAID", Timestamp: eventtest.Noon}
}

// The owner gets the events of its companies as they are stored. Of those whose answer was lost it knows that they may
// have been accepted.
func TestOwnerGetsAcceptedEvents(t *testing.T) {
	t.Parallel()
	c := &owner{owns: []uuid.UUID{{1}, {2}}}
	b := setupOn(t, redistest.New(t), func(o *options) { o.Owner = c })
	b.own(t, uuid.UUID{1}, uuid.UUID{2})
	b.Redis.AddHook(redistest.Hook{Pipeline: func(ctx context.Context, cmds []redis.Cmder, next redis.ProcessPipelineHook) error {
		err := next(ctx, cmds)
		for _, cmd := range cmds {
			if slices.Contains(cmd.Args(), any(uuid.UUID{1}.String())) && cmd.Err() == nil {
				cmd.SetErr(io.ErrUnexpectedEOF)
			}
		}
		return err
	}})
	batch := make([]events.Event, 0, 128)
	for i := range 128 { // two calls of the script
		batch = append(batch, of(uuid.UUID{1 + byte(i/64)}, i))
	}
	if _, err := b.Publisher.Accept(t.Context(), batch); !errors.Is(err, events.ErrUnavailable) {
		t.Fatalf("events without an answer: %v", err)
	}
	b.Publisher.Close()
	if len(c.begun) != 1 || len(c.begun[0].Events) != 64 || !slices.Equal(c.unsure, []uuid.UUID{{1}}) {
		t.Fatalf("got %+v, unsure of %v", c.begun, c.unsure)
	}
	b2 := c.begun[0]
	places := b.Redis.ZRangeWithScores(t.Context(), layout.IndexKey(b2.Company), 0, -1).Val()
	for i, e := range b2.Events {
		stored := b.Redis.Get(t.Context(), layout.EventKey(events.Ref{Company: b2.Company, ID: e.ID})).Val()
		if e.Value != stored || e.Number != int64(i+1) || places[i].Member != e.ID || places[i].Score != e.Place {
			t.Errorf("event %d is %+v, stored as %q at %v", i, e, stored, places[i])
		}
	}
	if b2.After != 0 || b2.Cursor != 0 || b2.Token != testToken {
		t.Errorf("got %+v", b2)
	}
}

// heldUp has a commit under way until release is called: what is queued meanwhile is one commit.
func heldUp(t *testing.T, change func(*options)) (b *bundle, release func()) {
	t.Helper()
	busy, goOn := make(chan struct{}), make(chan struct{})
	var once sync.Once
	b = setupOn(t, redistest.New(t), func(o *options) {
		o.Wake = func(context.Context, []int) { once.Do(func() { close(busy); <-goOn }) }
		change(o)
	})
	b.Accept(t, newEvent("first"))
	<-busy
	return b, func() { close(goOn) }
}

// A damaged key of a company fails its own events only. The owner gets the other events of the same call.
func TestDamagedCompanyFailsAlone(t *testing.T) {
	t.Parallel()
	for _, key := range []string{"c:", "ei:", "bl:", "cb:"} {
		t.Run(key, func(t *testing.T) {
			t.Parallel()
			damagedCompanyFailsAlone(t, key)
		})
	}
}

func damagedCompanyFailsAlone(t *testing.T, key string) {
	t.Helper()
	companies := []uuid.UUID{{1}, {2}, {3}, {4}}
	damaged := companies[1]
	c := &owner{owns: companies}
	b, release := heldUp(t, func(o *options) { o.Owner = c })
	b.own(t, companies...)
	b.damage(t, partition.Key(damaged, key+damaged.String()))
	var answers sync.WaitGroup
	for i, company := range companies {
		answers.Go(func() {
			results, err := b.Publisher.Accept(t.Context(), []events.Event{of(company, 0), of(company, 1)})
			if company == damaged && !errors.Is(err, events.ErrUnavailable) || company != damaged && (err != nil || results[0].Status != publish.Accepted || results[1].Status != publish.Accepted) {
				t.Errorf("company %d: %+v, %v", i, results, err)
			}
		})
		b.waitForQueued(2 * (i + 1))
	}
	release()
	answers.Wait()
	b.Publisher.Close()
	for i, company := range companies {
		if got := c.ids(company); (len(got) == 2) != (company != damaged) {
			t.Errorf("the owner got %v of company %d", got, i)
		}
	}
	if stored := b.Redis.Exists(t.Context(), layout.EventKey(events.Ref{Company: damaged, ID: "e0"})).Val(); stored > 0 || len(c.unsure) > 0 {
		t.Errorf("%d events of the damaged company are stored, unsure of %v", stored, c.unsure)
	}
}

// The events of an array stay in order beside those of a damaged company, also when several calls
// of the script are needed for them.
func TestArrayBesideADamagedCompanyStaysInOrder(t *testing.T) {
	t.Parallel()
	damaged, well := uuid.UUID{2}, uuid.UUID{3}
	b, release := heldUp(t, func(*options) {})
	b.damage(t, StateKey(damaged))
	var answers sync.WaitGroup
	answers.Go(func() {
		if _, err := b.Publisher.Accept(t.Context(), batchOf(damaged, "e", 30)); !errors.Is(err, events.ErrUnavailable) {
			t.Errorf("the damaged company's events: %v", err)
		}
	})
	b.waitForQueued(30)
	array := batchOf(well, "e", 64)
	answers.Go(func() {
		results, err := b.Publisher.Accept(t.Context(), array)
		if err == nil {
			if ready := b.mustBeNumbered(t, well, len(results)); !slices.IsSorted(ready) {
				t.Errorf("accepted in the order %v", ready)
			}
		}
	})
	b.waitForQueued(94)
	release()
	answers.Wait()
	b.acceptAgain(t, array[0])
}

// While Redis is down, the owner is told only of the companies of its partitions.
func TestOwnerIsUnsureOfItsOwnCompanies(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{})
	t.Cleanup(func() { waitForDialers(t) })
	c := &owner{owns: []uuid.UUID{{2}}}
	b := setupOn(t, server.Client(), func(o *options) { o.Owner = c })
	server.Kill()
	for i, company := range []uuid.UUID{{1}, {2}} {
		if _, err := b.Publisher.Accept(t.Context(), []events.Event{of(company, i)}); err == nil {
			t.Fatal("an event was accepted without Redis")
		}
	}
	b.Publisher.Close()
	if !slices.Equal(c.unsure, []uuid.UUID{{2}}) {
		t.Errorf("unsure of %v", c.unsure)
	}
}
