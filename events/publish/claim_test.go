package publish_test

import (
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/google/uuid"

	"spendhook/events"
	"spendhook/events/eventtest"
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
	at      []int // partitions of the lost calls
}

func (c *counting) BeginAccept() (replica string, number uint64, deliveries int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.numbers++
	return "r.1", c.numbers, 1000
}

func (c *counting) AcceptFree(company uuid.UUID) int {
	if slices.Contains(c.may, company) {
		return 1000
	}
	return 0
}

func (c *counting) StartAccepted(_ string, deliveries int, _ []any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.started = append(c.started, uint64(deliveries))
}

func (c *counting) LostAccepted(_ string, number uint64, partitions []int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lost, c.at = append(c.lost, number), append(c.at, partitions...)
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
	b := setupOn(t, redistest.New(t), func(o *options) { o.Claimer, o.Committers = c, 1 })
	if err := b.Redis.Set(t.Context(), partition.Key(uuid.UUID{1}, "c:"+uuid.UUID{1}.String()), "damaged", 0).Err(); err != nil {
		t.Fatal(err)
	}
	batch := make([]events.Event, 0, 128)
	for i := range 128 { // two calls of the script
		batch = append(batch, of(uuid.UUID{1 + byte(i/64)}, i))
	}
	if _, err := b.Publisher.Accept(t.Context(), batch); err == nil {
		t.Fatal("the events of a damaged company were accepted")
	}
	b.Publisher.Close()
	if !slices.Equal(c.started, []uint64{64}) || !slices.Equal(c.lost, []uint64{1}) || !slices.Equal(c.at, []int{partition.Of(uuid.UUID{1})}) {
		t.Errorf("started %v, lost claims %v in partitions %v", c.started, c.lost, c.at)
	}
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
	if !slices.Equal(c.at, []int{partition.Of(uuid.UUID{2})}) {
		t.Errorf("lost in partitions %v", c.at)
	}
}
