package dispatcher_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"spendhook/dispatcher"
	"spendhook/dispatcher/delivery"
	"spendhook/dispatcher/delivery/store"
	"spendhook/dispatcher/requests"
	"spendhook/dispatcher/webhook"
	"spendhook/events"
	"spendhook/events/eventtype"
	"spendhook/events/history"
	"spendhook/events/operational"
	"spendhook/events/publish"
	"spendhook/internal/egress"
	"spendhook/internal/partition"
	"spendhook/internal/queues"
	"spendhook/internal/redistest"
	"spendhook/internal/seal/sealtest"
	"spendhook/internal/waittest"
	"spendhook/subscribers"
	"spendhook/subscribers/callback"
	"spendhook/subscribers/health"
	"spendhook/subscribers/registry"
)

// noticeBench is a dispatcher whose operational events are watched. It is not started.
type noticeBench struct {
	*dispatcher.Dispatcher

	t           *testing.T
	client      redis.UniversalClient
	events      *history.Reader
	operational *operational.Store
	subs        *subscribers.Store
	publisher   *publish.Publisher
	company     uuid.UUID
	operations  uuid.UUID
}

func newNoticeBench(t *testing.T) *noticeBench {
	t.Helper()
	b := &noticeBench{t: t, client: redistest.New(t), company: uuid.New(), operations: uuid.New()}
	policy := delivery.Policy{
		Schedule: []time.Duration{10 * time.Millisecond}, RetryAfterMax: time.Minute,
		DeadRetention: 30 * 24 * time.Hour, Retention: 7 * 24 * time.Hour, FailingAfter: 2, DisableAfter: time.Hour,
	}
	b.events = history.New(history.Options{Client: b.client, Retention: policy.Retention})
	b.operational = operational.New(operational.Options{Client: b.client, Retention: policy.Retention, Operations: b.operations})
	b.subs = subscribers.NewStore(subscribers.StoreOptions{
		Client: b.client, Operational: b.operational, Keyring: sealtest.Keyring(), Policy: callback.Policy{AllowHTTP: true},
	})
	sender := webhook.NewSender(webhook.SenderOptions{
		Guard: egress.New(egress.Options{AllowLoopback: true}), Timeout: 10 * time.Second, ConnectTimeout: 10 * time.Second, Version: "test",
	})
	t.Cleanup(sender.Close)
	o := dispatcher.Options{
		Client: b.client, Events: b.events, Operational: b.operational, Subscribers: b.subs, Health: health.New(health.Options{Client: b.client, Operational: b.operational}), Sender: sender, Policy: policy, Replica: uuid.NewString(),
		Registry: registry.New(b.client, sealtest.Keyring(), 0), Requests: requests.New(requests.Options{Logger: slog.New(slog.DiscardHandler)}),
		Logger: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(),
	}
	o.Queue.LookEvery = 50 * time.Millisecond
	b.Dispatcher = dispatcher.New(o)
	b.publisher = publish.New(publish.Options{Client: b.client, Retention: policy.Retention, Wake: b.Queue.Wake, Owner: b.Queue})
	t.Cleanup(b.publisher.Close)
	return b
}

func (b *noticeBench) start(publish func(context.Context, []events.Event) ([]publish.Result, error)) {
	b.t.Helper()
	if err := b.Start(b.t.Context(), publish); err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		b.Stop(ctx)
	})
}

func (b *noticeBench) subscribe(company uuid.UUID, at string, types ...string) subscribers.Subscriber {
	b.t.Helper()
	s, err := b.subs.Create(b.t.Context(), company, subscribers.Settings{Name: new("receiver"), CallbackURL: new(at), Events: new(types)})
	if err != nil {
		b.t.Fatal(err)
	}
	return s
}

func (b *noticeBench) emit(id string) {
	b.t.Helper()
	results, err := b.publisher.Accept(b.t.Context(), []events.Event{{ID: id, CompanyUUID: b.company, Type: "PAYMENT_PAID", Timestamp: time.Now()}})
	if err != nil || results[0].Err != nil {
		b.t.Fatal(results, err)
	}
}

