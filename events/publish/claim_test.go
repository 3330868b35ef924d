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
	"spendhook/events/publish"
	"spendhook/internal/partition"
	"spendhook/internal/redistest"
)

// counting is a Claimer that lets only some companies claim, and records its calls.
type counting struct {
	mu      sync.Mutex
	may     []uuid.UUID
	numbers uint64
	started []uint64 // numbers of events
	lost    []uint64
	at      []uuid.UUID // companies of the lost calls
}

const testToken = "r.1 token" // of the owner of all partitions

func (c *counting) BeginAccept() (number uint64, deliveries int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.numbers++
	return c.numbers, 1000
}

func (c *counting) AcceptFree(company uuid.UUID) (token string, deliveries int) {
	if slices.Contains(c.may, company) {
		return testToken, 1000
	}
	return "", 0
}

func (c *counting) StartAccepted(_ func(uuid.UUID) string, deliveries int, _ []any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.started = append(c.started, uint64(deliveries))
}

func (c *counting) LostAccepted(_ string, number uint64, company uuid.UUID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lost, c.at = append(c.lost, number), append(c.at, company)
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

// Each call of the script has a claim of its own: what one call claimed is not requeued because
// the answer of another was lost.
func TestEachCallHasItsOwnClaim(t *testing.T) {
	t.Parallel()
	c := &counting{may: []uuid.UUID{{1}, {2}}}
	b := setupOn(t, redistest.New(t), func(o *options) { o.Claimer = c })
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
	if !slices.Equal(c.started, []uint64{64}) || !slices.Equal(c.lost, []uint64{1}) || !slices.Equal(c.at, []uuid.UUID{{1}}) {
		t.Errorf("started %v, lost claims %v of companies %v", c.started, c.lost, c.at)
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

// A damaged key of a company fails its own events only. Other events of the same call are accepted
// and claimed at once. No claim is left of the company's events, and none is to be recovered.
func TestDamagedCompanyFailsAlone(t *testing.T) {
	t.Parallel()
	for _, key := range []string{"c:", "ei:", "bl:", "cb:"} { // before its events are claimed, and after that
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
	c := &counting{may: companies}
	b, release := heldUp(t, func(o *options) { o.Claimer = c })
	b.own(t, companies...)
	b.Redis.HSet(t.Context(), StateKey(damaged), "ordered", 1)
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
		claimed := b.Redis.HExists(t.Context(), partition.Key(company, "n:"+testToken), company.String()+"/e0").Val()
		if claimed != (company != damaged) {
			t.Errorf("the event of company %d is claimed: %v", i, claimed)
		}
	}
	if n := b.Redis.Exists(t.Context(), partition.Key(damaged, "om:"+damaged.String())).Val(); n > 0 {
		t.Error("events of the damaged company wait to be matched")
	}
	if !slices.Equal(c.started, []uint64{6}) || len(c.lost) > 0 {
		t.Errorf("started %v deliveries, lost claims %v of companies %v; want 6, and none lost", c.started, c.lost, c.at)
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

// While Redis is down, nothing is noted as lost for companies that may claim nothing.
func TestNothingIsLostWithoutAClaim(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{})
	t.Cleanup(func() { waitForDialers(t) })
	c := &counting{may: []uuid.UUID{{2}}}
	b := setupOn(t, server.Client(), func(o *options) { o.Claimer = c })
	server.Kill()
	for i, company := range []uuid.UUID{{1}, {2}} {
		if _, err := b.Publisher.Accept(t.Context(), []events.Event{of(company, i)}); err == nil {
			t.Fatal("an event was accepted without Redis")
		}
	}
	b.Publisher.Close()
	if !slices.Equal(c.at, []uuid.UUID{{2}}) {
		t.Errorf("lost of companies %v", c.at)
	}
}
