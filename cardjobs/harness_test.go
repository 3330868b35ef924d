package cardjobs

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"
	"github.com/redis/go-redis/v9"

	"spendhook/events"
	"spendhook/events/history"
	"spendhook/events/publish"
	"spendhook/internal/redistest"
	"spendhook/internal/waittest"
	"spendhook/storage"
	"spendhook/storage/cards"
	"spendhook/storage/importer"
	"spendhook/storage/storagetest"
)

const retention = 7 * 24 * time.Hour

// Company acme (EUR, limit 1,000.00) has one user, ann; company bolt has no user.
var (
	acme = uuid.MustParse("a0000000-0000-4000-8000-000000000000")
	bolt = uuid.MustParse("c0000000-0000-4000-8000-000000000000")
	ann  = uuid.MustParse("a0000000-0000-4000-8000-000000000001")
	bob  = uuid.MustParse("b0000000-0000-4000-8000-000000000001") // unknown user
)

// harness is a database and a Redis, and records the events that replicas publish.
type harness struct {
	t       *testing.T
	options storage.Options
	db      *storage.DB
	store   *cards.Store
	server  *redistest.Server
	client  redis.UniversalClient
	events  *history.Reader
	accept  Publish

	mu       sync.Mutex
	accepted map[string]int // how often each event was new
}

// onBoth runs a test on each database.
func onBoth(t *testing.T, test func(*harness)) {
	t.Helper()
	for name, options := range map[string]func(*testing.T) storage.Options{
		"sqlite":   func(t *testing.T) storage.Options { t.Helper(); return storage.Options{DataDir: storagetest.SQLite(t)} },
		"postgres": func(t *testing.T) storage.Options { t.Helper(); return storage.Options{URL: storagetest.Postgres(t)} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(build(t, options(t)))
		})
	}
}

func build(t *testing.T, o storage.Options) *harness {
	t.Helper()
	o.Timeout = 20 * time.Second // the machine may be busy
	h := &harness{
		t: t, options: o, db: storagetest.Open(t, o), accepted: map[string]int{},
		server: redistest.Start(t, redistest.Options{AOF: true}),
	}
	load(t, h.db)
	h.store = cards.New(h.db, nil)
	h.client = h.server.Client()
	h.events = history.New(history.Options{Client: h.client, Retention: retention})
	p := newPublisher(h.client)
	t.Cleanup(p.Close)
	h.accept = p.Accept
	return h
}

func newPublisher(client redis.UniversalClient) *publish.Publisher {
	return publish.New(publish.Options{
		Client: client, Retention: retention, Wake: func(context.Context, []int) {},
	})
}

func load(t *testing.T, s *storage.DB) {
	t.Helper()
	lines := strings.Join([]string{
		`{"kind":"company","uuid":"` + acme.String() + `","name":"Acme","currency":"EUR","creditLimit":1000.00}`,
		`{"kind":"company","uuid":"` + bolt.String() + `","name":"Bolt","currency":"EUR","creditLimit":1000.00}`,
		`{"kind":"user","uuid":"` + ann.String() + `","companyUuid":"` + acme.String() + `","username":"ann","name":"Ann"}`,
	}, "\n")
	in := importer.Importer{DB: s, Refused: func(r importer.Refusal) { t.Errorf("refused: %+v", r) }}
	if _, err := in.Run(t.Context(), strings.NewReader(lines)); err != nil {
		t.Fatal(err)
	}
}

// publish publishes events and counts each that is new.
func (h *harness) publish(ctx context.Context, batch []events.Event) ([]publish.Result, error) {
	results, err := h.accept(ctx, batch)
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, r := range results {
		if r.Status == publish.Accepted {
			h.accepted[r.ID]++
		}
	}
	return results, err
}

// replica is a Runner with its metrics.
type replica struct {
	*Runner
	t        *testing.T
	registry *prometheus.Registry
	stopOnce sync.Once
}

// replica makes one that is not started. adjust may change its options.
func (h *harness) replica(adjust func(*Options)) *replica {
	h.t.Helper()
	registry := prometheus.NewRegistry()
	logger := slog.New(slog.NewTextHandler(h.t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	o := Options{
		Store: h.store, Publish: h.publish, Registerer: registry, Logger: logger,
		Every: 20 * time.Millisecond,
	}
	if adjust != nil {
		adjust(&o)
	}
	return &replica{Runner: New(o), t: h.t, registry: registry}
}

func (r *replica) start() *replica {
	r.t.Helper()
	r.Start(r.t.Context())
	r.t.Cleanup(func() { r.stop(5 * time.Second) })
	return r
}

// stop drains the replica for at most the timeout. Further calls do nothing.
func (r *replica) stop(timeout time.Duration) {
	r.stopOnce.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), timeout)
		defer cancel()
		r.Stop(ctx)
	})
}

