package quarantine_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/dispatcher/workqueue"
	"spendhook/dispatcher/workqueue/backlog"
	"spendhook/dispatcher/workqueue/quarantine"
	"spendhook/internal/cursor"
	"spendhook/internal/partition"
	"spendhook/internal/queues"
	"spendhook/internal/redistest"
)

// bench is a quarantine and a work queue. Batches that the queue begins arrive at taken.
type bench struct {
	*quarantine.Store

	queue  *workqueue.Queue
	t      *testing.T
	client redis.UniversalClient
	taken  chan workqueue.Batch
}

// everything is an admission without limits.
type everything struct{}

func (everything) Holding() (map[uuid.UUID]int, int) { return nil, 100 }
func (everything) Skipped(uuid.UUID) bool            { return false }
func (everything) Free(uuid.UUID) int                { return 1000 }

func (everything) MayStart(_, _ uuid.UUID) (int, time.Time) { return 64, time.Time{} }

func (everything) Learned(_, _ uuid.UUID, _ int, _ time.Duration) {}

func newBench(t *testing.T) *bench {
	t.Helper()
	q := &bench{t: t, client: redistest.New(t), taken: make(chan workqueue.Batch, 100)}
	q.queue = workqueue.New(workqueue.Options{
		Client: q.client, Replica: "one", Admission: everything{}, LookEvery: 10 * time.Millisecond,
		Take: func(_ context.Context, batches []workqueue.Batch) {
			for _, b := range batches {
				q.taken <- b
			}
		},
	})
	q.Store = quarantine.New(q.client, q.queue.Wake)
	return q
}

// start starts the queue, until the test ends.
func (q *bench) start() {
	q.t.Helper()
	if err := q.queue.Start(q.t.Context()); err != nil {
		q.t.Fatal(err)
	}
	q.t.Cleanup(func() {
		q.queue.Leave(context.Background())
		if err := q.queue.Release(context.Background()); err != nil {
			q.t.Error(err)
		}
	})
}

// next is the next batch that is begun.
func (q *bench) next() workqueue.Batch {
	q.t.Helper()
	select {
	case b := <-q.taken:
		return b
	case <-time.After(5 * time.Minute):
		q.t.Fatal("nothing is begun")
		return workqueue.Batch{}
	}
}

func (q *bench) add(at int64, entries ...quarantine.Entry) {
	q.t.Helper()
	for _, e := range entries {
		if err := q.client.ZAdd(q.t.Context(), quarantine.Key(partition.Of(e.Company)), redis.Z{Score: float64(at), Member: e.Member()}).Err(); err != nil {
			q.t.Fatal(err)
		}
	}
}

// list reads all pages, each of the given size.
func (q *bench) list(company *uuid.UUID, size int) []string {
	q.t.Helper()
	var all []string
	f := quarantine.Filter{Company: company, Size: size}
	for {
		page, err := q.List(q.t.Context(), f)
		if err != nil {
			q.t.Fatal(err)
		}
		if len(page.Items) > size {
			q.t.Fatalf("a page of %d", len(page.Items))
		}
		for _, e := range page.Items {
			all = append(all, e.Member())
		}
		if f.Cursor = page.Next; f.Cursor == "" {
			return all
		}
	}
}

func companyKey(company uuid.UUID, kind, more string) string {
	return partition.Key(company, kind+":"+company.String()+more)
}

func TestQuarantineIsListed(t *testing.T) {
	t.Parallel()
	q := newBench(t)
	companies := []uuid.UUID{uuid.New(), uuid.New(), uuid.New()}
	sub := uuid.New()
	want := map[uuid.UUID][]string{}
	for i := range 5 {
		for _, c := range companies {
			event := quarantine.Entry{Company: c, EventID: fmt.Sprintf("e-%d", i)}
			delivery := quarantine.Entry{Company: c, EventID: event.EventID, Subscriber: &sub}
			q.add(int64(1000+i/2), event, delivery) // some at the same moment
			want[c] = append(want[c], event.Member(), delivery.Member())
		}
	}
	for size := range 12 {
		all := q.list(nil, size+1)
		for _, c := range companies {
			if got := q.list(&c, size+1); !slices.Equal(got, want[c]) {
				t.Errorf("size %d: %v, want %v", size+1, got, want[c])
			}
			mine := slices.DeleteFunc(slices.Clone(all), func(m string) bool { return m[:36] != c.String() })
			if !slices.Equal(mine, want[c]) {
				t.Errorf("of all, size %d: %v, want %v", size+1, mine, want[c])
			}
		}
	}

	page, err := q.List(t.Context(), quarantine.Filter{Company: &companies[0], Size: 3})
	if err != nil || page.Items[1].Subscriber == nil || *page.Items[1].Subscriber != sub || !page.Items[1].At.Equal(time.UnixMilli(1000)) {
		t.Errorf("%+v %v", page, err)
	}
	elsewhere := cursor.Encode("quarantine", companies[0].String(), map[string]int{"p": (partition.Of(companies[0]) + 1) % partition.Count})
	for _, text := range []string{"!", "AAAA", elsewhere} {
		if _, err := q.List(t.Context(), quarantine.Filter{Company: &companies[0], Cursor: text}); !errors.Is(err, cursor.ErrBad) {
			t.Errorf("cursor %q: %v", text, err)
		}
	}
	total, err := backlog.New(q.client, 0, nil).Measure(t.Context(), []int{partition.Of(companies[0])}, 0)
	if err != nil || total.Quarantined < 10 {
		t.Errorf("backlog %+v %v", total, err)
	}
}

