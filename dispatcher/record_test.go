package dispatcher

import (
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"spendhook/dispatcher/delivery"
	"spendhook/dispatcher/delivery/attempt"
	"spendhook/dispatcher/delivery/store"
	"spendhook/dispatcher/traffic"
	"spendhook/dispatcher/webhook/signature"
	"spendhook/events"
	"spendhook/events/layout"
	"spendhook/internal/partition"
	"spendhook/internal/redistest"
	"spendhook/subscribers"
)

func allPartitions() []int {
	all := make([]int, partition.Count)
	for p := range all {
		all[p] = p
	}
	return all
}

// An event that is matched again after a crash goes only to subscribers without a delivery
// of it.
func TestEventMatchedAgainSkipsExistingDeliveries(t *testing.T) {
	t.Parallel()
	client := redistest.New(t)
	lost := build(t, client, nil) // takes work, but begins nothing: as if killed right then
	served, missing := receive(t, nil), receive(t, nil)
	first, second := lost.subscribe(served.URL), lost.subscribe(missing.URL)
	id := lost.emit(1)[0]
	lost.beginAndForget()
	lost.writeUnmatched(first.UUID, id)

	h := build(t, client, func(o *Options) { o.Replica = lost.opts.Replica })
	h.company = lost.company
	h.start()
	h.reaches(id, second, delivery.StatusDelivered)
	h.settled()
	if served.count() != 0 || missing.count() != 1 {
		t.Errorf("received %d and %d times", served.count(), missing.count())
	}
}

// writeUnmatched stores a delivered delivery of an event whose matching is not
// complete.
func (h *harness) writeUnmatched(sub uuid.UUID, id string) {
	h.t.Helper()
	r := delivery.Ref{Ref: events.Ref{Company: h.company, ID: id}, Subscriber: sub}
	next := &delivery.Record{Status: delivery.StatusDelivered, EventType: "PAYMENT_PAID", Created: time.Now().UnixMilli()}
	write := store.Write{Event: r.Ref, Changes: []store.Change{{Ref: r, Base: &delivery.Record{}, Next: next}}}
	recorded, _, err := h.Deliveries.Record(h.t.Context(), time.Now(), []store.Write{write})
	if err != nil || recorded[0].Err != nil {
		h.t.Fatalf("%v, %+v", err, recorded)
	}
}

// An outcome is applied to the record that another replica wrote meanwhile.
func TestConflictingOutcomeIsRebased(t *testing.T) {
	t.Parallel()
	h := build(t, redistest.New(t), nil)
	var sub subscribers.Subscriber
	rc := receive(t, func(_ int, w http.ResponseWriter, _ *http.Request) {
		h.write(sub.UUID, []string{"evt-1"}, time.Now(), dead)
		w.WriteHeader(http.StatusOK)
	})
	sub = h.subscribe(rc.URL)
	h.start()
	id := h.emit(1)[0]
	h.reaches(id, sub, delivery.StatusDelivered)
	h.settled()
	if n := h.deadLetters(); n != 0 {
		t.Errorf("%d dead letters counted", n)
	}
}

// An attempt that fails after another replica made the delivery a dead letter is added to it. The
// delivery stays dead, and its death is counted once, by the replica that recorded it.
func TestLateFailureOfADeadDeliveryIsNoSecondDeath(t *testing.T) {
	t.Parallel()
	var attempts []traffic.Attempt
	h := build(t, redistest.New(t), func(o *Options) {
		o.Policy.Schedule = []time.Duration{time.Hour}
		o.Counted = func(a traffic.Attempt) { attempts = append(attempts, a) }
	})
	var sub subscribers.Subscriber
	rc := receive(t, func(_ int, w http.ResponseWriter, _ *http.Request) {
		h.write(sub.UUID, []string{"evt-1"}, time.Now(), dead)
		w.WriteHeader(http.StatusInternalServerError)
	})
	sub = h.subscribe(rc.URL)
	h.start()
	id := h.emit(1)[0]
	h.becomes(id, sub, "a dead letter with the late attempt", func(r delivery.Delivery) bool {
		return r.Status == delivery.StatusDead && r.Reason == delivery.ReasonExhausted && r.Count == 1
	})
	h.settled()
	h.stop(patience)
	if n := h.ended(delivery.StatusDead); n != 0 || len(attempts) != 1 || attempts[0].Dead {
		t.Errorf("%d deaths counted here, attempts %+v", n, attempts)
	}
}

// An attempt that this replica interrupts after another one made the delivery a dead letter does not
// make it wait again.
func TestLateInterruptionLeavesADeadDeliveryDead(t *testing.T) {
	t.Parallel()
	h := build(t, redistest.New(t), func(o *Options) { o.Sender = testSender(time.Hour) })
	entered := make(chan struct{})
	sub := h.subscribe(receive(t, func(_ int, _ http.ResponseWriter, r *http.Request) {
		close(entered)
		<-r.Context().Done()
	}).URL)
	h.start()
	id := h.emit(1)[0]
	<-entered
	h.write(sub.UUID, []string{id}, time.Now(), dead)
	h.stop(50 * time.Millisecond)
	h.reaches(id, sub, delivery.StatusDead)
	if n := h.deadLetters(); n != 1 {
		t.Errorf("%d dead letters counted", n)
	}
}

