package dispatcher

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"spendhook/dispatcher/delivery"
	"spendhook/dispatcher/feed"
	"spendhook/dispatcher/inspect"
	"spendhook/dispatcher/requests"
	"spendhook/dispatcher/webhook"
	"spendhook/dispatcher/webhook/signature"
	"spendhook/events"
	"spendhook/events/history"
	"spendhook/events/operational"
	"spendhook/events/publish"
	"spendhook/events/sequence"
	"spendhook/internal/egress"
	"spendhook/internal/partition"
	"spendhook/internal/redistest"
	"spendhook/internal/seal/sealtest"
	"spendhook/internal/waittest"
	"spendhook/subscribers"
	"spendhook/subscribers/callback"
	"spendhook/subscribers/certificate"
	"spendhook/subscribers/health"
	"spendhook/subscribers/registry"
)

// harness is everything between the API and the receivers, on a real Redis, for
// one company.
type harness struct {
	*Dispatcher

	t         *testing.T
	client    redis.UniversalClient
	publisher *publish.Publisher
	service   *subscribers.Store
	inspector *inspect.Inspector
	feed      *feed.Reader
	company   uuid.UUID
	seq       int // of the last event emitted
	stopped   sync.Once
}

// build makes a harness that is not started. adjust may change the options.
func build(t *testing.T, client redis.UniversalClient, adjust func(*Options)) *harness {
	t.Helper()
	policy := delivery.Policy{
		Schedule: []time.Duration{20 * time.Millisecond, 20 * time.Millisecond, 20 * time.Millisecond},
		Jitter:   0.2, RetryAfterMax: time.Minute, DeadRetention: 30 * 24 * time.Hour, Retention: 7 * 24 * time.Hour,
		FailingAfter: 4, DisableAfter: time.Hour,
	}
	eventStore := history.New(history.Options{Client: client, Retention: policy.Retention})
	operationalStore := operational.New(operational.Options{Client: client, Retention: policy.Retention})
	subs := subscribers.NewStore(subscribers.StoreOptions{
		Client: client, Operational: operationalStore, Keyring: sealtest.Keyring(), Policy: callback.Policy{AllowHTTP: true},
	})
	o := Options{
		Client: client, Events: eventStore, Operational: operationalStore, Subscribers: subs, Certificates: certificate.New(certificate.Options{Client: client, Keyring: sealtest.Keyring()}),
		Health:   health.New(health.Options{Client: client, Operational: operationalStore}),
		Registry: registry.New(client, sealtest.Keyring(), 0),
		Policy:   policy, Replica: uuid.NewString(),
		Logger: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(),
	}
	o.Queue.LookEvery = 50 * time.Millisecond
	if adjust != nil {
		adjust(&o)
	}
	if o.Sender == nil {
		o.Sender = testSender(10 * time.Second)
	}
	if o.Requests == nil {
		o.Requests = requests.New(requests.Options{Logger: o.Logger})
	}
	d := New(o)
	h := &harness{Dispatcher: d, t: t, client: client, company: uuid.New()}
	h.publisher = publish.New(publish.Options{Client: client, Retention: policy.Retention, Wake: d.Queue.Wake, Owner: d.Queue})
	h.service = o.Subscribers
	t.Cleanup(h.publisher.Close)
	h.inspector = inspect.New(inspect.Options{
		Events: o.Events, Subscribers: o.Subscribers, Registry: o.Registry, Deliveries: d.Deliveries, Requests: o.Requests, Send: o.Sender.Send,
	})
	h.feed = feed.New(feed.Options{
		Numbers: sequence.New(client), Events: o.Events, Dropped: d.Deliveries.Dropped, Quarantined: d.Quarantine.Events, Registry: o.Registry, Requests: o.Requests,
	})
	t.Cleanup(h.feed.Close)
	t.Cleanup(o.Sender.Close)
	return h
}

// testSender reaches loopback.
func testSender(timeout time.Duration) *webhook.Sender {
	return webhook.NewSender(webhook.SenderOptions{
		Guard:   egress.New(egress.Options{AllowLoopback: true}),
		Timeout: timeout, ConnectTimeout: timeout, Version: "test",
	})
}

func (h *harness) start() {
	h.t.Helper()
	if err := h.Start(h.t.Context(), h.publisher.Accept); err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { h.stop(5 * time.Second) })
}