// The list of one company continues past many entries of another.
func TestQuarantineOfOneCompanyAmongManyEntries(t *testing.T) {
	t.Parallel()
	q := newBench(t)
	company := uuid.New()
	loud := uuid.New()
	for partition.Of(loud) != partition.Of(company) {
		loud = uuid.New()
	}
	first, last := quarantine.Entry{Company: company, EventID: "first"}, quarantine.Entry{Company: company, EventID: "last"}
	q.add(1, first)
	others := make([]redis.Z, 3000)
	for i := range others {
		others[i] = redis.Z{Score: float64(2 + i/7), Member: quarantine.Entry{Company: loud, EventID: strconv.Itoa(i)}.Member()}
	}
	if err := q.client.ZAdd(t.Context(), quarantine.Key(partition.Of(company)), others...).Err(); err != nil {
		t.Fatal(err)
	}
	q.add(10_000, last)
	if got := q.list(&company, 100); !slices.Equal(got, []string{first.Member(), last.Member()}) {
		t.Errorf("listed %v", got)
	}
	if got := q.list(&loud, 100); len(got) != len(others) {
		t.Errorf("listed %d of %d", len(got), len(others))
	}
}

func TestRetriedEventIsMatchedAgain(t *testing.T) {
	t.Parallel()
	q := newBench(t)
	e := quarantine.Entry{Company: uuid.New(), EventID: "e"}
	if err := q.Retry(t.Context(), e); !errors.Is(err, quarantine.ErrNotFound) {
		t.Fatal(err)
	}
	q.add(1000, e)
	sub := uuid.New()
	if err := q.client.Set(t.Context(), companyKey(e.Company, "e", ":e"), "Rmended", 0).Err(); err != nil {
		t.Fatal(err)
	}
	if err := q.client.HSet(t.Context(), companyKey(e.Company, "d", "/e"), sub.String(), "D1|{}").Err(); err != nil {
		t.Fatal(err)
	}
	q.start()
	if err := q.Retry(t.Context(), e); err != nil {
		t.Fatal(err)
	}
	b := q.next()
	if len(b.Events) != 1 || b.Company != e.Company || b.Events[0].Value != "Rmended" || !slices.Equal(b.Events[0].Known, []uuid.UUID{sub}) {
		t.Errorf("begun %+v", b)
	}
	if err := q.Retry(t.Context(), e); !errors.Is(err, quarantine.ErrNotFound) {
		t.Errorf("again: %v", err)
	}
}

func TestRetriedDeliveryIsAttemptedAgain(t *testing.T) {
	t.Parallel()
	q := newBench(t)
	company, sub := uuid.New(), uuid.New()
	for id, record := range map[string]string{"waits": "P1|{}", "damaged": "}", "delivered": "D2|{}", "in-flight": "R3|{}"} {
		if err := q.client.HSet(t.Context(), companyKey(company, "d", "/"+id), sub.String(), record).Err(); err != nil {
			t.Fatal(err)
		}
		q.add(1000, quarantine.Entry{Company: company, EventID: id, Subscriber: &sub})
	}
	if err := q.client.HSet(t.Context(), queues.InFlightKey(company, sub), "in-flight", "another 1").Err(); err != nil {
		t.Fatal(err)
	}
	if err := q.client.SAdd(t.Context(), partition.Key(company, "handover"), "another").Err(); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"waits", "damaged", "delivered", "in-flight"} {
		if err := q.Retry(t.Context(), quarantine.Entry{Company: company, EventID: id, Subscriber: &sub}); err != nil {
			t.Fatal(err)
		}
	}
	queued, err := q.client.ZRange(t.Context(), queues.RetrySetKey(company, sub), 0, -1).Result()
	slices.Sort(queued)
	if err != nil || !slices.Equal(queued, []string{"damaged", "waits"}) {
		t.Errorf("queued %v %v", queued, err)
	}
	if left := q.list(&company, 10); len(left) > 0 {
		t.Errorf("left %v", left)
	}
	q.start()
	var begun []string
	for len(begun) < 2 {
		for _, d := range q.next().Deliveries {
			begun = append(begun, d.EventID)
		}
	}
	slices.Sort(begun)
	if !slices.Equal(begun, []string{"damaged", "waits"}) {
		t.Errorf("begun %v", begun)
	}
}

func TestParseID(t *testing.T) {
	t.Parallel()
	company, subscriber := uuid.New(), uuid.New()
	for _, id := range []string{"evt-1", "evt-1." + subscriber.String(), "." + subscriber.String()} {
		if e, err := quarantine.ParseID(company, id); err != nil || e.ID() != id || e.Company != company {
			t.Errorf("%q: %+v, %v", id, e, err)
		}
	}
	for _, id := range []string{"", ".", "evt.x", "a/b", "evt." + strings.ToUpper(subscriber.String()), "evt/" + subscriber.String()} {
		if e, err := quarantine.ParseID(company, id); !errors.Is(err, quarantine.ErrNotFound) {
			t.Errorf("%q: %+v, %v", id, e, err)
		}
	}
}
