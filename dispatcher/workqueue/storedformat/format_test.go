package storedformat_test

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/dispatcher/delivery"
	"spendhook/dispatcher/delivery/store"
	"spendhook/dispatcher/workqueue"
	"spendhook/dispatcher/workqueue/quarantine"
	"spendhook/dispatcher/workqueue/storedformat"
	"spendhook/events"
	"spendhook/events/publish"
	"spendhook/internal/partition"
	"spendhook/internal/redistest"
	"spendhook/internal/seal/sealtest"
	"spendhook/subscribers"
)

// gate lets companies start work while it is open.
type gate struct{ open atomic.Bool }

func (g *gate) places() int {
	if g.open.Load() {
		return 1000
	}
	return 0
}

func (g *gate) Holding() (map[uuid.UUID]int, int) { return nil, g.places() }
func (g *gate) Skipped(uuid.UUID) bool            { return false }
func (g *gate) Free(uuid.UUID) int                { return g.places() }

func (g *gate) MayStart(_, _ uuid.UUID) (int, time.Time) { return 1000, time.Time{} }

func (g *gate) Learned(_, _ uuid.UUID, _ int, _ time.Duration) {}

// newQueue makes a replica and a channel of the companies whose work it began. It begins none before the gate is open.
func newQueue(client redis.UniversalClient, admission *gate) (*workqueue.Queue, chan uuid.UUID) {
	begun := make(chan uuid.UUID, 100)
	q := workqueue.New(workqueue.Options{
		Client: client, Replica: uuid.NewString(), Admission: admission,
		Take: func(_ context.Context, batches []workqueue.Batch) {
			for _, b := range batches {
				begun <- b.Company
			}
		},
	})
	return q, begun
}

// formatKey is the number of the format that partition p is stored in.
func formatKey(p int) string { return partition.Prefix(p) + "format" }

func stop(t *testing.T, q *workqueue.Queue) {
	t.Helper()
	q.Leave(t.Context())
	_ = q.Release(context.Background()) // a refused replica cannot release
}

func accept(t *testing.T, client redis.UniversalClient, company uuid.UUID) (events.Ref, error) {
	t.Helper()
	p := publish.New(publish.Options{
		Client: client, Retention: time.Hour, Wake: func(context.Context, []int) {},
	})
	defer p.Close()
	e := events.Event{ID: uuid.NewString(), CompanyUUID: company, Type: "PAYMENT_PAID", Timestamp: time.Now()}
	results, err := p.Accept(t.Context(), []events.Event{e})
	if err == nil {
		err = results[0].Err
	}
	return events.Ref{Company: company, ID: e.ID}, err
}

func wantRefused(t *testing.T, what string, err error, p int) {
	t.Helper()
	format, ok := errors.AsType[*partition.FormatError](partition.CheckedError(err))
	if !ok || *format != (partition.FormatError{Partition: p, Format: 2}) {
		t.Errorf("%s: %v", what, err)
	}
}