// stop drains the dispatcher for at most the given time. Further calls do nothing.
func (h *harness) stop(timeout time.Duration) {
	h.stopped.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), timeout)
		defer cancel()
		h.Stop(ctx)
	})
}

// setup is a started harness.
func setup(t *testing.T) *harness {
	t.Helper()
	h := build(t, redistest.New(t), nil)
	h.start()
	return h
}

// emit accepts n new events and returns their ids.
func (h *harness) emit(n int) []string {
	h.t.Helper()
	return h.emitOf(h.company, n)
}

// emitOf is emit for any company.
func (h *harness) emitOf(company uuid.UUID, n int) []string {
	h.t.Helper()
	return h.emitAs(company, "PAYMENT_PAID", n)
}

// emitType is emit of another type.
func (h *harness) emitType(kind string, n int) []string {
	h.t.Helper()
	return h.emitAs(h.company, kind, n)
}

func (h *harness) emitAs(company uuid.UUID, kind string, n int) []string {
	h.t.Helper()
	batch := make([]events.Event, n)
	ids := make([]string, n)
	for i := range batch {
		h.seq++
		ids[i] = "evt-" + strconv.Itoa(h.seq)
		batch[i] = events.Event{
			ID: ids[i], CompanyUUID: company, Type: kind, Timestamp: time.Now(), Metadata: []byte(`{"n":1}`),
		}
	}
	var results []publish.Result
	again := false // as a source does when Redis has not answered in time
	eventually(h.t, func() bool {
		var err error
		if results, err = h.publisher.Accept(h.t.Context(), batch); err != nil && !errors.Is(err, events.ErrUnavailable) {
			h.t.Fatal(err)
		}
		again = again || err != nil
		return err == nil
	}, "the events are accepted")
	for _, r := range results {
		if r.Err != nil || r.Status != publish.Accepted && (!again || r.Status != publish.Duplicate) {
			h.t.Fatalf("event %s: %s %v", r.ID, r.Status, r.Err)
		}
	}
	return ids
}

func (h *harness) subscribe(callback string) subscribers.Subscriber {
	h.t.Helper()
	return h.subscribeTo(h.company, callback, "PAYMENT_PAID")
}

// subscribeTo is subscribe for any company and events.
func (h *harness) subscribeTo(company uuid.UUID, callback string, types ...string) subscribers.Subscriber {
	h.t.Helper()
	s, err := h.opts.Subscribers.Create(h.t.Context(), company, subscribers.Settings{
		Name: new("receiver"), CallbackURL: new(callback), Events: new(types),
	})
	if err != nil {
		h.t.Fatal(err)
	}
	return s
}

// update changes a subscriber and the state of its deliveries, as the API does.
func (h *harness) update(s subscribers.Subscriber, u subscribers.Settings) {
	h.t.Helper()
	if _, err := h.service.Update(h.t.Context(), s.CompanyUUID, s.UUID, u); err != nil {
		h.t.Fatal(err)
	}
}

func (h *harness) enable(s subscribers.Subscriber, enabled bool) {
	h.t.Helper()
	h.update(s, subscribers.Settings{Enabled: &enabled})
}

// deliveryOf reads one delivery.
func (h *harness) deliveryOf(event string, sub subscribers.Subscriber) delivery.Delivery {
	h.t.Helper()
	d, err := h.Deliveries.Delivery(h.t.Context(), sub.CompanyUUID, event+"."+sub.UUID.String())
	if err != nil {
		h.t.Fatalf("delivery of %s: %v", event, err)
	}
	return d
}

// becomes waits until wanted returns true for the delivery; what describes that state.
func (h *harness) becomes(event string, sub subscribers.Subscriber, what string, wanted func(delivery.Delivery) bool) delivery.Delivery {
	h.t.Helper()
	var d delivery.Delivery
	eventually(h.t, func() bool {
		var err error
		d, err = h.Deliveries.Delivery(h.t.Context(), sub.CompanyUUID, event+"."+sub.UUID.String())
		return err == nil && wanted(d)
	}, func() string {
		return "delivery of " + event + " becomes " + what + ", it is " + string(d.Status) + " " + d.Reason
	})
	return d
}

// reaches waits until the delivery has the status.
func (h *harness) reaches(event string, sub subscribers.Subscriber, status delivery.Status) delivery.Delivery {
	h.t.Helper()
	return h.becomes(event, sub, string(status), func(d delivery.Delivery) bool { return d.Status == status })
}

