package backlog_test

import (
	"context"
	"encoding/binary"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/dispatcher/workqueue/backlog"
	"spendhook/events"
	"spendhook/events/publish"
	"spendhook/internal/partition"
	"spendhook/internal/redistest"
)

// testPartition holds the companies of most tests.
const testPartition = 7

// companies makes up n companies of one partition.
func companies(p, n int) []uuid.UUID {
	var out []uuid.UUID
	for i := uint32(1); len(out) < n; i++ {
		id := uuid.UUID{6: 0x40, 8: 0x80}
		binary.BigEndian.PutUint32(id[12:], i)
		if partition.Of(id) == p {
			out = append(out, id)
		}
	}
	return out
}

// bench accepts events of a Redis of its own, which nobody serves, and measures them.
type bench struct {
	t       *testing.T
	client  redis.UniversalClient
	meter   *backlog.Meter
	events  *publish.Publisher
	skipped map[uuid.UUID]bool
}

func newBench(t *testing.T) *bench {
	t.Helper()
	client := redistest.New(t)
	b := &bench{t: t, client: client, skipped: map[uuid.UUID]bool{}}
	b.meter = backlog.New(client, 0, func(company uuid.UUID, _ time.Time) bool { return b.skipped[company] })
	b.events = publish.New(publish.Options{Client: client, Retention: time.Hour, Wake: func(context.Context, []int) {}})
	t.Cleanup(b.events.Close)
	return b
}

// accept stores n events of a company.
func (b *bench) accept(company uuid.UUID, n int) {
	b.t.Helper()
	batch := make([]events.Event, n)
	for i := range batch {
		batch[i] = events.Event{ID: uuid.NewString(), CompanyUUID: company, Type: "PAYMENT_PAID", Timestamp: time.Now()}
	}
	results, err := b.events.Accept(b.t.Context(), batch)
	if err != nil {
		b.t.Fatal(err)
	}
	for _, r := range results {
		if r.Err != nil {
			b.t.Fatal(r.Err)
		}
	}
}

// measure measures what waits in the test's partition.
func (b *bench) measure() backlog.Total {
	b.t.Helper()
	total, err := b.meter.Measure(b.t.Context(), []int{testPartition}, 0)
	if err != nil {
		b.t.Fatal(err)
	}
	return total
}

// awaitDue waits until Measure reports a wait of due work.
func (b *bench) awaitDue() {
	b.t.Helper()
	for late := time.Now().Add(time.Minute); b.measure().OldestDue == 0; {
		if time.Now().After(late) {
			b.t.Fatal("no work has waited")
		}
	}
}

// OldestDue leaves out a company that was skipped because its deliveries wait for
// receivers. Work of another company still counts.
func TestOldestDueLeavesOutSkippedCompanies(t *testing.T) {
	t.Parallel()
	b, all := newBench(t), companies(testPartition, 2)
	b.accept(all[0], 1)
	b.awaitDue()
	b.skipped[all[0]] = true
	if total := b.measure(); total.OldestDue != 0 || total.Pending != 1 {
		t.Errorf("skipped, %+v", total)
	}
	b.accept(all[1], 1)
	b.awaitDue()
}

// Largest finds the companies with the most pending events among many.
func TestLargestCompanies(t *testing.T) {
	t.Parallel()
	b, all := newBench(t), companies(testPartition, 450)
	for i, n := range map[int]int{0: 30, 1: 20, 2: 10} { // the first accepted come last in the list of companies
		b.accept(all[i], n)
	}
	for _, c := range all[3:] {
		b.accept(c, 1)
	}
	want := []backlog.Company{{all[0], 30}, {all[1], 20}, {all[2], 10}}
	if got, err := b.meter.Measure(t.Context(), []int{testPartition}, 3); err != nil || !slices.Equal(got.Largest, want) {
		t.Errorf("%v %v, want %v", got.Largest, err, want)
	}
	if got, err := b.meter.Measure(t.Context(), nil, 3); err != nil || len(got.Largest) != 0 {
		t.Errorf("of no partition %v %v", got.Largest, err)
	}
}

// The largest companies of several partitions are found together.
func TestLargestOfSeveralPartitions(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	var partitions []int
	var want []backlog.Company
	for p := range 5 {
		partitions = append(partitions, p)
		for i, c := range companies(p, 2) {
			n := 10*(5-p) + 5*(1-i)
			b.accept(c, n)
			want = append(want, backlog.Company{Company: c, Pending: int64(n)})
		}
	}
	got, err := b.meter.Measure(t.Context(), partitions, 2)
	if err != nil || !slices.Equal(got.Largest, want[:2]) {
		t.Errorf("%v %v, want %v", got.Largest, err, want[:2])
	}
}

// Pending counts the events of all partitions.
func TestPendingOfAllPartitions(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.accept(companies(0, 1)[0], 3)
	b.accept(companies(partition.Count-1, 1)[0], 2)
	if n, err := b.meter.Pending(t.Context()); err != nil || n != 5 {
		t.Errorf("%d events are pending, %v", n, err)
	}
}

// Damaged keys of one company leave the measures of the others.
func TestDamagedKeysAreNotMeasured(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	all := companies(testPartition, 3)
	for _, company := range all {
		b.accept(company, 2)
	}
	for key, company := range map[string]uuid.UUID{"ei:": all[0], "c:": all[1]} {
		if err := b.client.Set(t.Context(), partition.Key(company, key+company.String()), "damaged", 0).Err(); err != nil {
			t.Fatal(err)
		}
	}
	total, err := b.meter.Measure(t.Context(), []int{testPartition}, 10)
	if err != nil || total.Pending != 6 || len(total.Largest) != 2 {
		t.Errorf("%+v, %v", total, err)
	}
}
