package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/dispatcher/delivery"
	"spendhook/dispatcher/redelivery"
	"spendhook/dispatcher/requests"
	"spendhook/dispatcher/workqueue/quarantine"
	"spendhook/events"
	"spendhook/events/history"
	"spendhook/events/publish"
	"spendhook/internal/partition"
	"spendhook/internal/redistest"
	"spendhook/internal/seal/sealtest"
	"spendhook/internal/secret"
	"spendhook/subscribers"
	"spendhook/subscribers/callback"
	"spendhook/subscribers/layout"
	"spendhook/subscribers/registry"
)

// everything is the content of Redis as text, by key.
func (h *harness) everything() map[string]string {
	h.t.Helper()
	keys, err := keysOf(h.t.Context(), h.client, "sh:*")
	if err != nil {
		h.t.Fatal(err)
	}
	all := map[string]string{}
	for _, key := range keys {
		switch h.client.Type(h.t.Context(), key).Val() {
		case "string":
			all[key] = h.client.Get(h.t.Context(), key).Val()
		case "hash":
			all[key] = fmt.Sprint(h.client.HGetAll(h.t.Context(), key).Val())
		case "zset":
			all[key] = fmt.Sprint(h.client.ZRange(h.t.Context(), key, 0, -1).Val())
		case "set":
			all[key] = fmt.Sprint(h.client.SMembers(h.t.Context(), key).Val())
		case "list":
			all[key] = fmt.Sprint(h.client.LRange(h.t.Context(), key, 0, -1).Val())
		}
	}
	return all
}

// emitPrivate accepts n events of a company that contain a text to search for.
func (h *harness) emitPrivate(company uuid.UUID, n int, kind, private string) (ids []string) {
	h.t.Helper()
	batch := make([]events.Event, n)
	for i := range batch {
		h.seq++
		batch[i] = events.Event{
			ID: fmt.Sprint("private-", h.seq), CompanyUUID: company, Type: kind, Timestamp: time.Now(),
			Metadata: []byte(`{"of":"` + private + `"}`),
		}
		ids = append(ids, batch[i].ID)
	}
	results, err := h.publisher.Accept(h.t.Context(), batch)
	if err != nil {
		h.t.Fatal(err)
	}
	for _, r := range results {
		if r.Err != nil {
			h.t.Fatal(r.Err)
		}
	}
	return ids
}

const (
	payloadText     = "Ann Smith, 4711 EUR"
	answerText      = "thank you, Ann"
	contactText     = "0123456789abcdef"
	certificateText = "private certificate"
)