// Pending deliveries do not expire. Dead deliveries expire after the dead retention.
func TestPendingAndDeadDeliveriesOutliveTheirEventsRetention(t *testing.T) {
	t.Parallel()
	h := build(t, redistest.New(t), func(o *Options) { o.Policy.Schedule = []time.Duration{time.Hour} })
	sub := h.subscribe(receive(t, status(http.StatusInternalServerError)).URL)
	h.start()
	id := h.emit(1)[0]
	h.reaches(id, sub, delivery.StatusRetrying)
	r := events.Ref{Company: h.company, ID: id}
	keys := []string{layout.EventKey(r), partition.Key(h.company, "d:"+r.String())}
	for _, key := range keys {
		if ttl := h.client.PTTL(t.Context(), key).Val(); ttl != -1 {
			t.Errorf("%s expires in %s", key, ttl)
		}
	}
	records, err := h.Deliveries.Get(t.Context(), []delivery.Ref{{Ref: r, Subscriber: sub.UUID}})
	if err != nil {
		t.Fatal(err)
	}
	h.record(&outcome{work: &work{ref: delivery.Ref{Ref: r, Subscriber: sub.UUID}, base: records[0]}, apply: func(r delivery.Record, now time.Time) delivery.Record {
		return delivery.Decide(r, attempt.Result{Class: attempt.ClassGone, StartedAt: now}, h.opts.Policy, now, h.opts.Jitter)
	}})
	h.reaches(id, sub, delivery.StatusDead)
	for _, key := range keys {
		if ttl := h.client.PTTL(t.Context(), key).Val(); ttl < h.opts.Policy.DeadRetention-time.Hour {
			t.Errorf("%s of a dead letter expires in %s", key, ttl)
		}
	}
}

func TestEveryKeyExpiresOrIsTrimmed(t *testing.T) {
	t.Parallel()
	h := setup(t)
	var failed sync.Map // each event fails once
	rc := receive(t, func(_ int, w http.ResponseWriter, r *http.Request) {
		if _, again := failed.LoadOrStore(r.Header.Get(signature.HeaderID), true); !again {
			w.WriteHeader(http.StatusInternalServerError)
		}
	})
	sub := h.subscribe(rc.URL)
	h.reachAll(h.emit(20), sub, delivery.StatusDelivered)
	h.settled()
	h.stop(patience)
	owned := map[string]bool{ // docs/redis.md says how they are trimmed
		"s": true, "su": true, "sc": true, // with the subscriber
		"c": true, "v": true, "pending": true, "companies": true, "clock": true, // of a company, of a partition
		"dead": true, "fenced": true, "quarantine": true,
		"es":   true,                  // of a subscriber that had a retry set
		"done": true, "compact": true, // until the compaction
	}
	keys, err := h.client.Keys(t.Context(), "sh:*").Result()
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range keys {
		_, kind, _ := strings.Cut(key, "}:")
		kind, _, _ = strings.Cut(kind, ":")
		if ttl := h.client.TTL(t.Context(), key).Val(); ttl < 0 && !owned[kind] {
			t.Errorf("%s never expires", key)
		}
	}
}

// A shard without outcomes to write has no recorder: addresses of shards that are gone leave nothing behind.
// Later outcomes of an event start a recorder again.
func TestAnIdleShardHasNoRecorder(t *testing.T) {
	t.Parallel()
	h := build(t, redistest.New(t), nil)
	idle := func() bool {
		h.records.mu.Lock()
		defer h.records.mu.Unlock()
		return len(h.records.byShard) == 0
	}
	gate := make(chan struct{})
	open := sync.OnceFunc(func() { close(gate) })
	defer open()
	first := h.subscribe(receive(t, nil).URL)
	last := h.subscribe(receive(t, func(int, http.ResponseWriter, *http.Request) { <-gate }).URL)
	h.start()
	ids := h.emit(3)
	h.reachAll(ids, first, delivery.StatusDelivered)
	eventually(t, idle, "the recorder ends")
	open()
	h.reachAll(ids, last, delivery.StatusDelivered)
	h.settled()
	eventually(t, idle, "the recorder ends again")
}

// Outcomes that Redis does not take block nothing but the turns of their company.
func TestOutcomesThatAreNotWrittenBlockNothing(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{})
	h := build(t, server.Client(), nil)
	h.start()
	company := uuid.New()
	server.Pause()
	defer server.Resume()
	const n = 5000
	ev := &openEvent{shard: h.records.shardOf(company), left: n}
	for i := range n {
		ref := delivery.Ref{Ref: events.Ref{Company: company, ID: "evt-" + strconv.Itoa(i)}}
		h.record(&outcome{work: &work{ref: ref, event: ev}})
	}
	if c := h.admission.Counts(); c.Held != n {
		t.Errorf("%d outcomes wait, want %d", c.Held, n)
	}
	if shares, others := h.admission.Holding(); shares[company] != 0 || others == 0 {
		t.Errorf("%d may be started of the company, %d of each other", shares[company], others)
	}
	server.Resume()
	eventually(t, func() bool { return h.admission.Counts().Held == 0 }, "all outcomes are written")
}
