package dispatcher

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"spendhook/dispatcher/webhook"
	"spendhook/events"
	"spendhook/internal/egress"
	"spendhook/internal/redistest"
	"spendhook/internal/seal/sealtest"
	"spendhook/subscribers"
)

// house is everything between the API and the receivers, on a real Redis.
type house struct {
	*Dispatcher
	t         *testing.T
	client    redis.UniversalClient
	publisher *events.Publisher
	company   uuid.UUID
	logger    *slog.Logger
	seq       int          // of the last event emitted
	enqueued  atomic.Int64 // events emitted that are in the queue, or failed to get there
	stopped   sync.Once
}

// build makes a house that is not started. adjust may change the options.
func build(t *testing.T, client redis.UniversalClient, adjust func(*Options)) *house {
	t.Helper()
	policy := Policy{
		Schedule: []time.Duration{20 * time.Millisecond, 20 * time.Millisecond, 20 * time.Millisecond},
		Jitter:   0.2, RetryAfterMax: time.Minute, DeadRetention: 30 * 24 * time.Hour, Retention: 7 * 24 * time.Hour,
		FailingAfter: 4, DisableAfter: time.Hour,
	}
	eventStore := events.NewStore(events.StoreOptions{Client: client, Retention: policy.Retention})
	subs := subscribers.NewStore(subscribers.StoreOptions{Client: client, Keyring: sealtest.Keyring(), Policy: subscribers.URLPolicy{AllowHTTP: true}})
	o := Options{
		Store:  NewStore(client, policy),
		Events: eventStore, Subscribers: subs, Registry: subscribers.NewRegistry(subscribers.RegistryOptions{Store: subs}),
		Policy: policy, Replica: uuid.NewString(),
		ClockEvery: 10 * time.Millisecond, BeatEvery: 50 * time.Millisecond,
		Logger: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(),
	}
	if adjust != nil {
		adjust(&o)
	}
	if o.Queue == nil {
		o.Queue = NewQueue(QueueOptions{Client: client, CheckInterval: 5 * time.Millisecond, StopTimeout: time.Second, Logger: o.Logger})
	}
	if o.Sender == nil {
		o.Sender = testSender(2 * time.Second)
	}
	d, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	h := &house{Dispatcher: d, t: t, client: client, company: uuid.New(), logger: o.Logger}
	h.publisher = events.NewPublisher(events.PublisherOptions{Store: eventStore, Enqueue: h.enqueue})
	t.Cleanup(h.publisher.Close)
	t.Cleanup(o.Sender.Close)
	return h
}

// testSender reaches loopback.
func testSender(timeout time.Duration) *webhook.Sender {
	return webhook.NewSender(webhook.SenderOptions{
		Guard:   egress.New(egress.Options{AllowLoopback: true}),
		Timeout: timeout, ConnectTimeout: time.Second, Version: "test",
	})
}

func (h *house) start() {
	h.t.Helper()
	if err := h.Start(h.t.Context(), h.publisher.Accept); err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { h.stop(5 * time.Second) })
}

// stop gives running attempts some grace, once.
func (h *house) stop(grace time.Duration) {
	h.stopped.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), grace)
		defer cancel()
		h.Stop(ctx)
	})
}

// setup is a started house.
func setup(t *testing.T) *house {
	t.Helper()
	h := build(t, redistest.New(t), nil)
	h.start()
	return h
}

func (h *house) enqueue(ctx context.Context, accepted []*events.Stored) error {
	defer func() {
		for _, e := range accepted {
			if strings.HasPrefix(e.ID, emitted) {
				h.enqueued.Add(1)
			}
		}
	}()
	return h.Enqueue(ctx, accepted)
}

const emitted = "evt-" // begins the ids of events that a test emits