// reachAll waits until the deliveries of all events have the status.
func (h *harness) reachAll(ids []string, sub subscribers.Subscriber, status delivery.Status) {
	h.t.Helper()
	for _, id := range ids {
		h.reaches(id, sub, status)
	}
}

// held reports whether a delivery waits for its subscriber to be enabled.
func held(d delivery.Delivery) bool {
	return d.Reason == delivery.ReasonSubscriberDisabled && d.Status.Live() && d.NextAttemptAt() == nil
}

// workKeys are the kinds of keys that hold work: retry sets, what is in flight, order keys, companies with events that
// are not matched, and what owners were told.
var workKeys = []string{"eq:", "ef:", "ok:", "active", "told", "handover", "begun:"}

// work lists the keys that hold work, and the entries of the due sets.
func (h *harness) work() []string {
	h.t.Helper()
	keys, err := keysOf(h.t.Context(), h.client, "sh:*")
	if err != nil { // for up to a second after a restart of Redis, the client returns the last error of a dial
		return []string{err.Error()}
	}
	var found []string
	for _, key := range keys {
		_, kind, _ := strings.Cut(key, "}:")
		for _, work := range workKeys {
			if strings.HasPrefix(kind, work) {
				found = append(found, key)
			}
		}
		if kind == "due" {
			for _, member := range h.client.ZRange(h.t.Context(), key, 0, -1).Val() {
				if len(member) > 1 {
					found = append(found, key+" "+member)
				}
			}
		}
	}
	return found
}

// keysOf lists the keys of a pattern, of all masters of a Cluster.
func keysOf(ctx context.Context, client redis.UniversalClient, pattern string) (keys []string, err error) {
	cluster, ok := client.(*redis.ClusterClient)
	if !ok {
		return client.Keys(ctx, pattern).Result()
	}
	var mu sync.Mutex
	err = cluster.ForEachMaster(ctx, func(ctx context.Context, c *redis.Client) error {
		some, err := c.Keys(ctx, pattern).Result()
		mu.Lock()
		defer mu.Unlock()
		keys = append(keys, some...)
		return err
	})
	return keys, err
}

// idle waits until no work is queued or in flight.
func (h *harness) idle() {
	h.t.Helper()
	var left []string
	eventually(h.t, func() bool { left = h.work(); return len(left) == 0 },
		func() string { return "no work is left: " + strings.Join(left[:min(5, len(left))], ", ") })
}

// settled waits until every event is settled and no work is left.
func (h *harness) settled() {
	h.t.Helper()
	h.idle()
	var pending int64
	eventually(h.t, func() bool { pending = h.pending(); return pending == 0 },
		func() string { return "every event is settled, " + strconv.FormatInt(pending, 10) + " are pending" })
}

// pending counts the events that are not settled, of all companies.
func (h *harness) pending() int64 {
	h.t.Helper()
	keys, err := keysOf(h.t.Context(), h.client, "sh:*:pending")
	if err != nil {
		h.t.Fatal(err)
	}
	var sum int64
	for _, key := range keys {
		n, err := h.client.Get(h.t.Context(), key).Int64()
		if err != nil {
			h.t.Fatal(err)
		}
		sum += n
	}
	return sum
}

// deadLetters counts what the gauge of dead letters shows.
func (h *harness) deadLetters() int64 {
	h.t.Helper()
	all, err := h.Backlog.Measure(h.t.Context(), partition.All(), 0)
	if err != nil {
		h.t.Fatal(err)
	}
	return all.Dead
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
	r.Body = io.NopCloser(bytes.NewReader(body)) // answer may read it, too
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
		ids[g.header.Get(signature.HeaderID)]++
	}
	return ids
}

// once fails the test for each id that was not received exactly once.
func (rc *inbox) once(t *testing.T, ids []string) {
	t.Helper()
	got := rc.ids()
	for _, id := range ids {
		if got[id] != 1 {
			t.Errorf("%s was received %d times", id, got[id])
		}
	}
}

func status(code int) func(int, http.ResponseWriter, *http.Request) {
	return func(_ int, w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
}

// patience is longer than any stop takes.
const patience = 10 * time.Minute

// eventually is waittest.Until.
func eventually(t *testing.T, ok func() bool, what any) {
	t.Helper()
	waittest.Until(t, what, ok)
}