// A company with events in every state is erased. None of its payloads, answers,
// subscribers and work is left; its event ids stay known. Another company keeps everything.
func TestEraseCompany(t *testing.T) {
	t.Parallel()
	h := setup(t)
	good := receive(t, nil)
	bad := receive(t, func(_ int, w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusBadGateway)
		_, _ = w.Write([]byte(answerText))
	})
	delivered, dead := h.subscribeTo(h.company, good.URL+"/a", "A"), h.subscribeTo(h.company, bad.URL, "B")
	byKey := h.subscribeTo(h.company, good.URL+"/k", "P")
	h.update(byKey, subscribers.Settings{OrderedBy: new("event")})
	disabled, paused, ordered := h.subscribeTo(h.company, good.URL+"/d", "D"), h.subscribeTo(h.company, good.URL+"/p", "P"), h.subscribeTo(h.company, bad.URL+"/o", "O")
	h.enable(disabled, false)
	h.update(ordered, subscribers.Settings{Ordered: new(true), Contacts: &[]secret.Text{secret.Text(good.URL + "/chat")}})
	if err := h.client.HSet(t.Context(), layout.ContactsKey(h.company), "c:"+contactText, "1").Err(); err != nil {
		t.Fatal(err)
	}
	for _, s := range []subscribers.Subscriber{paused, byKey} {
		if err := h.service.Pause(t.Context(), h.company, s.UUID); err != nil {
			t.Fatal(err)
		}
	}
	other := uuid.New()
	others := h.subscribeTo(other, good.URL+"/x", "A")
	var ids []string
	for _, kind := range []string{"A", "B", "D", "P", "O", "NOBODYS"} {
		ids = append(ids, h.emitPrivate(h.company, 3, kind, payloadText)...)
	}
	ids = append(ids, h.emitPrivate(h.company, 600, "P", payloadText)...)
	theirs := h.emitPrivate(other, 2, "A", "Bob")
	h.reachAll(ids[:3], delivered, delivery.StatusDelivered)
	h.reachAll(ids[3:6], dead, delivery.StatusDead)
	h.reachAll(theirs, others, delivery.StatusDelivered)
	h.becomes(ids[len(ids)-1], paused, "pending", func(d delivery.Delivery) bool { return d.Status.Live() })
	gone := uuid.New()
	for _, e := range []quarantine.Entry{
		{Company: h.company, EventID: ids[0], Subscriber: &gone}, {Company: h.company, Subscriber: &disabled.UUID}, {Company: other, Subscriber: &others.UUID},
	} {
		if err := h.client.ZAdd(t.Context(), quarantine.Key(partition.Of(e.Company)), redis.Z{Score: 1, Member: e.Member()}).Err(); err != nil {
			t.Fatal(err)
		}
	}

	keysOf := func(company uuid.UUID) []subscribers.SigningKey {
		t.Helper()
		keys, err := h.opts.Subscribers.SigningKeys(t.Context(), company)
		if err != nil {
			t.Fatal(err)
		}
		return keys
	}
	h.client.HSet(t.Context(), layout.CompanyKey(h.company), layout.CertificateField, certificateText, layout.CertificateFieldOf(delivered.UUID), certificateText)
	ending := partition.Key(h.company, "ec")
	h.client.ZAdd(t.Context(), ending, redis.Z{Member: h.company.String()}, redis.Z{Member: h.company.String() + "/" + delivered.UUID.String()})

	keys := keysOf(h.company)
	job, err := h.Redelivery.Erase(t.Context(), h.company)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.Redelivery.Cancel(t.Context(), h.company, job.UUID); !errors.Is(err, redelivery.ErrNotCancellable) {
		t.Errorf("cancelled: %v", err)
	}
	job = h.completes(job.UUID)
	if job.Kind != redelivery.JobErase || job.Status != redelivery.JobCompleted || job.Changed != int64(len(ids)) {
		t.Errorf("%+v, of %d events", job, len(ids))
	}
	h.settled()
	for key, text := range h.everything() {
		for _, private := range []string{payloadText, answerText, contactText, certificateText, h.company.String() + "/" + ordered.UUID.String(), delivered.UUID.String() + ":{"} {
			if strings.Contains(text, private) {
				t.Errorf("%s has %q", key, text)
			}
		}
		if strings.HasSuffix(key, "}:s:"+h.company.String()) && strings.Contains(text, good.URL) {
			t.Errorf("%s is left: %s", key, text)
		}
	}
	if ends := h.client.ZRange(t.Context(), ending, 0, -1).Val(); len(ends) > 0 {
		t.Errorf("certificates whose end is known: %q", ends)
	}
	if page, err := h.Quarantine.List(t.Context(), quarantine.Filter{}); err != nil || len(page.Items) != 1 {
		t.Errorf("in quarantine: %+v, %v", page, err)
	}
	if list, total, err := registry.New(h.client, sealtest.Keyring(), 0).List(t.Context(), registry.Filter{Company: &h.company, Size: 100}); err != nil || total != 0 {
		t.Errorf("%d subscribers are left, %v: %+v", total, err, list)
	}
	results, err := h.publisher.Accept(t.Context(), []events.Event{{ID: ids[0], CompanyUUID: h.company, Type: "A", Timestamp: time.Now(), Metadata: []byte(`{"of":"another"}`)}})
	if err != nil || !errors.Is(results[0].Err, publish.ErrConflict) {
		t.Errorf("an erased id with other content: %+v, %v", results, err)
	}
	if e, err := h.opts.Events.Get(t.Context(), events.Ref{Company: other, ID: theirs[0]}); err != nil || !strings.Contains(string(e.Body), "Bob") {
		t.Errorf("another company's: %+v, %v", e, err)
	}

	if _, err := h.opts.Subscribers.SigningKeys(t.Context(), h.company); !errors.Is(err, subscribers.ErrNoSigningKey) {
		t.Errorf("signing keys: %v", err)
	}
	keysOf(other)

	// The company can subscribe and publish again, with other keys.
	again := h.subscribeTo(h.company, good.URL+"/again", "A")
	if again := keysOf(h.company); again[0].ID == keys[0].ID {
		t.Error("the company has its former keys")
	}
	h.reachAll(h.emitPrivate(h.company, 1, "A", "more"), again, delivery.StatusDelivered)
}

