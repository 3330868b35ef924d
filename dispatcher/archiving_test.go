package dispatcher

import (
	"math"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/redis/go-redis/v9"

	"spendhook/dispatcher/delivery"
	"spendhook/dispatcher/delivery/store"
	"spendhook/dispatcher/redelivery"
	"spendhook/events"
	"spendhook/events/history"
	"spendhook/events/layout"
	"spendhook/internal/partition"
	"spendhook/internal/redistest"
	"spendhook/storage"
	"spendhook/storage/archive"
)

// withHistory is a harness that archives and compacts within milliseconds. Its database has no tables yet.
func withHistory(t *testing.T, client redis.UniversalClient) (h *harness, migrate func()) {
	t.Helper()
	db, err := storage.Open(storage.Options{DataDir: t.TempDir(), History: true, Timeout: 20 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() }) // nothing is written any more
	kept := archive.New(db)
	h = build(t, client, func(o *Options) {
		o.Policy.KeepDelivered, o.CompactEvery, o.ArchiveEvery = time.Millisecond, 50*time.Millisecond, 20*time.Millisecond
		o.Archive, o.ArchiveRetention = kept, 400*24*time.Hour
		o.Events = history.New(history.Options{Client: client, Retention: o.Policy.Retention, Archive: kept})
	})
	return h, func() {
		t.Helper()
		if err := db.Migrate(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// inRedis is the state in which Redis has an event.
func (h *harness) inRedis(id string) events.State {
	h.t.Helper()
	state, err := h.client.GetRange(h.t.Context(), layout.EventKey(events.Ref{Company: h.company, ID: id}), 0, 0).Result()
	if err != nil || state == "" {
		h.t.Fatalf("event %s: %q, %v", id, state, err)
	}
	return events.State(state[0])
}

func (h *harness) allCompacted(ids []string) {
	h.t.Helper()
	eventually(h.t, func() bool {
		for _, id := range ids {
			if h.inRedis(id) != events.Compacted {
				return false
			}
		}
		return true
	}, "all events are compacted")
}

// Events that Redis has only as digests are read, replayed and erased as if Redis had them.
func TestHistory(t *testing.T) {
	t.Parallel()
	t.Run("server", func(t *testing.T) {
		t.Parallel()
		keepsHistory(t, redistest.New(t))
	})
	t.Run("cluster", func(t *testing.T) {
		t.Parallel()
		keepsHistory(t, redistest.Cluster(t, 2)[0].ClusterClient())
	})
}

func keepsHistory(t *testing.T, client redis.UniversalClient) {
	t.Helper()
	h, migrate := withHistory(t, client)
	migrate()
	in := receive(t, nil)
	sub := h.subscribe(in.URL)
	h.start()
	ids := h.emit(20)
	h.allCompacted(ids)

	ref := events.Ref{Company: h.company, ID: ids[3]}
	stored, err := h.opts.Events.Get(t.Context(), ref)
	if err != nil || stored.State != events.Settled || stored.Type != "PAYMENT_PAID" {
		t.Fatalf("%+v, %v", stored, err)
	}
	before, err := h.Deliveries.OfEvent(t.Context(), ref)
	if err != nil || len(before) != 1 || before[0].Status != delivery.StatusDelivered || before[0].Count != 1 {
		t.Fatalf("%+v, %v", before, err)
	}
	found, err := h.opts.Events.List(t.Context(), history.Filter{Company: &h.company, Search: ids[5]})
	if err != nil || len(found.Items) != 1 || found.Items[0].ID != ids[5] {
		t.Errorf("found %+v, %v", found, err)
	}
	attempts := func(want int) func() bool {
		return func() bool {
			found, err := h.Deliveries.OfEvent(t.Context(), ref)
			return err == nil && len(found) == 1 && found[0].Status == delivery.StatusDelivered && found[0].Count == want
		}
	}
	if _, err := h.Redelivery.Retry(t.Context(), h.company, before[0].PublicID()); err != nil {
		t.Fatal(err)
	}
	eventually(t, attempts(2), "the delivery is repeated")
	h.allCompacted(ids)
	if _, err := h.Redelivery.Replay(t.Context(), ref, nil); err != nil {
		t.Fatal(err)
	}
	eventually(t, attempts(3), "the event is replayed")
	h.allCompacted(ids)
	eventually(t, attempts(3), "the history has the last attempt")

	if err := h.Deliveries.Erase(t.Context(), ref); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool {
		stored, err := h.opts.Events.Get(t.Context(), ref)
		return err == nil && stored.State == events.Compacted
	}, "the event is erased in the history")

	job, err := h.Redelivery.Bulk(t.Context(), redelivery.BulkRequest{Kind: redelivery.JobRetry, Company: h.company, Filter: store.Filter{Subscriber: &sub.UUID, Statuses: []delivery.Status{delivery.StatusDelivered}}})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool {
		j, err := h.Redelivery.Job(t.Context(), h.company, job.UUID)
		return err == nil && j.Status == redelivery.JobCompleted
	}, "the job is completed")
	eventually(t, func() bool { return in.count() == 20+2+19 }, "all but the erased one are sent again")
}

// Without its database the daemon delivers. The events wait in Redis, and are written when the database answers.
func TestHistoryCatchesUp(t *testing.T) {
	t.Parallel()
	h, migrate := withHistory(t, redistest.New(t))
	in := receive(t, nil)
	h.subscribe(in.URL)
	h.start()
	ids := h.emit(5)
	eventually(t, func() bool { return in.count() == 5 }, "the events are delivered")
	eventually(t, func() bool {
		n, err := h.client.LLen(t.Context(), partition.Key(h.company, "history")).Result()
		return err == nil && n == 5
	}, "they wait for the history")
	if written := testutil.ToFloat64(h.metrics.history); written != 0 {
		t.Errorf("%v events were written to no database", written)
	}
	for _, id := range ids {
		if state := h.inRedis(id); state != events.Settled {
			t.Errorf("event %s is %c", id, state)
		}
	}
	migrate()
	h.allCompacted(ids)
	if written := testutil.ToFloat64(h.metrics.history); written != 5 {
		t.Errorf("%v events were written", written)
	}
}

// Erasing a company erases its history, but not that of others.
func TestErasingACompanyErasesItsHistory(t *testing.T) {
	t.Parallel()
	h, migrate := withHistory(t, redistest.New(t))
	migrate()
	in := receive(t, nil)
	h.subscribe(in.URL)
	h.start()
	ids := h.emit(3)
	other := uuid.New()
	h.emitOf(other, 1)
	h.allCompacted(ids)
	if err := h.Deliveries.Restore(t.Context(), []events.Ref{{Company: h.company, ID: ids[1]}}, math.MaxInt64); err != nil {
		t.Fatal(err)
	}
	job, err := h.Redelivery.Erase(t.Context(), h.company)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool {
		j, err := h.Redelivery.Job(t.Context(), h.company, job.UUID)
		return err == nil && j.Status == redelivery.JobCompleted
	}, "the job is completed")
	for _, id := range ids {
		found, err := h.opts.Archive.Get(t.Context(), []events.Ref{{Company: h.company, ID: id}})
		if err != nil || found[0] != nil {
			t.Errorf("%s: %+v, %v", id, found[0], err)
		}
		if state := h.inRedis(id); state != events.Compacted { // also the restored one
			t.Errorf("%s is %c", id, state)
		}
	}
	eventually(t, func() bool {
		companies, err := h.opts.Archive.Companies(t.Context(), uuid.Nil, 10)
		return err == nil && len(companies) == 1 && companies[0] == other
	}, "the other company is in the history")
}

