package store

import (
	"context"
	"errors"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/dispatcher/delivery"
	"spendhook/dispatcher/delivery/attempt"
	"spendhook/events"
	"spendhook/events/history"
	"spendhook/events/layout"
	"spendhook/events/publish"
	"spendhook/internal/partition"
	"spendhook/internal/queues"
	"spendhook/internal/redistest"
)

const testReplica = "replica.1"

var harnessPolicy = delivery.Policy{
	Schedule: []time.Duration{time.Hour, time.Hour}, Retention: 7 * 24 * time.Hour, DeadRetention: 30 * 24 * time.Hour,
	RetryAfterMax: 24 * time.Hour,
}

// tester is what the harness needs of *testing.T and of *rapid.T.
type tester interface {
	Helper()
	Fatalf(format string, args ...any)
	Errorf(format string, args ...any)
	Context() context.Context
}

// harness accepts events, begins work and records as a dispatcher does, one step at a
// time, with the scripts that do it in production.
type harness struct {
	*Store

	events    *history.Reader
	publisher *publish.Publisher
	company   uuid.UUID
	now       time.Time
	turn      *redis.Script
	turns     int    // made so far
	read      string // place in the log up to which events were read
}

func newHarness(t *testing.T) *harness {
	t.Helper()
	return newHarnessOn(t, redistest.New(t))
}

func newHarnessOn(t *testing.T, client redis.UniversalClient) *harness {
	t.Helper()
	source, err := os.ReadFile("../../workqueue/lua/turn.lua")
	if err != nil {
		t.Fatal(err)
	}
	h := &harness{company: uuid.New(), now: time.Now().Truncate(time.Millisecond), turn: queues.Script(string(source), true), read: "0"}
	clock := func() time.Time { return h.now }
	h.Store = New(Options{
		Client: client, Policy: harnessPolicy, Now: clock,
	})
	h.events = history.New(history.Options{Client: client, Retention: harnessPolicy.Retention, Now: clock})
	h.publisher = publish.New(publish.Options{Client: client, Retention: harnessPolicy.Retention, Wake: func(context.Context, []int) {}, Now: clock})
	t.Cleanup(h.publisher.Close)
	return h
}

// under sets the token of writes.
func under(token string, writes []Write) []Write {
	for i := range writes {
		writes[i].Token = token
	}
	return writes
}

func (h *harness) accept(t tester, id string) events.Ref {
	t.Helper()
	e := events.Event{ID: id, CompanyUUID: h.company, Type: "PAYMENT_PAID", Timestamp: h.now}
	results, err := h.publisher.Accept(t.Context(), []events.Event{e})
	if err != nil || results[0].Status != publish.Accepted {
		t.Fatalf("accept %s: %+v, %v", id, results, err)
	}
	return events.Ref{Company: h.company, ID: id}
}

// begun is what one turn has begun.
type begun struct {
	events     []events.Ref
	deliveries []delivery.Ref
}

// begin reads up to n events, and begins up to n deliveries of each endpoint.
func (h *harness) begin(t tester, n int) (out begun) {
	t.Helper()
	p := partition.Of(h.company)
	h.turns++
	h.client.Set(t.Context(), partition.Prefix(p)+"owner", testReplica, 0)
	var subs []string
	for _, entry := range h.client.ZRange(t.Context(), queues.DueKey(p), 0, -1).Val() {
		if sub, found := strings.CutPrefix(entry, "e:"+h.company.String()+"/"); found {
			subs = append(subs, sub)
		}
	}
	args := []any{partition.Prefix(p), testReplica, "", 1 << 20, 0, h.turns, 1, h.company.String(), h.read, n, 0, "", 0, len(subs)}
	for _, sub := range subs {
		args = append(args, sub, n)
	}
	reply, err := h.turn.Run(t.Context(), h.client, queues.Keys(p), args...).Slice()
	if err != nil || len(reply) != 1 {
		t.Fatalf("turn: %v, %v", reply, err)
	}
	parts, _ := reply[0].([]any)
	if len(parts) < 6 {
		t.Fatalf("turn: %v", parts)
	}
	for e, _ := parts[3].([]any); len(e) > 0; e = e[4:] {
		h.read, _ = e[0].(string)
		id, _ := e[1].(string)
		out.events = append(out.events, events.Ref{Company: h.company, ID: id})
	}
	endpoints, _ := parts[4].([]any)
	for i, sub := range subs {
		for d, _ := endpoints[8*i+7].([]any); len(d) > 0; d = d[3:] {
			id, _ := d[0].(string)
			out.deliveries = append(out.deliveries, delivery.Ref{Ref: events.Ref{Company: h.company, ID: id}, Subscriber: uuid.MustParse(sub)})
		}
	}
	return out
}

// record writes one write and returns what was found of each of its changes.
func (h *harness) record(t tester, w Write) []*Found {
	t.Helper()
	recorded, _, err := h.Record(t.Context(), h.now, under(testReplica, []Write{w}))
	if err != nil || recorded[0].Err != nil {
		t.Fatalf("record: %v, %+v", err, recorded)
	}
	return recorded[0].Found
}