// Erasing waits for attempts in flight. When the replica of the job is lost, another replica
// continues the job.
func TestEraseContinuesAfterALostReplica(t *testing.T) {
	t.Parallel()
	client := redistest.New(t)
	h := build(t, client, quickHeartbeats)
	gate := make(chan struct{})
	slow := receive(t, func(int, http.ResponseWriter, *http.Request) { <-gate })
	h.subscribe(slow.URL)
	h.start()
	ids := h.emitPrivate(h.company, 1, "PAYMENT_PAID", payloadText)
	eventually(t, func() bool { return slow.count() == 1 }, func() string { return "the attempt is under way" })
	ids = append(ids, h.emitPrivate(h.company, 1500, "NOBODYS", payloadText)...)
	job, err := h.Redelivery.Erase(t.Context(), h.company)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { // it waits at the first page, for the attempt
		j, err := h.Redelivery.Job(t.Context(), h.company, job.UUID)
		return err == nil && j.Phase == 4 && j.Changed > 0
	}, func() string { return "the job has begun" })
	next := build(t, client, quickHeartbeats)
	next.company = h.company
	next.start()
	h.stop(time.Millisecond) // its attempt is cut off, and its notes are taken over
	close(gate)
	if job = next.completes(job.UUID); job.Status != redelivery.JobCompleted || job.Changed != int64(len(ids)) {
		t.Errorf("%+v, of %d events", job, len(ids))
	}
	next.settled()
	for key, text := range next.everything() {
		if strings.Contains(text, payloadText) {
			t.Errorf("%s is left", key)
		}
	}
}

// The quarantine of a company without events has more entries than one page.
func TestEraseDropsTheWholeQuarantine(t *testing.T) {
	t.Parallel()
	h := setup(t)
	entries := make([]redis.Z, 250)
	for i := range entries {
		entries[i] = redis.Z{Score: 1, Member: quarantine.Entry{Company: h.company, Subscriber: new(uuid.New())}.Member()}
	}
	key := quarantine.Key(partition.Of(h.company))
	if err := h.client.ZAdd(t.Context(), key, entries...).Err(); err != nil {
		t.Fatal(err)
	}
	job, err := h.Redelivery.Erase(t.Context(), h.company)
	if err != nil {
		t.Fatal(err)
	}
	h.completes(job.UUID)
	if left := h.client.ZCard(t.Context(), key).Val(); left != 0 {
		t.Errorf("%d entries are left", left)
	}
}