// types lists the types of a company's events, in alphabetical order.
func (b *noticeBench) types(company uuid.UUID) string {
	b.t.Helper()
	page, err := b.events.List(b.t.Context(), history.Filter{Company: &company, Size: 100})
	if err != nil {
		b.t.Fatal(err)
	}
	var out []string
	for _, e := range page.Items {
		out = append(out, e.Type)
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

// settled waits until nothing is pending of a company's events.
func (b *noticeBench) settled(company uuid.UUID) {
	b.t.Helper()
	b.until("all is settled", func() bool {
		page, err := b.events.List(b.t.Context(), history.Filter{Company: &company, Size: 100})
		return err == nil && !slices.ContainsFunc(page.Items, func(e events.Stored) bool { return e.State != events.Settled })
	})
}

func (b *noticeBench) until(what string, holds func() bool) {
	b.t.Helper()
	waittest.Until(b.t, what, holds)
}

// inbox is a receiver that keeps what it got.
type inbox struct {
	*httptest.Server

	mu     sync.Mutex
	got    []events.Event
	status func(events.Event) int
}

func newInbox(t *testing.T, status func(events.Event) int) *inbox {
	t.Helper()
	in := &inbox{status: status}
	in.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		e, err := events.ParseBody(body)
		if err != nil {
			t.Errorf("body %s: %v", body, err)
		}
		in.mu.Lock()
		in.got = append(in.got, e)
		in.mu.Unlock()
		w.WriteHeader(in.status(e))
	}))
	t.Cleanup(in.Close)
	return in
}

func answer(code int) func(events.Event) int { return func(events.Event) int { return code } }

// of are the events of a type that came, by id.
func (in *inbox) of(kind string) map[string]events.Event {
	in.mu.Lock()
	defer in.mu.Unlock()
	out := make(map[string]events.Event)
	for _, e := range in.got {
		if e.Type == kind {
			out[e.ID] = e
		}
	}
	return out
}

