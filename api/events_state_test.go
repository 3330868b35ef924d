package api

import (
	"crypto/sha1"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"spendhook/api/gen"
	"spendhook/events"
	"spendhook/events/eventtype"
	"spendhook/events/layout"
	"spendhook/events/publish"
	"spendhook/internal/partition"
	"spendhook/internal/redistest"
)

const retention = 7 * 24 * time.Hour

// settled waits until an event without a matching subscriber is settled.
func (h *harness) settled(id string) {
	h.t.Helper()
	eventually(h.t, func() bool {
		return as[gen.Event](h.call("GET", "/api/v1/events/"+id, "").want(http.StatusOK)).Status == gen.EventStatusNOSUBSCRIBER
	})
}

func TestBacklogIsBounded(t *testing.T) {
	t.Parallel()
	const most = 3
	client, registry := redistest.New(t), prometheus.NewRegistry()
	h := setupOn(t, client, func(o *Options) {
		publisher := publish.New(publish.Options{
			Client: client, Retention: retention, Backlog: most, Wake: o.Dispatcher.Queue.Wake,
			Registerer: registry,
		})
		t.Cleanup(publisher.Close)
		o.Publisher = publisher
	})
	pending := func(n int) {
		t.Helper()
		if err := client.HSet(t.Context(), partition.Key(h.company, "c:"+h.company.String()), "pending", n).Err(); err != nil {
			t.Fatal(err)
		}
	}
	known := event("known")
	h.call("POST", "/api/v1/events", known).want(http.StatusAccepted)
	h.settled("known")

	pending(most)
	a := h.call("POST", "/api/v1/events", event("new")).want(http.StatusTooManyRequests, "BACKLOG_FULL")
	if a.Header().Get("Retry-After") == "" {
		t.Error("no Retry-After")
	}
	h.call("GET", "/api/v1/events/new", "").want(http.StatusNotFound)
	h.call("POST", "/api/v1/events", known).want(http.StatusOK)

	array := h.call("POST", "/api/v1/events", "["+event("new")+","+event("newer")+"]").want(http.StatusTooManyRequests, "BACKLOG_FULL")
	if refused := as[gen.Problem](array).Results; array.Header().Get("Retry-After") != "5" || len(refused) != 2 || refused[1].ID != "newer" || refused[1].Error.Code != "BACKLOG_FULL" {
		t.Errorf("Retry-After %q, results %+v", array.Header().Get("Retry-After"), refused)
	}
	// An item that is refused for good makes the answer 207.
	h.call("POST", "/api/v1/events", "["+event("new")+",{}]").want(http.StatusMultiStatus)
	h.call("POST", "/api/v1/events", "["+known+"]").want(http.StatusAccepted)

	pending(most - 1)
	results := as[gen.EventBatchResult](h.call("POST", "/api/v1/events", "["+known+","+event("first")+","+event("second")+"]").want(http.StatusMultiStatus)).Results
	if results[0].Status != gen.EventItemResultStatusDUPLICATE || results[1].Status != gen.EventItemResultStatusACCEPTED ||
		results[2].Status != gen.EventItemResultStatusREJECTED || results[2].Error.Code != "BACKLOG_FULL" || *results[2].Error.RetryAfter != 5 {
		t.Errorf("%+v", results)
	}
	if err := testutil.GatherAndCompare(registry, strings.NewReader(`
		# HELP spendhook_events_total Events submitted, by result: storage_full when the company holds its share of Redis's memory, memory_full when Redis has none left for any company.
		# TYPE spendhook_events_total counter
		spendhook_events_total{result="accepted"} 2
		spendhook_events_total{result="backlog_full"} 5
		spendhook_events_total{result="conflict"} 0
		spendhook_events_total{result="duplicate"} 3
		spendhook_events_total{result="invalid"} 1
		spendhook_events_total{result="memory_full"} 0
		spendhook_events_total{result="storage_full"} 0
		spendhook_events_total{result="unavailable"} 0
	`), "spendhook_events_total"); err != nil {
		t.Error(err)
	}
	h.settled("first")
	h.call("POST", "/api/v1/events", event("second")).want(http.StatusAccepted)
}

func TestCompactedEvent(t *testing.T) {
	t.Parallel()
	client := redistest.New(t)
	h := setupOn(t, client)
	body := event("compacted")
	h.call("POST", "/api/v1/events", "["+body+","+event("kept")+"]").want(http.StatusAccepted)
	h.settled("compacted")
	h.settled("kept")
	const header = 32
	key := layout.EventKey(events.Ref{Company: h.company, ID: "compacted"})
	stored, err := client.Get(t.Context(), key).Result()
	if err != nil {
		t.Fatal(err)
	}
	digest := sha1.Sum([]byte(stored[header:]))
	if err := client.Set(t.Context(), key, string(events.Compacted)+stored[1:header]+string(digest[:12]), retention).Err(); err != nil {
		t.Fatal(err)
	}

	path := "/api/v1/events/compacted"
	a := h.call("GET", path, "").want(http.StatusGone, "EVENT_COMPACTED")
	if !strings.Contains(a.problem().Detail, "accepted at 20") {
		t.Errorf("it does not say what is still known: %s", a.Body)
	}
	h.call("GET", path+"/explain", "").want(http.StatusGone, "EVENT_COMPACTED")
	h.call("POST", path+"/replay", "").want(http.StatusGone, "EVENT_COMPACTED")
	h.call("GET", path+"/deliveries", "").want(http.StatusOK)
	list := as[gen.EventList](h.call("GET", "/api/v1/events", "").want(http.StatusOK)).Content
	if len(list) != 1 || list[0].ID != "kept" {
		t.Errorf("listed %+v", list)
	}
	h.call("POST", "/api/v1/events", body).want(http.StatusOK)
	h.call("POST", "/api/v1/events", strings.Replace(body, "PAYMENT_PAID", "PAYMENT_LOST", 1)).want(http.StatusConflict, "EVENT_CONFLICT")
}

func TestClientsCannotEmitOperationalEvents(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.call("POST", "/api/v1/events", event("spendhook-delivery-dead-1")).wantField("id", "RESERVED")
	for _, name := range []string{
		eventtype.SubscriberDisabled, eventtype.SubscriberFailing, eventtype.SubscriberRecovered, eventtype.DeliveryDead, "SUBSCRIBER_TEST", "SUBSCRIBER_NEW",
	} {
		body := strings.Replace(event("forged"), "PAYMENT_PAID", name, 1)
		a := h.call("POST", "/api/v1/events", body)
		a.wantField("event", "EVENT_TYPE_RESERVED")
		a.want(http.StatusBadRequest, "EVENT_TYPE_RESERVED")
		results := as[gen.EventBatchResult](h.call("POST", "/api/v1/events", "["+body+","+event("good-"+name)+"]").want(http.StatusMultiStatus)).Results
		if results[0].Status != gen.EventItemResultStatusREJECTED || results[0].Error.Code != "EVENT_TYPE_RESERVED" || results[1].Status != gen.EventItemResultStatusACCEPTED {
			t.Errorf("%s: %+v", name, results)
		}
	}
	h.call("GET", "/api/v1/events/forged", "").want(http.StatusNotFound)
	h.call("POST", "/api/v1/events", strings.Replace(event("mine"), "PAYMENT_PAID", "SUBSCRIBERS_COUNTED", 1)).want(http.StatusAccepted)
}