// An erasure reads each entry of the quarantine once, however many pages of events it erases.
func TestEraseReadsTheQuarantineOnce(t *testing.T) {
	t.Parallel()
	client := redistest.New(t)
	var reads atomic.Int64
	client.AddHook(redistest.Hook{Pipeline: func(ctx context.Context, cmds []redis.Cmder, next redis.ProcessPipelineHook) error {
		for _, cmd := range cmds {
			if args := cmd.Args(); args[0] == "zrangebyscore" && strings.HasSuffix(fmt.Sprint(args[1]), "quarantine") {
				reads.Add(1)
			}
		}
		return next(ctx, cmds)
	}})
	h := build(t, client, nil)
	h.start()
	h.emitPrivate(h.company, 1600, "NOBODYS", payloadText)
	h.settled()
	h.opts.Subscribers = subscribers.NewStore(subscribers.StoreOptions{
		Client: client, Keyring: sealtest.Keyring(), Policy: callback.Policy{AllowHTTP: true}, Now: func() time.Time { return time.Now().Add(time.Minute) },
	})
	later := quarantine.Entry{Company: h.company, Subscriber: new(h.subscribe(receive(t, nil).URL).UUID)}
	key := quarantine.Key(partition.Of(h.company))
	if err := h.client.ZAdd(t.Context(), key, redis.Z{Score: 1, Member: later.Member()}).Err(); err != nil {
		t.Fatal(err)
	}
	job, err := h.Redelivery.Erase(t.Context(), h.company)
	if err != nil {
		t.Fatal(err)
	}
	h.completes(job.UUID)
	if n, kept := reads.Load(), h.quarantined(); n != 1 || len(kept) != 1 {
		t.Errorf("it was read %d times", n)
	}
}

// An event that the company adds after the start of an erasure stays in the quarantine, and so does
// a damaged subscriber. Both can be tried again. What was added before is erased, also by a replica whose clock is behind.
func TestEraseKeepsLaterEntriesOfTheQuarantine(t *testing.T) {
	t.Parallel()
	h := build(t, redistest.New(t), nil)
	gate := make(chan struct{})
	slow, rc := receive(t, func(int, http.ResponseWriter, *http.Request) { <-gate }), receive(t, nil)
	var damages atomic.Bool
	target := h.target
	h.target = func(s *subscribers.Subscriber) *requests.Target {
		if damages.Load() {
			return nil // matching panics
		}
		return target(s)
	}
	h.Redelivery.Now = func() time.Time { return time.Now().Add(-30 * time.Second) }
	h.start()
	h.subscribe(slow.URL)
	earlier := h.emit(1)[0]
	eventually(t, func() bool { return slow.count() == 1 }, "an attempt is under way, for which the job waits")
	job, err := h.Redelivery.Erase(t.Context(), h.company)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool {
		j, err := h.Redelivery.Job(t.Context(), h.company, job.UUID)
		return err == nil && j.Phase == 4 && h.client.Time(t.Context()).Val().After(j.Filter.To.Add(time.Millisecond))
	}, "the job has begun")
	sub := h.subscribe(rc.URL)
	damages.Store(true)
	ids := h.emit(3)
	eventually(t, func() bool { return len(h.quarantined()) == len(ids) }, "the events are quarantined")
	damaged := quarantine.Entry{Company: h.company, Subscriber: &sub.UUID}
	if err := h.client.ZAdd(t.Context(), quarantine.Key(partition.Of(h.company)), redis.Z{Score: 1, Member: damaged.Member()}).Err(); err != nil {
		t.Fatal(err)
	}
	close(gate)
	h.completes(job.UUID)
	if left := h.quarantined(); len(left) != len(ids)+1 {
		t.Fatalf("in quarantine: %v", left)
	}
	if e, err := h.opts.Events.Get(t.Context(), events.Ref{Company: h.company, ID: earlier}); err != nil || e.State != events.Compacted {
		t.Errorf("the event before: %+v, %v", e, err)
	}
	if err := h.Quarantine.Forget(t.Context(), damaged); err != nil {
		t.Fatal(err)
	}
	damages.Store(false)
	h.retryQuarantined()
	h.reachAll(ids, sub, delivery.StatusDelivered)
	rc.once(t, ids)
}

// counted returns the bytes that are counted for the company.
func (h *harness) counted() int64 {
	h.t.Helper()
	n, err := h.client.HGet(h.t.Context(), partition.Key(h.company, "c:"+h.company.String()), "bytes").Int64()
	if err != nil {
		h.t.Fatal(err)
	}
	return n
}