func (r *replica) submit(requests []cards.Request) cards.Job {
	r.t.Helper()
	return storagetest.Must(r.Submit(r.t.Context(), acme, requests, cards.Once{}))(r.t)
}

func (r *replica) items(outcome string) float64 {
	return testutil.ToFloat64(r.metrics.items.WithLabelValues(outcome))
}

// jobs is how many jobs the replica has completed.
func (r *replica) jobs() uint64 {
	var m dto.Metric
	if err := r.metrics.jobSeconds.Write(&m); err != nil {
		r.t.Error(err)
	}
	return m.GetHistogram().GetSampleCount()
}

// requests asks for n cards. The first of each ten must fail: its user does not exist, or it is
// above the limit.
func requests(n int) []cards.Request {
	list := make([]cards.Request, n)
	for i := range list {
		list[i] = cards.Request{Type: "VIRTUAL", Alias: fmt.Sprintf("card %d", i), UserUUID: ann}
		if i%10 == 0 {
			list[i].UserUUID = bob
		}
	}
	return list
}

func doomed(n int) int { return (n + 9) / 10 }

// wantDone waits for the end of a job of bulk requests and checks it: one card for each item
// that must not fail, and one event for every item.
func (h *harness) wantDone(id uuid.UUID) {
	h.t.Helper()
	var job cards.Job
	waittest.Until(h.t, "the job ends and its outcomes are published", func() bool {
		out, err := h.store.NextOutcomes(h.t.Context(), uuid.Nil, 1)
		if err != nil || len(out) > 0 {
			return false
		}
		job, err = h.store.CardJob(h.t.Context(), acme, id)
		return err == nil && job.Status == cards.JobCompleted
	})
	bad := doomed(job.Total)
	if job.Succeeded != job.Total-bad || job.Failed != bad || job.FinishedAt == nil {
		h.t.Errorf("%d succeeded and %d failed of %d", job.Succeeded, job.Failed, job.Total)
	}
	_, total, err := h.store.Cards(h.t.Context(), cards.Filter{})
	if err != nil || total != int64(job.Succeeded) {
		h.t.Errorf("%d cards, want %d (%v)", total, job.Succeeded, err)
	}
	h.wantEvents(job)
}

// wantEvents checks that the events are those of the job and nothing else.
func (h *harness) wantEvents(job cards.Job) {
	h.t.Helper()
	got := h.published()
	if len(got) != job.Total {
		h.t.Errorf("%d events, want %d", len(got), job.Total)
	}
	for i := range job.Items {
		item := &job.Items[i]
		want := storagetest.Must(event(item))(h.t)
		e, ok := got[want.ID]
		if !ok || e.Type != want.Type || e.ErrorCode != want.ErrorCode || !e.Timestamp.Equal(*item.FinishedAt) || !sameJSON(e.Metadata, want.Metadata) {
			h.t.Errorf("item %d: event %+v, want %+v", i, e, want)
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for id, n := range h.accepted {
		if n != 1 {
			h.t.Errorf("event %s was new %d times", id, n)
		}
	}
}

// published reads the company's events back.
func (h *harness) published() map[string]events.Event {
	h.t.Helper()
	got := map[string]events.Event{}
	var f history.Filter
	for company := acme; ; {
		f.Company, f.Size = &company, 100
		page := storagetest.Must(h.events.List(h.t.Context(), f))(h.t)
		for _, e := range page.Items {
			got[e.ID] = e.Event
		}
		if f.Cursor = page.Next; f.Cursor == "" {
			return got
		}
	}
}

func sameJSON(a, b []byte) bool {
	var x, y metadata
	strict := json.RejectUnknownMembers(true)
	if json.Unmarshal(a, &x, strict) != nil || json.Unmarshal(b, &y, strict) != nil {
		return false
	}
	sameCard := x.CardUUID == nil && y.CardUUID == nil || x.CardUUID != nil && y.CardUUID != nil && *x.CardUUID == *y.CardUUID
	x.CardUUID, y.CardUUID = nil, nil
	return sameCard && x == y
}

// finished is how many items of the job have an outcome.
func (h *harness) finished(job uuid.UUID) int {
	j, err := h.store.CardJob(h.t.Context(), acme, job)
	if err != nil {
		return 0
	}
	return j.Succeeded + j.Failed
}

func (h *harness) wantFinished(job uuid.UUID, atLeast int) {
	h.t.Helper()
	waittest.Until(h.t, fmt.Sprintf("%d items are finished", atLeast), func() bool { return h.finished(job) >= atLeast })
}

// patience is longer than any stop takes.
const patience = 10 * time.Minute
