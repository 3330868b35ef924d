package delivery

import "testing"

// Held back, a delivery stays live and can be found as long as it is.
func TestAHeldDeliveryIsKeptForAsLongAsItIsHeld(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	e := h.accepted(t, "e")
	held := h.refs(e, 1)[0]
	h.mustWrite(t, Write{Event: e, Changes: []Change{h.first(held, h.hold)}, Matched: true})
	for _, key := range []string{liveOfSubscriber(h.company, held.Subscriber), liveOfCompany(h.company)} {
		if ttl := h.client.PTTL(t.Context(), key).Val(); ttl != forever {
			t.Errorf("%s expires in %v, and the delivery would never be found again", key, ttl)
		}
	}
	h.now = h.now.Add(2 * harnessPolicy.DeadRetention)
	later := Ref{Ref: h.accepted(t, "later"), Subscriber: held.Subscriber}
	h.mustWrite(t, Write{Event: later.Ref, Changes: []Change{h.first(later, h.hold)}, Matched: true})
	if stats, err := h.Stats(t.Context(), h.company, held.Subscriber); err != nil || stats.Live != 2 {
		t.Errorf("%+v, %v: want both", stats, err)
	}
}