func metadata(t *testing.T, all map[string]events.Event) map[string]any {
	t.Helper()
	if len(all) != 1 {
		t.Fatalf("%d events, want 1", len(all))
	}
	var out map[string]any
	for _, e := range all {
		if err := json.Unmarshal(e.Metadata, &out); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

// The script that records a dead letter also writes its notice, so that the notice is not
// lost with the process. The same record sent again, as after a lost reply, makes no second
// notice.
func TestNoticeOfADeadLetterIsWrittenWithTheRecord(t *testing.T) {
	t.Parallel()
	b := newNoticeBench(t)
	in := newInbox(t, answer(http.StatusOK))
	b.subscribe(b.company, in.URL, eventtype.DeliveryDead)
	dead := uuid.New()
	b.emit("e1")
	now := time.Now()
	text, err := b.operational.Encode(operational.Event{
		ID: "delivery-dead-1", Type: eventtype.DeliveryDead, Company: b.company, About: "e1", At: now,
		Metadata: map[string]any{"subscriberUuid": dead},
	})
	if err != nil {
		t.Fatal(err)
	}
	ref := events.Ref{Company: b.company, ID: "e1"}
	for range 2 {
		recorded, _, err := b.Deliveries.Record(t.Context(), now, []store.Write{{
			Event: ref, Matched: true,
			Changes: []store.Change{{
				Ref:    delivery.Ref{Ref: ref, Subscriber: dead},
				Base:   &delivery.Record{},
				Next:   &delivery.Record{Status: delivery.StatusDead, EventType: "PAYMENT_PAID", Created: now.UnixMilli(), Count: 1},
				Notice: text,
			}},
		}})
		if err != nil || recorded[0].Err != nil || recorded[0].Found[0] != nil {
			t.Fatal(recorded, err)
		}
	}
	b.start(b.publisher.Accept)
	b.until("the notice comes", func() bool { return len(in.of(eventtype.DeliveryDead)) == 1 })
	b.settled(b.company)
	if got := b.types(b.company); got != "DELIVERY_DEAD PAYMENT_PAID" {
		t.Errorf("events are %s", got)
	}
}

// The operations company gets a notice when another company's only subscriber is disabled,
// also when the process that disabled it is lost at once.
func TestOperationsIsNotifiedOfADisabledSubscriber(t *testing.T) {
	t.Parallel()
	b := newNoticeBench(t)
	in := newInbox(t, answer(http.StatusOK))
	b.subscribe(b.operations, in.URL, eventtype.SubscriberDisabled)
	only := b.subscribe(b.company, "http://127.0.0.1:1/gone", "PAYMENT_PAID")
	for range 2 {
		if _, err := b.subs.DisableFailing(t.Context(), b.company, only.UUID); err != nil {
			t.Fatal(err)
		}
	}
	b.start(b.publisher.Accept)
	b.until("operations gets the notice", func() bool { return len(in.of(eventtype.SubscriberDisabled)) == 1 })
	b.settled(b.operations)
	m := metadata(t, in.of(eventtype.SubscriberDisabled))
	if m["companyUuid"] != b.company.String() || m["subscriberUuid"] != only.UUID.String() || m["reason"] != subscribers.ReasonFailing {
		t.Errorf("metadata %v", m)
	}
	if got := b.types(b.company); got != "" {
		t.Errorf("the company, which has no subscriber to notices, has %s", got)
	}
	b.until("the outbox is empty", func() bool {
		out, _, err := b.operational.Outbox(t.Context(), b.company)
		return err == nil && len(out) == 0
	})
}

// A notice that cannot be forwarded waits. A notice that was forwarded but not removed from
// the outbox is not delivered twice.
func TestOperationsIsNotifiedOnceDespiteFailures(t *testing.T) {
	t.Parallel()
	b := newNoticeBench(t)
	in := newInbox(t, answer(http.StatusOK))
	b.subscribe(b.operations, in.URL, eventtype.SubscriberDisabled)
	only := b.subscribe(b.company, "http://127.0.0.1:1/gone", "PAYMENT_PAID")
	if _, err := b.subs.DisableFailing(t.Context(), b.company, only.UUID); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	tries := 0
	b.start(func(ctx context.Context, batch []events.Event) ([]publish.Result, error) {
		mu.Lock()
		defer mu.Unlock()
		if tries++; tries == 1 { // it was accepted, but the answer is lost
			_, err := b.publisher.Accept(ctx, batch)
			return nil, errors.Join(events.ErrUnavailable, err)
		}
		return b.publisher.Accept(ctx, batch)
	})
	b.until("the outbox is empty", func() bool {
		out, _, err := b.operational.Outbox(t.Context(), b.company)
		return err == nil && len(out) == 0
	})
	b.settled(b.operations)
	mu.Lock()
	defer mu.Unlock()
	if got := b.types(b.operations); got != eventtype.SubscriberDisabled || tries != 2 {
		t.Errorf("operations has %s after %d tries", got, tries)
	}
}

// A notice that is suppressed while the summary of those before it is being written is in the summary.
func TestSummaryOfANoticeSuppressedMeanwhile(t *testing.T) {
	t.Parallel()
	b := newNoticeBench(t)
	in := newInbox(t, answer(http.StatusOK))
	sub := b.subscribe(b.company, in.URL, eventtype.DeliveryDead)
	all, field := partition.Key(b.company, "ns:"+b.company.String()), "c/"+sub.UUID.String()+"/"+eventtype.DeliveryDead
	suppressed := func(ctx context.Context, value string) {
		if err := b.client.HSet(ctx, all, field, value).Err(); err != nil {
			t.Error(err)
		}
	}
	suppressed(t.Context(), "1000 1 e1 e1") // due long ago
	var more atomic.Bool
	b.client.AddHook(redistest.Hook{Command: func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
		err := next(ctx, cmd)
		if cmd.Name() == "hgetall" && slices.Contains(cmd.Args(), any(all)) && !more.Swap(true) {
			suppressed(ctx, "1000 2 e1 e2")
		}
		return err
	}})
	job := "j:" + b.company.String() + "/" + operational.SummariseJob.String()
	if err := b.client.ZAdd(t.Context(), queues.DueKey(partition.Of(b.company)), redis.Z{Score: 1, Member: job}).Err(); err != nil {
		t.Fatal(err)
	}
	b.start(b.publisher.Accept)
	b.until("the summary comes", func() bool { return len(in.of(eventtype.DeliveryDead)) == 1 })
	if m := metadata(t, in.of(eventtype.DeliveryDead)); m["suppressed"] != 2.0 || m["lastEventId"] != "e2" {
		t.Errorf("the summary: %v", m)
	}
}

// The jobs of a company go on though Redis failed when a step of one was to be ended.
func TestJobsGoOnAfterAStepCouldNotBeEnded(t *testing.T) {
	t.Parallel()
	b := newNoticeBench(t)
	in := newInbox(t, answer(http.StatusOK))
	b.subscribe(b.operations, in.URL, eventtype.SubscriberDisabled)
	disable := func(path string) {
		only := b.subscribe(b.company, "http://127.0.0.1:1/"+path, "PAYMENT_PAID")
		if _, err := b.subs.DisableFailing(t.Context(), b.company, only.UUID); err != nil {
			t.Fatal(err)
		}
	}
	disable("first")
	var published, failed atomic.Bool
	b.client.AddHook(redistest.Hook{Pipeline: func(ctx context.Context, cmds []redis.Cmder, next redis.ProcessPipelineHook) error {
		ends := slices.Contains(cmds[0].Args(), any("j:"+b.company.String()+"/"+operational.ForwardJob.String()))
		if ends && published.Load() && !failed.Swap(true) {
			err := errors.New("Redis is unavailable")
			for _, cmd := range cmds {
				cmd.SetErr(err)
			}
			return err
		}
		return next(ctx, cmds)
	}})
	b.start(func(ctx context.Context, batch []events.Event) ([]publish.Result, error) {
		defer published.Store(true)
		return b.publisher.Accept(ctx, batch)
	})
	b.until("the end of the step has failed", failed.Load)
	disable("second")
	b.until("operations gets the second notice", func() bool { return len(in.of(eventtype.SubscriberDisabled)) == 2 })
}

// A failing receiver gets a notice of its dead letter. The death of that notice makes no
// further notice.
func TestADeadNoticeMakesNoNotice(t *testing.T) {
	t.Parallel()
	b := newNoticeBench(t)
	in := newInbox(t, answer(http.StatusInternalServerError))
	b.subscribe(b.company, in.URL, "PAYMENT_PAID", eventtype.DeliveryDead)
	operations := newInbox(t, answer(http.StatusOK))
	b.subscribe(b.operations, operations.URL, eventtype.DeliveryDead)
	b.start(b.publisher.Accept)
	b.emit("e1")
	b.until("operations gets the notice", func() bool { return len(operations.of(eventtype.DeliveryDead)) == 1 })
	b.until("the notice comes", func() bool { return len(in.of(eventtype.DeliveryDead)) == 1 })
	b.settled(b.company)
	if got := b.types(b.company); got != "DELIVERY_DEAD PAYMENT_PAID" {
		t.Errorf("events are %s", got)
	}
	m := metadata(t, operations.of(eventtype.DeliveryDead))
	if m["companyUuid"] != b.company.String() || m["eventId"] != "e1" || m["attempts"] != 2. || m["reason"] != delivery.ReasonExhausted {
		t.Errorf("metadata %v", m)
	}
}

// A damaged count of suppressed notices is removed. Summaries of the other counts are written.
func TestDamagedCountDelaysNoSummary(t *testing.T) {
	t.Parallel()
	b := newNoticeBench(t)
	in := newInbox(t, answer(http.StatusOK))
	about := b.subscribe(b.company, in.URL, eventtype.DeliveryDead).UUID.String()
	counts, due := partition.Key(b.company, "ns:"+b.company.String()), partition.Key(b.company, "due")
	err := errors.Join(
		b.client.HSet(t.Context(), counts, "c/"+about+"/DELIVERY_DEAD", "1 5 e1 e5", "c/"+uuid.NewString()+"/DELIVERY_DEAD", "1 -5 e1 e5", "?", "").Err(),
		b.client.ZAdd(t.Context(), due, redis.Z{Score: 1, Member: "j:" + b.company.String() + "/" + operational.SummariseJob.String()}).Err(),
	)
	if err != nil {
		t.Fatal(err)
	}
	b.start(b.publisher.Accept)
	b.until("the summary comes", func() bool { return len(in.of(eventtype.DeliveryDead)) == 1 })
	b.until("no count is left", func() bool { return b.client.Exists(t.Context(), counts).Val() == 0 })
	if m := metadata(t, in.of(eventtype.DeliveryDead)); m["suppressed"] != 5. || m["subscriberUuid"] != about {
		t.Errorf("metadata %v", m)
	}
}

// Each run of failures makes one notice when it starts and one when it ends, with the length
// of the run.
func TestFailingAndRecoveryMakeNotices(t *testing.T) {
	t.Parallel()
	b := newNoticeBench(t)
	in := newInbox(t, answer(http.StatusOK))
	b.subscribe(b.company, in.URL, eventtype.SubscriberFailing, eventtype.SubscriberRecovered)
	bad := newInbox(t, func(e events.Event) int {
		if strings.HasPrefix(e.ID, "bad") {
			return http.StatusInternalServerError
		}
		return http.StatusOK
	})
	sub := b.subscribe(b.company, bad.URL, "PAYMENT_PAID")
	b.start(b.publisher.Accept)
	b.emit("bad")
	b.until("the failing notice comes", func() bool { return len(in.of(eventtype.SubscriberFailing)) == 1 })
	b.emit("good")
	b.until("the recovery notice comes", func() bool { return len(in.of(eventtype.SubscriberRecovered)) == 1 })
	b.settled(b.company)
	m := metadata(t, in.of(eventtype.SubscriberFailing))
	since, _ := m["failingSince"].(string)
	at, err := time.Parse(time.RFC3339, since)
	if m["subscriberUuid"] != sub.UUID.String() || m["consecutiveFailures"] != 2. || err != nil || time.Since(at) > time.Minute {
		t.Errorf("metadata %v, %v", m, err)
	}
	if got := b.types(b.company); got != "PAYMENT_PAID PAYMENT_PAID SUBSCRIBER_FAILING SUBSCRIBER_RECOVERED" {
		t.Errorf("events are %s", got)
	}
}