// emit accepts n new events, sees them into the queue and returns their ids.
func (h *house) emit(n int) []string {
	h.t.Helper()
	batch := make([]events.Event, n)
	ids := make([]string, n)
	for i := range batch {
		h.seq++
		ids[i] = emitted + strconv.Itoa(h.seq)
		batch[i] = events.Event{
			ID: ids[i], CompanyUUID: h.company, Type: "PAYMENT_PAID", Timestamp: time.Now(), Metadata: []byte(`{"n":1}`),
		}
	}
	before := h.enqueued.Load()
	results, err := h.publisher.Accept(h.t.Context(), batch)
	if err != nil {
		h.t.Fatal(err)
	}
	for _, r := range results {
		if r.Err != nil || r.Status != events.Accepted {
			h.t.Fatalf("event %s: %s %v", r.ID, r.Status, r.Err)
		}
	}
	eventually(h.t, func() bool { return h.enqueued.Load() >= before+int64(n) }, "they are in the queue")
	return ids
}

func (h *house) subscribe(callback string) subscribers.Subscriber {
	h.t.Helper()
	s, err := h.Subscribers.Create(h.t.Context(), subscribers.Create{
		CompanyUUID: h.company, Name: "receiver", CallbackURL: callback, Events: []string{"PAYMENT_PAID"},
	})
	if err != nil {
		h.t.Fatal(err)
	}
	return s
}

func (h *house) delivery(event string, sub subscribers.Subscriber) Delivery {
	h.t.Helper()
	d, err := h.Delivery(h.t.Context(), h.company, event+"."+sub.UUID.String())
	if err != nil {
		h.t.Fatalf("delivery of %s: %v", event, err)
	}
	return d
}

// reaches waits until the delivery stands in status.
func (h *house) reaches(event string, sub subscribers.Subscriber, status Status) Delivery {
	h.t.Helper()
	var d Delivery
	eventually(h.t, func() bool {
		var err error
		d, err = h.Delivery(h.t.Context(), h.company, event+"."+sub.UUID.String())
		return err == nil && d.Status == status
	}, "delivery of %s reaches %s (now %s %s)", event, status, &d.Status, &d.Reason)
	return d
}

// inbox is an endpoint that notes what it received.
type inbox struct {
	*httptest.Server
	mu     sync.Mutex
	got    []received
	answer func(n int, w http.ResponseWriter, r *http.Request) // n counts from 1
}

type received struct {
	header http.Header
	body   []byte
}

func receive(t *testing.T, answer func(n int, w http.ResponseWriter, r *http.Request)) *inbox {
	t.Helper()
	rc := &inbox{answer: answer}
	rc.Server = httptest.NewServer(rc)
	t.Cleanup(rc.Close)
	return rc
}

func (rc *inbox) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	rc.mu.Lock()
	rc.got = append(rc.got, received{header: r.Header.Clone(), body: body})
	n, answer := len(rc.got), rc.answer
	rc.mu.Unlock()
	if answer != nil {
		answer(n, w, r)
	}
}

func (rc *inbox) count() int {
	rc.mu.Lock()
	defer rc.mu.Unlock()
	return len(rc.got)
}

// ids counts what was received by webhook-id.
func (rc *inbox) ids() map[string]int {
	rc.mu.Lock()
	defer rc.mu.Unlock()
	ids := map[string]int{}
	for _, g := range rc.got {
		ids[g.header.Get(webhook.HeaderID)]++
	}
	return ids
}

func status(code int) func(int, http.ResponseWriter, *http.Request) {
	return func(_ int, w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
}

// patience bounds every wait of the tests; nothing takes that long.
const patience = time.Minute

func eventually(t *testing.T, ok func() bool, what string, args ...any) {
	t.Helper()
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	deadline := time.Now().Add(patience)
	for ; !ok(); <-look.C {
		if time.Now().After(deadline) {
			for i, a := range args {
				switch p := a.(type) {
				case *Status:
					args[i] = *p
				case *string:
					args[i] = *p
				}
			}
			t.Fatalf("never: "+what, args...)
		}
	}
}
