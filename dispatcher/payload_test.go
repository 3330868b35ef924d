package dispatcher

import (
	"net/http"
	"testing"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"spendhook/dispatcher/delivery"
	"spendhook/dispatcher/requests"
	"spendhook/internal/redistest"
	"spendhook/subscribers"
)

// Each subscriber gets events in its format, signed alike, with the same bytes on every
// attempt.
func TestEachSubscriberGetsItsFormat(t *testing.T) {
	t.Parallel()
	h := build(t, redistest.New(t), func(o *Options) {
		o.Requests = requests.New(requests.Options{PublicURL: "https://hooks.example.com/", Logger: o.Logger})
	})
	h.start()
	boxes, subs := map[string]*inbox{}, map[string]subscribers.Subscriber{}
	for _, format := range []string{"standard", "thin", "cloudevents"} {
		boxes[format] = receive(t, func(n int, w http.ResponseWriter, _ *http.Request) {
			if n == 1 {
				w.WriteHeader(http.StatusInternalServerError)
			}
		})
		s, err := h.service.Create(t.Context(), h.company, subscribers.Settings{
			Name: new(format), CallbackURL: &boxes[format].URL, Events: &[]string{"PAYMENT_PAID"}, Format: new(format),
		})
		if err != nil {
			t.Fatal(err)
		}
		subs[format] = s
	}
	id := h.emit(1)[0]
	company := h.company.String()
	for format, want := range map[string]struct{ contentType, head, tail string }{
		"standard": {"application/json", `{"id":"` + id + `","companyUuid":"` + company + `","event":"PAYMENT_PAID","timestamp":"`, `","metadata":{"n":1}}`},
		"thin": {
			"application/json", `{"id":"` + id + `","companyUuid":"` + company + `","event":"PAYMENT_PAID","timestamp":"`,
			`","url":"https://hooks.example.com/api/v1/events/` + id + `"}`,
		},
		"cloudevents": {
			"application/cloudevents+json",
			`{"specversion":"1.0","id":"` + id + `","source":"https://hooks.example.com/companies/` + company + `","type":"PAYMENT_PAID","subject":"` + company + `","time":"`,
			`","sequence":"0000000000000000001","datacontenttype":"application/json","data":{"n":1}}`,
		},
	} {
		h.reaches(id, subs[format], delivery.StatusDelivered)
		got := boxes[format].got
		if len(got) != 2 || string(got[0].body) != string(got[1].body) {
			t.Fatalf("%s: %d attempts, %q", format, len(got), got)
		}
		body := string(got[0].body)
		if len(body) != len(want.head)+len(want.tail)+len("2026-11-22T09:00:00.000Z") || body[:len(want.head)] != want.head || body[len(body)-len(want.tail):] != want.tail {
			t.Errorf("%s: %s", format, body)
		}
		if contentType := got[0].header.Get("Content-Type"); contentType != want.contentType {
			t.Errorf("%s: Content-Type %s", format, contentType)
		}
		wh, err := standardwebhooks.NewWebhook(subs[format].Secrets[0].Key.Reveal())
		if err != nil {
			t.Fatal(err)
		}
		if err := wh.Verify(got[1].body, got[1].header); err != nil {
			t.Errorf("%s: %v", format, err)
		}
	}
}
