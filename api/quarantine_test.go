package api

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/api/gen"
	"spendhook/dispatcher/workqueue/quarantine"
	"spendhook/events"
	"spendhook/events/layout"
	"spendhook/internal/partition"
	"spendhook/internal/redistest"
	"spendhook/subscribers/subscriberstest"
)

// damaged is an API with a subscriber, and with methods that damage stored records.
type damaged struct {
	*harness

	client redis.UniversalClient
	sub    uuid.UUID
	came   atomic.Int64
}

func setupDamaged(t *testing.T) *damaged {
	t.Helper()
	w := &damaged{client: redistest.New(t)}
	w.harness = setupOn(t, w.client)
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { w.came.Add(1) }))
	t.Cleanup(server.Close)
	w.sub = create(w.harness, server.URL).UUID
	return w
}

func (w *damaged) ref(id string) events.Ref { return events.Ref{Company: w.company, ID: id} }

// pending is how many events of the company are not settled.
func (w *damaged) pending() int {
	w.t.Helper()
	read := w.client.TxPipeline()
	ofCompany := read.HGet(w.t.Context(), partition.Key(w.company, "c:"+w.company.String()), "pending")
	ofPartition := read.Get(w.t.Context(), partition.Key(w.company, "pending"))
	if _, err := read.Exec(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
	n, err := ofCompany.Int()
	if err != nil {
		w.t.Fatal(err)
	}
	total, err := ofPartition.Int()
	if err != nil || total != n {
		w.t.Errorf("%d pending of the company, %d of the partition, %v", n, total, err)
	}
	return n
}

// ids lists the quarantine.
func (w *damaged) ids() []string {
	w.t.Helper()
	var ids []string
	for _, e := range as[gen.QuarantineList](w.call("GET", "/api/v1/quarantine", "").want(http.StatusOK)).Content {
		ids = append(ids, e.ID)
	}
	return ids
}

func (w *damaged) awaitQuarantined(ids ...string) {
	w.t.Helper()
	eventually(w.t, func() bool { return slices.Equal(w.ids(), ids) })
}

// overwrite replaces the stored record of an event and returns the old record.
func (w *damaged) overwrite(id, value string) (was string) {
	w.t.Helper()
	was, err := w.client.SetArgs(w.t.Context(), layout.EventKey(w.ref(id)), value, redis.SetArgs{Get: true, KeepTTL: true}).Result()
	if err != nil {
		w.t.Fatal(err)
	}
	return was
}

// unread stores a damaged event and waits until it is in the quarantine. It returns the
// undamaged form of the event.
func (w *damaged) unread(id, damage string) (good string) {
	w.t.Helper()
	first := uuid.NewString()
	w.call("POST", "/api/v1/events", event(first)).want(http.StatusAccepted)
	eventually(w.t, func() bool { return w.pending() == 0 })
	value, _, _ := strings.Cut(w.client.Get(w.t.Context(), layout.EventKey(w.ref(first))).Val(), w.sub.String()) // without the records of its deliveries
	good = "R" + value[1:]
	pipe := w.client.TxPipeline() // as accept.lua does
	pipe.Set(w.t.Context(), layout.EventKey(w.ref(id)), damage, 0)
	pipe.HIncrBy(w.t.Context(), partition.Key(w.company, "c:"+w.company.String()), "pending", 1)
	pipe.Incr(w.t.Context(), partition.Prefix(partition.Of(w.company))+"pending")
	pipe.ZAdd(w.t.Context(), quarantine.Key(partition.Of(w.company)), redis.Z{Score: 1, Member: w.ref(id).String()})
	if _, err := pipe.Exec(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
	w.call("POST", "/api/v1/quarantine/"+id+"/retry", "").want(http.StatusAccepted)
	eventually(w.t, func() bool {
		return w.client.ZScore(w.t.Context(), quarantine.Key(partition.Of(w.company)), w.ref(id).String()).Val() > 1
	})
	return good
}

func TestQuarantinedEventIsMended(t *testing.T) {
	t.Parallel()
	w := setupDamaged(t)
	good := w.unread("e", "R?")
	page := as[gen.QuarantineList](w.call("GET", "/api/v1/quarantine", "").want(http.StatusOK))
	if len(page.Content) != 1 || page.Content[0].ID != "e" || page.Content[0].EventID != "e" || page.Content[0].CompanyUUID != w.company || page.Content[0].SubscriberUUID != nil || page.Content[0].QuarantinedAt.IsZero() {
		t.Fatalf("%+v", page)
	}
	w.overwrite("e", good)
	before := w.came.Load()
	w.call("POST", "/api/v1/quarantine/e/retry", "").want(http.StatusAccepted)
	eventually(t, func() bool { return w.pending() == 0 })
	if w.came.Load() != before+1 || len(w.ids()) > 0 {
		t.Errorf("%d POSTs, quarantined %v", w.came.Load()-before, w.ids())
	}
	w.call("POST", "/api/v1/quarantine/e/retry", "").want(http.StatusNotFound, "NOT_FOUND")
	w.call("DELETE", "/api/v1/quarantine/e", "").want(http.StatusNotFound, "NOT_FOUND")
	if entries := w.audited("action=quarantine.retry"); len(entries) == 0 || !slices.Equal(entries[0].Target.Ids, []string{"e"}) {
		t.Errorf("audited %+v", entries)
	}
}

// A dropped event is no longer pending, and its id stays known.
func TestQuarantinedEventIsDropped(t *testing.T) {
	t.Parallel()
	w := setupDamaged(t)
	header := fmt.Sprintf("R%013d%s", time.Now().UnixMilli(), strings.Repeat("1", 18)) // accepted now: an older one is dropped soon
	for id, damage := range map[string]string{"header": "R?", "state": "X" + header[1:] + "}", "body": header + "}"} {
		w.unread(id, damage)
		if n := w.pending(); n != 1 {
			t.Errorf("%s: %d pending before", id, n)
		}
		w.call("DELETE", "/api/v1/quarantine/"+id, "").want(http.StatusNoContent)
		if n := w.pending(); n != 0 {
			t.Errorf("%s: %d pending after", id, n)
		}
		w.call("GET", "/api/v1/events/"+id, "").want(http.StatusGone, "EVENT_COMPACTED")
		w.call("POST", "/api/v1/events", event(id)).want(http.StatusConflict, "EVENT_CONFLICT")
		if ttl := w.client.PTTL(t.Context(), layout.EventKey(w.ref(id))).Val(); ttl <= 0 {
			t.Errorf("%s is kept for %v", id, ttl)
		}
		w.call("DELETE", "/api/v1/quarantine/"+id, "").want(http.StatusNotFound, "NOT_FOUND")
	}
	w.call("GET", "/api/v1/events", "").want(http.StatusOK)
	if entries := w.audited("action=quarantine.drop"); len(entries) != 3 {
		t.Errorf("audited %+v", entries)
	}
}

// quarantined calls damage while a delivery waits, and returns once it is quarantined.
func (w *damaged) quarantined(id string, damage func()) (delivery string) {
	w.t.Helper()
	w.call("PATCH", "/api/v1/subscribers/"+w.sub.String(), `{"enabled":true}`).want(http.StatusOK)
	w.call("POST", "/api/v1/events", event(id)).want(http.StatusAccepted)
	delivery = id + "." + w.sub.String()
	eventually(w.t, func() bool {
		a := w.call("GET", "/api/v1/deliveries/"+delivery, "")
		return a.Code == http.StatusOK && as[gen.DeliveryDetail](a).Status == "DELIVERED"
	})
	// The retried delivery waits in its retry set until damage was called.
	state := partition.Key(w.company, "es:"+w.company.String()+"/"+w.sub.String())
	if err := w.client.HSet(w.t.Context(), state, "until", 1<<50).Err(); err != nil {
		w.t.Fatal(err)
	}
	w.call("POST", "/api/v1/deliveries/"+delivery+"/retry", "").want(http.StatusAccepted)
	if n := w.pending(); n != 1 {
		w.t.Fatalf("%d pending", n)
	}
	damage()
	pipe := w.client.TxPipeline() // the endpoint is served again
	pipe.HDel(w.t.Context(), state, "until")
	pipe.SAdd(w.t.Context(), partition.Prefix(partition.Of(w.company))+"told", "e:"+w.company.String()+"/"+w.sub.String())
	if _, err := pipe.Exec(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
	w.awaitQuarantined(delivery)
	return delivery
}

func (w *damaged) deliveries(id string) string {
	return partition.Key(w.company, "d:"+w.ref(id).String())
}

func TestQuarantinedDeliveryIsMended(t *testing.T) {
	t.Parallel()
	w := setupDamaged(t)
	var good string
	delivery := w.quarantined("e", func() { good = w.overwrite("e", "?") })
	w.overwrite("e", good)
	before := w.came.Load()
	w.call("POST", "/api/v1/quarantine/"+delivery+"/retry", `{"companyUuid":"`+w.company.String()+`"}`).want(http.StatusAccepted)
	eventually(t, func() bool { return w.pending() == 0 })
	if w.came.Load() != before+1 || len(w.ids()) > 0 {
		t.Errorf("%d POSTs, quarantined %v", w.came.Load()-before, w.ids())
	}
}

func TestQuarantinedDeliveryIsDropped(t *testing.T) {
	t.Parallel()
	w := setupDamaged(t)
	drop := func(delivery string) {
		t.Helper()
		w.call("DELETE", "/api/v1/quarantine/"+delivery, "").want(http.StatusNoContent)
		if n := w.pending(); n != 0 {
			t.Errorf("%s: %d pending", delivery, n)
		}
		if ids := w.ids(); len(ids) > 0 {
			t.Errorf("%s: still quarantined: %v", delivery, ids)
		}
	}

	// The event is damaged, the record is good: it is cancelled.
	delivery := w.quarantined("event", func() { w.overwrite("event", "?") })
	drop(delivery)
	d := as[gen.DeliveryDetail](w.call("GET", "/api/v1/deliveries/"+delivery, "").want(http.StatusOK))
	if d.Status != "CANCELLED" || d.Reason != "DROPPED" {
		t.Errorf("%+v", d)
	}
	w.call("GET", "/api/v1/events/event", "").want(http.StatusGone, "EVENT_COMPACTED")

	// The body alone is damaged.
	delivery = w.quarantined("body", func() { w.overwrite("body", w.client.Get(t.Context(), layout.EventKey(w.ref("body"))).Val()[:32]+"}") })
	drop(delivery)
	w.call("GET", "/api/v1/events/body", "").want(http.StatusGone, "EVENT_COMPACTED")

	// The record is damaged, the event is good: the record is replaced.
	delivery = w.quarantined("record", func() {
		if err := w.client.HSet(t.Context(), w.deliveries("record"), w.sub.String(), "P?").Err(); err != nil {
			t.Fatal(err)
		}
	})
	drop(delivery)
	d = as[gen.DeliveryDetail](w.call("GET", "/api/v1/deliveries/"+delivery, "").want(http.StatusOK))
	if d.Status != "CANCELLED" || d.Reason != "DROPPED" || d.Event == "" {
		t.Errorf("%+v", d)
	}
	e := as[gen.Event](w.call("GET", "/api/v1/events/record", "").want(http.StatusOK))
	if e.Status != gen.EventStatusCANCELLED {
		t.Errorf("%+v", e)
	}
	if page := as[gen.DeliveryList](w.call("GET", "/api/v1/deliveries?status=PENDING&subscriberUuid="+w.sub.String(), "").want(http.StatusOK)); len(page.Content) > 0 {
		t.Errorf("still pending: %+v", page)
	}

	// Both are damaged.
	drop(w.quarantined("both", func() {
		w.overwrite("both", "?")
		if err := w.client.HSet(t.Context(), w.deliveries("both"), w.sub.String(), "P?").Err(); err != nil {
			t.Fatal(err)
		}
	}))
	w.call("GET", "/api/v1/events/both", "").want(http.StatusGone, "EVENT_COMPACTED")
}

func TestQuarantineIsTheOperators(t *testing.T) {
	t.Parallel()
	w := setupDamaged(t)
	other := uuid.New()
	for _, e := range []quarantine.Entry{{Company: w.company, EventID: "a"}, {Company: w.company, EventID: "b"}, {Company: other, EventID: "c"}} {
		key := quarantine.Key(partition.Of(e.Company))
		if err := w.client.ZAdd(t.Context(), key, redis.Z{Score: 1, Member: e.Member()}).Err(); err != nil {
			t.Fatal(err)
		}
	}
	w.call("GET", "/api/v1/quarantine", "", bearer(w.mint(&w.company, "deliveries:read deliveries:write"))).want(http.StatusForbidden)
	w.call("GET", "/api/v1/quarantine", "", bearer(w.mint(nil, "operator"))).want(http.StatusForbidden)
	platform := bearer(w.mint(nil, "operator platform"))
	if all := as[gen.QuarantineList](w.call("GET", "/api/v1/quarantine", "", platform).want(http.StatusOK)).Content; len(all) != 3 {
		t.Errorf("listed %+v", all)
	}
	page := as[gen.QuarantineList](w.call("GET", "/api/v1/quarantine?size=1", "").want(http.StatusOK))
	page = as[gen.QuarantineList](w.call("GET", "/api/v1/quarantine?size=1&cursor="+page.NextCursor, "").want(http.StatusOK))
	if len(page.Content) != 1 || page.Content[0].ID != "b" || page.NextCursor != "" {
		t.Errorf("second page %+v", page)
	}
	w.call("GET", "/api/v1/quarantine?cursor=x", "").wantField("cursor", "INVALID")
	w.call("POST", "/api/v1/quarantine/c/retry", "").want(http.StatusNotFound, "NOT_FOUND")
	w.call("DELETE", "/api/v1/quarantine/c", "").want(http.StatusNotFound, "NOT_FOUND")
	w.call("DELETE", "/api/v1/quarantine/not.an.id", "").want(http.StatusNotFound, "NOT_FOUND")
	w.call("DELETE", "/api/v1/quarantine/c", "", platform).wantField("companyUuid", "REQUIRED")
	w.call("DELETE", "/api/v1/quarantine/c?companyUuid="+other.String(), "", platform).want(http.StatusNoContent)
}

// A subscriber that cannot be read is listed, and dropping it deletes it.
func TestADamagedSubscriberIsInTheQuarantine(t *testing.T) {
	t.Parallel()
	w := setupDamaged(t)
	damage := func() (repair func()) {
		t.Helper()
		return subscriberstest.Overwrite(t, w.client, w.company, w.sub.String(), "{")
	}
	repair := damage()
	w.call("POST", "/api/v1/events", event("e-1")).want(http.StatusAccepted)
	id := "." + w.sub.String()
	w.awaitQuarantined(id)
	entry := as[gen.QuarantineList](w.call("GET", "/api/v1/quarantine", "")).Content[0]
	if entry.EventID != "" || *entry.SubscriberUUID != w.sub {
		t.Errorf("%+v", entry)
	}
	elsewhere := uuid.New()
	w.call("DELETE", "/api/v1/quarantine/"+id, "", bearer(w.mint(&elsewhere, allScopes))).want(http.StatusNotFound)

	repair()
	w.call("POST", "/api/v1/quarantine/"+id+"/retry", "").want(http.StatusAccepted)
	w.awaitQuarantined()
	w.call("POST", "/api/v1/events", event("e-2")).want(http.StatusAccepted)
	eventually(t, func() bool { return w.came.Load() > 0 })

	damage()
	w.call("POST", "/api/v1/events", event("e-3")).want(http.StatusAccepted)
	w.awaitQuarantined(id)
	w.call("DELETE", "/api/v1/quarantine/"+id, "").want(http.StatusNoContent)
	w.awaitQuarantined()
	w.call("DELETE", "/api/v1/quarantine/"+id, "").want(http.StatusNotFound)
	w.call("GET", "/api/v1/subscribers/"+w.sub.String(), "").want(http.StatusNotFound)
}