// A list that cannot be read keeps no other partition out of the history.
func TestADamagedListKeepsOthersInTheHistory(t *testing.T) {
	t.Parallel()
	h, migrate := withHistory(t, redistest.New(t))
	migrate()
	in := receive(t, nil)
	h.subscribe(in.URL)
	other, mine := uuid.New(), partition.Of(h.company)
	for p := partition.Of(other); p == mine || p/archiveTogether != mine/archiveTogether; p = partition.Of(other) { // read together
		other = uuid.New()
	}
	h.client.Set(t.Context(), partition.Key(other, "history"), "damaged", 0)
	h.start()
	h.allCompacted(h.emit(3))
}

// The history keeps the events of a company for as long as that company's own time says, those of others for longer.
func TestACompanyHasItsOwnRetentionInTheHistory(t *testing.T) {
	t.Parallel()
	h, migrate := withHistory(t, redistest.New(t))
	migrate()
	short, long := uuid.New(), uuid.New()
	h.opts.CompanyRetention = map[uuid.UUID]time.Duration{short: time.Millisecond}
	in := receive(t, nil)
	h.start()
	const n = trimTogether + 10
	for _, company := range []uuid.UUID{short, long} {
		h.company = company
		h.subscribe(in.URL)
		h.allCompacted(h.emit(n))
	}
	if err := h.trim(t.Context()); err != nil {
		t.Fatal(err)
	}
	for company, want := range map[uuid.UUID]int{short: 0, long: 100} {
		found, err := h.opts.Events.List(t.Context(), history.Filter{Company: &company, Size: 100})
		if err != nil || len(found.Items) != want {
			t.Errorf("%d events are left, want %d, %v", len(found.Items), want, err)
		}
	}
}