// No script of this build changes data in a format that the build cannot read. Builds that
// read the format find the data unchanged.
func TestNewerFormatIsNotChanged(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	client := redistest.Start(t, redistest.Options{}).Client()
	company := uuid.New()
	p := partition.Of(company)
	admission := new(gate)
	q, begun := newQueue(client, admission)
	if err := q.Start(ctx); err != nil {
		t.Fatal(err)
	}
	defer stop(t, q)
	if err := q.Refused(); err != nil {
		t.Fatal(err)
	}
	ref, err := accept(t, client, company)
	if err != nil {
		t.Fatal(err)
	}
	if err := client.Set(ctx, formatKey(p), 2, 0).Err(); err != nil {
		t.Fatal(err)
	}
	_, err = accept(t, client, company)
	wantRefused(t, "accept", err, p)
	if !errors.Is(err, events.ErrUnavailable) {
		t.Errorf("accept: %v is not unavailable", err)
	}

	record := delivery.NewRecord(events.Stored{Event: events.Event{Type: "PAYMENT_PAID"}, AcceptedAt: time.Now()}, "")
	kept := store.New(store.Options{Client: client, Policy: delivery.Policy{Retention: time.Hour, DeadRetention: time.Hour}})
	for _, status := range []delivery.Status{delivery.StatusDelivered, delivery.StatusRetrying} { // two scripts
		next := *record
		next.Status = status
		write := store.Write{Event: ref, Matched: true, Fanout: 1, Changes: []store.Change{
			{Ref: delivery.Ref{Ref: ref, Subscriber: uuid.New()}, Base: record, Next: &next},
		}}
		recorded, _, err := kept.Record(ctx, time.Now(), []store.Write{write})
		if err != nil {
			t.Fatal(err)
		}
		wantRefused(t, "record "+string(status), recorded[0].Err, p)
	}

	subs := subscribers.NewStore(subscribers.StoreOptions{Client: client, Keyring: sealtest.Keyring(), MaxPerCompany: 10})
	_, err = subs.Create(ctx, company, subscribers.Settings{
		Name: new("n"), CallbackURL: new("https://example.com/"), Events: new([]string{"PAYMENT_PAID"}),
	})
	wantRefused(t, "create subscriber", err, p)
	unreadable := quarantine.New(client, q.Wake)
	wantRefused(t, "quarantine", unreadable.Move(ctx, quarantine.Entry{Company: company, EventID: ref.ID}), p)
	wantRefused(t, "end job", q.EndJob(ctx, "a replica", company, uuid.New(), 0), p)

	admission.open.Store(true)
	q.Wake(ctx, []int{p})
	for late := time.Now().Add(time.Minute); q.Refused() == nil; runtime.Gosched() {
		if time.Now().After(late) {
			t.Fatal("the turn was not refused")
		}
	}
	wantRefused(t, "turn", q.Refused(), p)
	if len(begun) > 0 {
		t.Error("work was begun")
	}
	if !client.SIsMember(ctx, partition.Prefix(p)+"active", company.String()).Val() {
		t.Error("the company has no open event")
	}

	client.Del(ctx, formatKey(p)) // as a replica that reads it
	other, begun := newQueue(client, admission)
	if err := other.Start(ctx); err != nil {
		t.Fatal(err)
	}
	defer stop(t, other)
	select {
	case <-begun:
	case <-time.After(5 * time.Minute):
		t.Error("the event was not begun")
	}
}

// The format is raised once all live replicas read the new one. After that, a replica
// that does not read the new format cannot start.
func TestRaiseFormat(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	client := redistest.Start(t, redistest.Options{}).Client()
	old, _ := newQueue(client, new(gate))
	if err := old.Start(ctx); err != nil {
		t.Fatal(err)
	}
	before, err := storedformat.Read(ctx, client)
	if err != nil || len(before.Readers) != 1 || !before.Readers[0].Reads(1) || before.Readers[0].Reads(2) {
		t.Fatalf("%+v %v", before.Readers, err)
	}
	if n, err := storedformat.Raise(ctx, client, 2); n != 0 || !errors.Is(err, storedformat.ErrOldReplica) {
		t.Errorf("raised %d, %v", n, err)
	}
	if after, err := storedformat.Read(ctx, client); err != nil || after.Partitions != before.Partitions {
		t.Errorf("a refused command has raised partitions: %v", err)
	}
	stop(t, old)
	// A replica that reads both formats does not block the raise.
	now := client.Time(ctx).Val().UnixMilli()
	client.ZAdd(ctx, partition.Prefix(0)+"replicas", redis.Z{Score: float64(now), Member: "new"})
	client.HSet(ctx, partition.Prefix(0)+"reads", "new", "1-2")
	client.Set(ctx, formatKey(17), 2, 0) // a command that was interrupted
	if _, err := storedformat.Raise(ctx, client, 2); err == nil {
		t.Error("this build has raised partitions beyond what it reads")
	}
	client.Del(ctx, formatKey(17))
	for p := range partition.Count {
		client.Del(ctx, formatKey(p))
	}
	if n, err := storedformat.Raise(ctx, client, 2); n != partition.Count || err != nil {
		t.Errorf("raised %d, %v", n, err)
	}
	after, err := storedformat.Read(ctx, client)
	if err != nil {
		t.Fatal(err)
	}
	for p, format := range after.Partitions {
		if format != 2 {
			t.Errorf("partition %d has format %d", p, format)
		}
	}
	late, _ := newQueue(client, new(gate))
	err = late.Start(ctx)
	wantRefused(t, "start", err, 0)
	late.Leave(t.Context())
	_ = late.Release(ctx)
	if n := client.ZCard(ctx, partition.Prefix(0)+"replicas").Val(); n != 1 {
		t.Errorf("%d replicas have a heartbeat", n)
	}
}