// used returns the bytes that Redis needs for the keys of the company's partition, without the health of
// its subscribers and what the owner is told.
func (h *harness) used() (n int64) {
	h.t.Helper()
	keys, err := h.client.Keys(h.t.Context(), partition.Key(h.company, "*")).Result()
	if err != nil {
		h.t.Fatal(err)
	}
	for _, key := range keys {
		if strings.Contains(key, "}:sh:") || strings.HasSuffix(key, "}:told") { // what is told is read a moment later
			continue
		}
		if size, err := h.client.MemoryUsage(h.t.Context(), key, 0).Result(); err == nil { // else the key is gone
			n += size
		}
	}
	return n
}

// The deliveries of an event count in the bytes of its company, while they wait, once they are made, and
// with long answers. An erased event keeps the bytes of a compacted one.
func TestDeliveriesCountInTheBytesOfTheCompany(t *testing.T) {
	t.Parallel()
	for _, orderedBy := range []string{"", "id"} {
		t.Run("ordered by "+orderedBy, func(t *testing.T) {
			t.Parallel()
			testBytesOfDeliveries(t, orderedBy)
		})
	}
}

func testBytesOfDeliveries(t *testing.T, orderedBy string) {
	t.Helper()
	h := setup(t)
	const many = 100
	rc := receive(t, func(n int, w http.ResponseWriter, _ *http.Request) {
		if n <= many {
			w.WriteHeader(http.StatusInternalServerError)
		}
		_, _ = w.Write([]byte(strings.Repeat("no answer ", 100)))
	})
	subs := make([]subscribers.Subscriber, many)
	for i := range subs {
		subs[i] = h.subscribeTo(h.company, fmt.Sprintf("%s/%d", rc.URL, i), "A")
		if _, err := h.service.Update(t.Context(), h.company, subs[i].UUID, subscribers.Settings{OrderedBy: &orderedBy}); err != nil {
			t.Fatal(err)
		}
		if err := h.service.Pause(t.Context(), h.company, subs[i].UUID); err != nil {
			t.Fatal(err)
		}
	}
	before := h.used()
	check := func(what string) {
		t.Helper()
		counted, used := h.counted(), h.used()-before
		t.Logf("%s: %d bytes counted, %d used", what, counted, used)
		if counted < used*3/4 || counted > 2*used {
			t.Errorf("%s: %d bytes are counted, Redis needs %d", what, counted, used)
		}
	}
	id := h.emitPrivate(h.company, 1, "A", strings.Repeat("x", 900))[0]
	for _, sub := range subs {
		h.becomes(id, sub, "pending", func(d delivery.Delivery) bool { return d.Status.Live() })
	}
	check("pending")
	for _, sub := range subs {
		if err := h.service.Resume(t.Context(), h.company, sub.UUID); err != nil {
			t.Fatal(err)
		}
	}
	h.settled()
	check("delivered")
	if err := h.Deliveries.Erase(t.Context(), events.Ref{Company: h.company, ID: id}); err != nil {
		t.Fatal(err)
	}
	if n := h.counted(); n != 280 {
		t.Errorf("erased: %d bytes are counted, want 280", n)
	}
}

// An event that has waited for longer than events are kept is in no list of events, and is erased with its company.
func TestEraseFindsWhatWaitsLongerThanTheRetention(t *testing.T) {
	t.Parallel()
	client := redistest.New(t)
	h := build(t, client, func(o *Options) {
		o.Events = history.New(history.Options{
			Client: client, Retention: o.Policy.Retention, Now: func() time.Time { return time.Now().Add(o.Policy.Retention + time.Hour) },
		})
	})
	h.start()
	paused := h.subscribe(receive(t, nil).URL)
	if err := h.service.Pause(t.Context(), h.company, paused.UUID); err != nil {
		t.Fatal(err)
	}
	ids := h.emitPrivate(h.company, 3, "PAYMENT_PAID", payloadText)
	h.reachAll(ids, paused, delivery.StatusPending)
	job, err := h.Redelivery.Erase(t.Context(), h.company)
	if err != nil {
		t.Fatal(err)
	}
	if job = h.completes(job.UUID); job.Changed != int64(len(ids)) {
		t.Errorf("%+v", job)
	}
	h.settled()
	for key, text := range h.everything() {
		if strings.Contains(text, payloadText) {
			t.Errorf("%s is left", key)
		}
	}
}
