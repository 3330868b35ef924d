package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
)

// story is a daemon with receivers that can be broken and mended.
type story struct {
	t        *testing.T
	home     installation
	daemon   *running
	broken   atomic.Bool
	came     atomic.Int64
	receiver string

	failing, well string // subscribers
	event         string
	tailed        int // events sent to be seen in the live tail
}

// newStory starts the daemon with further settings.
func newStory(t *testing.T, settings ...string) *story {
	t.Helper()
	w := &story{t: t}
	w.broken.Store(true)
	receiver := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/broken") && w.broken.Load() {
			rw.WriteHeader(http.StatusInternalServerError)
			_, _ = rw.Write([]byte("the ledger is closed: no connection to ledger-db-2"))
			return
		}
		w.came.Add(1)
		rw.WriteHeader(http.StatusNoContent)
	}))
	t.Cleanup(receiver.Close)
	w.receiver = receiver.URL
	w.home = newInstallation(t, sharedRedis(t), "delivery:\n  schedule: [100ms, 100ms, 100ms]\n"+strings.Join(settings, ""))
	w.daemon = w.home.start(t)
	return w
}

// subscribe makes a subscriber and returns its id.
func (w *story) subscribe(name, path string, events ...string) string {
	w.t.Helper()
	body, err := json.Marshal(map[string]any{"name": name, "callbackUrl": w.receiver + path, "events": events, "contacts": []string{"http://127.0.0.1:9/chat"}})
	if err != nil {
		w.t.Fatal(err)
	}
	status, _, text := w.daemon.do(w.t, "POST", "/api/v1/subscribers", string(body))
	var created struct {
		UUID string `json:"uuid"`
	}
	if err := json.Unmarshal([]byte(text), &created); err != nil || status != http.StatusCreated {
		w.t.Fatalf("subscribe: %d %s", status, text)
	}
	return created.UUID
}

// emit sends an event.
func (w *story) emit(id, kind string, metadata map[string]any) {
	w.t.Helper()
	body, err := json.Marshal(map[string]any{"id": id, "event": kind, "timestamp": time.Now().UTC().Format(time.RFC3339Nano), "metadata": metadata})
	if err != nil {
		w.t.Fatal(err)
	}
	eventually(w.t, patience, "the event is accepted", func() bool {
		status, _, text := w.daemon.do(w.t, "POST", "/api/v1/events", string(body))
		if status != http.StatusAccepted && status != http.StatusOK && status != http.StatusServiceUnavailable { // the daemon is very busy
			w.t.Fatalf("emit: %d %s", status, text)
		}
		return status != http.StatusServiceUnavailable
	})
}

// fill creates data of every kind for the company.
func (w *story) fill() {
	w.t.Helper()
	w.failing = w.subscribe("Ledger of Nordwind GmbH", "/broken/ledger", "PAYMENT_PAID", "CARD_CREATION_REQUEST_ERROR")
	w.well = w.subscribe("Data warehouse", "/well/warehouse", "PAYMENT_PAID", "CARD_CREATION_REQUEST_CREATED", "CARD_CREATION_REQUEST_ERROR")
	paused := w.subscribe("Mailer", "/well/mailer", "CARD_CREATION_REQUEST_CREATED")
	if status, _, text := w.daemon.do(w.t, "POST", "/api/v1/subscribers/"+paused+"/pause", ""); status != http.StatusOK {
		w.t.Fatalf("pause: %d %s", status, text)
	}
	for i := range 24 {
		kind := []string{"PAYMENT_PAID", "PAYMENT_PAID", "CARD_CREATION_REQUEST_CREATED", "CARD_CREATION_REQUEST_ERROR"}[i%4]
		w.event = fmt.Sprintf("evt_2026_%04d", 1840+i)
		w.emit(w.event, kind, map[string]any{"paymentUuid": "7b1de0d2-60e0-4a7f-8d0c-2c9b5f6f0a01", "amount": fmt.Sprintf("%d.90", 12+7*i), "currency": "EUR", "merchant": "Hotel Adlon"})
	}
	w.awaitDead(w.event + "." + w.failing)
}

func (w *story) awaitDead(id string) {
	w.t.Helper()
	eventually(w.t, browserPatience, "the delivery is dead", func() bool {
		_, _, text := w.daemon.do(w.t, "GET", "/api/v1/deliveries/"+id, "")
		return strings.Contains(text, `"status":"DEAD"`)
	})
}
