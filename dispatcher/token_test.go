package dispatcher

import (
	"io"
	"net/http"
	"testing"

	"spendhook/dispatcher/delivery"
	"spendhook/internal/redistest"
	"spendhook/internal/secret"
	"spendhook/subscribers"
	"spendhook/subscribers/callback"
)

// A token endpoint that does not answer delays only its subscriber, and is asked once for all its deliveries.
func TestATokenEndpointDelaysOnlyItsSubscriber(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	issuer := receive(t, func(_ int, w http.ResponseWriter, _ *http.Request) {
		<-release
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"access_token":"t-1","expires_in":3600}`)
	})
	inbox, other := receive(t, nil), receive(t, nil)
	h := build(t, redistest.New(t), nil)
	waiting, err := h.opts.Subscribers.Create(t.Context(), h.company, subscribers.Settings{
		Name: new("receiver"), CallbackURL: &inbox.URL, Events: new([]string{"PAYMENT_PAID"}),
		OAuth: &callback.OAuthChange{TokenURL: &issuer.URL, ClientID: new("us"), ClientSecret: new(secret.Text("hunter22"))},
	})
	if err != nil {
		t.Fatal(err)
	}
	open := h.subscribe(other.URL)
	h.start()
	ids := h.emit(5)
	for _, id := range ids {
		h.reaches(id, open, delivery.StatusDelivered)
	}
	if n := inbox.count(); n != 0 {
		t.Errorf("%d deliveries without a token", n)
	}
	close(release)
	for _, id := range ids {
		h.reaches(id, waiting, delivery.StatusDelivered)
		if d := h.deliveryOf(id, waiting); d.Attempts[0].Headers(id)["Authorization"] != "[redacted]" {
			t.Errorf("the log of attempts: %v", d.Attempts[0].Headers(id))
		}
	}
	inbox.mu.Lock()
	defer inbox.mu.Unlock()
	for _, got := range inbox.got {
		if got.header.Get("Authorization") != "Bearer t-1" {
			t.Errorf("got %q", got.header.Get("Authorization"))
		}
	}
	if n := issuer.count(); n != 1 {
		t.Errorf("asked %d times", n)
	}
}
