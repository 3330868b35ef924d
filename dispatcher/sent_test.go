package dispatcher

import (
	"maps"
	"net/http"
	"strings"
	"testing"

	"spendhook/dispatcher/delivery"
	"spendhook/internal/secret"
	"spendhook/subscribers"
)

// The attempt log shows the headers that each attempt sent, also after the subscriber's
// headers have changed.
func TestTheLogShowsTheHeadersThatWereSent(t *testing.T) {
	t.Parallel()
	h := setup(t)
	in := receive(t, nil)
	var s subscribers.Subscriber
	in.answer = func(n int, w http.ResponseWriter, _ *http.Request) {
		switch n {
		case 2:
			h.update(s, subscribers.Settings{Headers: map[string]*secret.Text{"X-Key": new(secret.Text("a secret"))}})
		case 3:
			h.update(s, subscribers.Settings{Headers: map[string]*secret.Text{"X-Key": nil}, Format: new(subscribers.FormatCloudEvents)})
		}
		if n < 4 {
			w.WriteHeader(http.StatusTeapot)
		}
	}
	s = h.subscribe(in.URL)
	id := h.emit(1)[0]
	d := h.reaches(id, s, delivery.StatusDelivered)
	if len(d.Attempts) != 4 {
		t.Fatalf("%d attempts", len(d.Attempts))
	}
	for i, got := range in.got {
		want := map[string]string{}
		for name, values := range got.header {
			want[strings.ToLower(name)] = values[0]
		}
		delete(want, "content-length")
		delete(want, "accept-encoding")
		for _, name := range []string{"webhook-signature", "x-key"} {
			if want[name] != "" {
				want[name] = "[redacted]"
			}
		}
		shown := map[string]string{}
		for name, value := range d.Attempts[i].Headers(d.ID) {
			shown[strings.ToLower(name)] = value
		}
		if !maps.Equal(shown, want) {
			t.Errorf("attempt %d: shown %v, sent %v", i+1, shown, want)
		}
	}
}
