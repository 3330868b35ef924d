package workqueue_test

import (
	"slices"
	"strconv"
	"testing"
	"time"

	"spendhook/dispatcher/workqueue"
	"spendhook/internal/partition"
)

// measure is the backlog of the test's partition.
func (b *bench) measure(q *workqueue.Queue) workqueue.Backlog {
	b.tb.Helper()
	backlog, err := q.Backlog(b.ctx, []int{testPartition})
	if err != nil {
		b.tb.Fatalf("%v", err)
	}
	return backlog
}

// Work that waits since its company holds its share of a replica is held by its
// receivers; that of another company is not hidden by it.
func TestOldestDueLeavesOutWhatReceiversHold(t *testing.T) {
	t.Parallel()
	b := newBench(t, redisOf(t))
	q, all := b.queue("r"), companies(testPartition, 2)
	b.accept(all[0], "e")
	eventually(t, "the event has waited", func() bool { return b.measure(q).OldestDue > 0 })
	q.NotePassed(all[0])
	if backlog := b.measure(q); backlog.OldestDue != 0 || backlog.Pending != 1 {
		t.Errorf("passed by, %+v", backlog)
	}
	b.accept(all[1], "e")
	eventually(t, "the other company's event has waited", func() bool { return b.measure(q).OldestDue > 0 })
	if !q.PassedSince(all[0], time.Now().Add(-time.Hour)) || q.PassedSince(all[1], time.Now().Add(-time.Hour)) || q.PassedSince(all[0], time.Now().Add(time.Hour)) {
		t.Error("who was passed by, and since when, is not known")
	}
}

// The companies with the most pending events are found among many, and forgotten
// once they have none.
func TestLargestCompanies(t *testing.T) {
	t.Parallel()
	b := newBench(t, redisOf(t))
	q, all := b.queue("r"), companies(testPartition, 450)
	for i, n := range map[int]int{0: 30, 1: 20, 2: 10} { // the first accepted come last in the list of companies
		b.accept(all[i], ids("e", n)...)
	}
	for _, c := range all[3:] {
		b.accept(c, "e")
	}
	want := []workqueue.CompanyBacklog{{all[0], 30}, {all[1], 20}, {all[2], 10}}
	largest := func() []workqueue.CompanyBacklog {
		got, err := q.Largest(t.Context(), b.measure(q), 3)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	if got := largest(); len(got) != 3 {
		t.Errorf("the first page has %v", got)
	}
	largest()
	if got := largest(); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if got := largest(); !slices.Equal(got, want) { // what is known stays known
		t.Errorf("then %v", got)
	}
	if got, err := q.Largest(t.Context(), workqueue.Backlog{}, 3); err != nil || len(got) != 0 { // the partition is another replica's now
		t.Errorf("of no partition %v %v", got, err)
	}
}

// The largest companies of several partitions are found together.
func TestLargestOfSeveralPartitions(t *testing.T) {
	t.Parallel()
	b := newBench(t, redisOf(t))
	q := b.queue("r")
	var partitions []int
	var want []workqueue.CompanyBacklog
	for p := range 5 {
		partitions = append(partitions, p)
		for i, c := range companies(p, 2) {
			n := 10*(5-p) + 5*(1-i)
			b.accept(c, ids("e"+strconv.Itoa(i), n)...)
			want = append(want, workqueue.CompanyBacklog{Company: c, Pending: int64(n)})
		}
	}
	for range 2 {
		backlog, err := q.Backlog(t.Context(), partitions)
		if err != nil {
			t.Fatal(err)
		}
		got, err := q.Largest(t.Context(), backlog, 2)
		if err != nil || !slices.Equal(got, want[:2]) {
			t.Errorf("%v %v, want %v", got, err, want[:2])
		}
	}
}

// A replica that serves its partitions has no lag, and one alone sees itself.
func TestSchedulerLag(t *testing.T) {
	t.Parallel()
	b := newBench(t, redisOf(t))
	q := b.queue("r")
	if q.Lag() != 0 {
		t.Error("a replica that owns nothing lags")
	}
	if err := q.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it owns all partitions", func() bool { return len(q.Owned()) == partition.Count && q.Replicas() == 1 })
	eventually(t, "it serves them", func() bool { return q.Lag() < time.Minute })
	q.StopClaiming(t.Context())
	if err := q.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "nobody serves them any more", func() bool { return q.Lag() > 0 })
}
