package dispatcher

import (
	"net/http"
	"slices"
	"testing"

	"spendhook/dispatcher/delivery"
	"spendhook/dispatcher/webhook/signature"
	"spendhook/events"
	"spendhook/internal/redistest"
	"spendhook/subscribers"
)

// links are webhook-sequence and webhook-previous of what was received, in order of arrival.
func (rc *inbox) links(id string) (all []string) {
	rc.mu.Lock()
	defer rc.mu.Unlock()
	for _, g := range rc.got {
		if g.header.Get(signature.HeaderID) == id {
			all = append(all, g.header.Get(signature.HeaderSequence)+"<"+g.header.Get(signature.HeaderPrevious))
		}
	}
	return all
}

// Each delivery names the event before it that its subscriber matched, on every attempt and replay. The first one after a
// change of the subscriber or of the owner names none.
func TestDeliveriesNameTheEventBefore(t *testing.T) {
	t.Parallel()
	redis := redistest.New(t)
	h := build(t, redis, nil)
	failing := receive(t, func(n int, w http.ResponseWriter, _ *http.Request) {
		if n <= 3 {
			w.WriteHeader(http.StatusInternalServerError)
		}
	})
	all, payments := receive(t, nil), h.subscribe(failing.URL)
	everything := h.subscribeTo(h.company, all.URL, "*")
	h.start()
	var ids []string
	for _, kind := range []string{"PAYMENT_PAID", "CARD_REQUEST_FAILED", "CARD_REQUEST_FAILED", "PAYMENT_PAID"} {
		ids = append(ids, h.emitType(kind, 1)...)
		h.reachAll(ids, everything, delivery.StatusDelivered) // two commits may be matched in any order
	}
	h.reachAll([]string{ids[0], ids[3]}, payments, delivery.StatusDelivered)
	h.update(everything, subscribers.Settings{Filter: new("true")})
	ids = append(ids, h.emit(2)...)
	h.reachAll(ids[4:], everything, delivery.StatusDelivered)
	h.reachAll(ids[4:], payments, delivery.StatusDelivered)
	for i, want := range []string{"1<", "2<1", "3<2", "4<3", "5<", "6<5"} {
		if got := all.links(ids[i]); !slices.Equal(got, []string{want}) {
			t.Errorf("event %d: %v, want %s", i+1, got, want)
		}
	}
	for i, want := range map[int]string{0: "1<", 3: "4<1", 4: "5<4", 5: "6<5"} {
		if got := slices.Compact(failing.links(ids[i])); !slices.Equal(got, []string{want}) {
			t.Errorf("payment %d: %v, want %s", i+1, got, want)
		}
	}
	if failing.count() != 7 {
		t.Errorf("%d attempts of 4 payments of which 3 have failed", failing.count())
	}

	if _, err := h.Redelivery.Replay(t.Context(), events.Ref{Company: h.company, ID: ids[3]}, nil); err != nil {
		t.Fatal(err)
	}
	replayed := h.becomes(ids[3], everything, "DELIVERED twice", func(d delivery.Delivery) bool { return d.Count == 2 })
	if got := all.links(ids[3]); !slices.Equal(got, []string{"4<3", "4<3"}) {
		t.Errorf("the replay: %v", got)
	}
	if shown := replayed.Attempts[1].Headers(ids[3]); shown[signature.HeaderPrevious] != "3" {
		t.Errorf("the log of attempts: %v", shown)
	}
	if sent, err := h.inspector.Sent(t.Context(), h.company, ids[3]+"."+everything.UUID.String()); err != nil || sent.Previous != 3 {
		t.Errorf("what would be sent: %+v, %v", sent, err)
	}

	h.stop(patience)
	next := build(t, redis, nil)
	next.company, next.seq = h.company, h.seq
	next.start()
	ids = append(ids, next.emit(2)...)
	next.reachAll(ids[6:], everything, delivery.StatusDelivered)
	for i, want := range []string{"7<", "8<7"} {
		if got := all.links(ids[6+i]); !slices.Equal(got, []string{want}) {
			t.Errorf("with the next owner, event %d: %v, want %s", 7+i, got, want)
		}
	}
}