// mustWrite is record, of changes that must all be written.
func (h *harness) mustWrite(t tester, w Write) {
	t.Helper()
	for i, f := range h.record(t, w) {
		if f != nil {
			t.Fatalf("change %d of %s was not written but found: %+v", i, w.Event, f)
		}
	}
}

// kept reads a delivery.
func (h *harness) kept(t tester, r delivery.Ref) *delivery.Record {
	t.Helper()
	records, err := h.Get(t.Context(), []delivery.Ref{r})
	if err != nil {
		t.Fatalf("read %s: %v", r, err)
	}
	return records[0]
}

// standing is the state of an event in Redis.
type standing struct {
	state                   events.State
	ofCompany, ofPartition  int
	eventFor, deliveriesFor time.Duration // time to live; -1 none
	live, deliveries        int
}

func (h *harness) standing(t tester, r events.Ref) (s standing) {
	t.Helper()
	ctx, pipe := t.Context(), h.client.Pipeline()
	state := pipe.GetRange(ctx, layout.EventKey(r), 0, 0)
	ofCompany := pipe.HGet(ctx, partition.Key(r.Company, "c:"+r.Company.String()), "pending")
	ofPartition := pipe.Get(ctx, partition.Key(r.Company, "pending"))
	eventFor, deliveriesFor := pipe.PTTL(ctx, layout.EventKey(r)), pipe.PTTL(ctx, deliveriesKey(r))
	live := pipe.HGet(ctx, deliveriesKey(r), "#")
	if _, err := pipe.Exec(ctx); err != nil && !errors.Is(err, redis.Nil) {
		t.Fatalf("read how %s stands: %v", r, err)
	}
	s.state = events.State(state.Val()[0])
	s.ofCompany, _ = strconv.Atoi(ofCompany.Val())
	s.ofPartition, _ = strconv.Atoi(ofPartition.Val())
	s.eventFor, s.deliveriesFor = eventFor.Val(), deliveriesFor.Val()
	s.live, _ = strconv.Atoi(live.Val())
	all, err := h.OfEvent(ctx, r)
	if err != nil {
		t.Fatalf("read the deliveries of %s: %v", r, err)
	}
	if s.deliveries = len(all); s.deliveries > 0 && s.deliveriesFor == absent { // they are with the event
		s.deliveriesFor = s.eventFor
	}
	return s
}

// Outcomes of attempts.
func (h *harness) succeed(r delivery.Record) delivery.Record {
	return delivery.Decide(r, attempt.Result{StatusCode: 200, StartedAt: h.now}, harnessPolicy, h.now, middle)
}

func (h *harness) fail(r delivery.Record) delivery.Record {
	return delivery.Decide(r, attempt.Result{StatusCode: 500, Class: attempt.ClassHTTP5xx, ResponseBody: []byte("no"), StartedAt: h.now}, harnessPolicy, h.now, middle)
}

func (h *harness) gone(r delivery.Record) delivery.Record {
	return delivery.Decide(r, attempt.Result{Class: attempt.ClassGone, StatusCode: 410, StartedAt: h.now}, harnessPolicy, h.now, middle)
}

func (h *harness) queue(r delivery.Record) delivery.Record {
	return delivery.Queue(r, delivery.ReasonBusy, h.now)
}

func (h *harness) retry(r delivery.Record) delivery.Record {
	return delivery.Restart(r, delivery.ReasonReplay, h.now)
}
func (h *harness) requeue(r delivery.Record) delivery.Record { return delivery.Requeue(r, h.now) }
func (h *harness) drop(r delivery.Record) delivery.Record {
	return delivery.Cancel(r, delivery.ReasonSubscriberDeleted, h.now)
}

// change changes a delivery from base to next(base).
func (h *harness) change(r delivery.Ref, base *delivery.Record, next func(delivery.Record) delivery.Record) Change {
	n := next(*base)
	n.Version = base.Version
	return Change{Ref: r, Base: base, Next: &n}
}

// first creates a delivery with the record that next returns.
func (h *harness) first(r delivery.Ref, next func(delivery.Record) delivery.Record) Change {
	base := &delivery.Record{Status: delivery.StatusPending, EventType: "PAYMENT_PAID", Created: h.now.UnixMilli()}
	return h.change(r, base, next)
}

// again changes a stored delivery.
func (h *harness) again(t tester, r delivery.Ref, next func(delivery.Record) delivery.Record) Change {
	t.Helper()
	return h.change(r, h.stored(t, r), next)
}

// stored reads a delivery as it is kept; an attempt under way is not shown.
func (h *harness) stored(t tester, r delivery.Ref) *delivery.Record {
	t.Helper()
	records, err := h.Stored(t.Context(), []delivery.Ref{r})
	if err != nil || records[0] == nil {
		t.Fatalf("read %s: %v", r, err)
	}
	return records[0]
}

func middle() float64 { return 0.5 }

func storeOn(client redis.UniversalClient) *Store {
	return New(Options{
		Client: client, Policy: delivery.Policy{Retention: 7 * 24 * time.Hour, DeadRetention: 30 * 24 * time.Hour},
		Now: time.Now,
	})
}
