package main

import (
	"context"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"spendhook/api/client"
	"spendhook/clients/go/inbox"
)

// The library for Go receives from a daemon, each event once: as a delivery that is signed in both ways, or from the feed.
func TestLibraryWithADaemon(t *testing.T) {
	t.Parallel()
	d := newInstallation(t, sharedRedis(t), "delivery: {schedule: [100ms]}\nsubscribers: {challenge: new}\n").start(t)
	options := client.Options{Token: d.token}
	api, err := client.New(d.api, options)
	if err != nil {
		t.Fatal(err)
	}
	emitter, err := client.NewEmitter(d.api, client.EmitterOptions{Options: options})
	if err != nil {
		t.Fatal(err)
	}
	var handler atomic.Pointer[http.Handler]
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { (*handler.Load()).ServeHTTP(w, r) }))
	defer server.Close()
	created, err := api.CreateSubscriberWithResponse(t.Context(), &client.CreateSubscriberParams{}, client.SubscriberCreate{
		Name: t.Name(), CallbackURL: server.URL + "/hooks/caf%C3%A9?a=b%20c", Events: []string{"PAYMENT_PAID"}, Signatures: &[]string{byStandard, byMessage},
	})
	if err != nil {
		t.Fatal(err)
	}
	subscriber := created.JSON201
	verifier, err := inbox.NewVerifier(inbox.VerifierOptions{
		Secrets: []string{subscriber.Secret}, KeysURL: d.api + "/.well-known/webhook-keys/" + subscriber.CompanyUUID.String(), Origin: server.URL,
	})
	if err != nil {
		t.Fatal(err)
	}
	var worked idList
	box, err := inbox.New(inbox.Options[any]{
		Verifier: verifier, Store: &inbox.MemoryStore[any]{}, Feed: &inbox.Feed{API: api, Subscriber: subscriber.UUID}, Origin: "127.0.0.1",
		Work: func(_ context.Context, e *inbox.Event, _ any) error {
			if e.Type != "PAYMENT_PAID" || e.Sequence == 0 || string(e.Metadata) != `{"amount":12.50}` || e.CompanyUUID != subscriber.CompanyUUID.String() {
				t.Errorf("%+v", e)
			}
			worked.add(e.ID)
			return nil
		},
		Failed: func(err error) { t.Log(err) },
	})
	if err != nil {
		t.Fatal(err)
	}
	var h http.Handler = box
	handler.Store(&h)
	if _, err := api.VerifySubscriberWithResponse(t.Context(), subscriber.UUID, &client.VerifySubscriberParams{}); err != nil {
		t.Fatal(err)
	}
	emit := func(id string) {
		t.Helper()
		if err := emitter.Send(t.Context(), client.EventInput{ID: id, Event: "PAYMENT_PAID", Timestamp: time.Now(), Metadata: []byte(`{"amount":12.50}`)}); err != nil {
			t.Fatal(err)
		}
	}
	awaits := func(ids ...string) {
		t.Helper()
		eventually(t, patience, strings.Join(ids, " "), func() bool { return slices.Equal(worked.sorted(), ids) })
	}
	emit("evt_1")
	emit("evt_2")
	awaits("evt_1", "evt_2")
	if _, err := api.PauseSubscriberWithResponse(t.Context(), subscriber.UUID, &client.PauseSubscriberParams{}); err != nil {
		t.Fatal(err)
	}
	emit("evt_3")
	if p, err := box.CatchUp(t.Context()); err != nil || p.Missing != 1 {
		t.Errorf("caught up: %+v, %v", p, err)
	}
	ctx, stop := context.WithCancel(t.Context())
	followed := make(chan struct{})
	go func() {
		defer close(followed)
		box.Follow(ctx)
	}()
	emit("evt_4")
	awaits("evt_1", "evt_2", "evt_3", "evt_4")
	stop()
	<-followed
	if _, err := api.ResumeSubscriberWithResponse(t.Context(), subscriber.UUID, &client.ResumeSubscriberParams{}, client.ResumeRequest{}); err != nil {
		t.Fatal(err)
	}
	emit("evt_5")
	awaits("evt_1", "evt_2", "evt_3", "evt_4", "evt_5")
	// The change of the format is verified by the handshake of CloudEvents.
	if status, _, body := d.do(t, http.MethodPatch, "/api/v1/subscribers/"+subscriber.UUID.String(), `{"format":"cloudevents"}`); status != http.StatusOK {
		t.Errorf("the handshake: %d, %s", status, body)
	}
}

// idList is a list for several goroutines.
type idList struct {
	mu  sync.Mutex
	ids []string
}

func (l *idList) add(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ids = append(l.ids, id)
}

func (l *idList) sorted() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Sorted(slices.Values(l.ids))
}
