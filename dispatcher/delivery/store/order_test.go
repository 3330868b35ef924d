package store

import (
	"slices"
	"testing"

	"github.com/google/uuid"

	"spendhook/dispatcher/delivery"
	"spendhook/internal/queues"
)

// deliver makes a delivery of an event to the subscriber with each of the outcomes.
func (h *harness) deliver(t *testing.T, sub uuid.UUID, orderKey string, outcomes ...func(delivery.Record) delivery.Record) (refs []delivery.Ref) {
	t.Helper()
	for i, outcome := range outcomes {
		r := delivery.Ref{Ref: h.accepted(t, string(rune('a'+i))), Subscriber: sub}
		c := h.first(r, outcome)
		c.Next.OrderKey = orderKey
		h.mustWrite(t, Write{Event: r.Ref, Changes: []Change{c}, Matched: true, Fanout: 1})
		refs = append(refs, r)
	}
	return refs
}

// begins expects that exactly these deliveries begin.
func (h *harness) begins(t *testing.T, want ...delivery.Ref) {
	t.Helper()
	if got := h.begin(t, 5).deliveries; !slices.Equal(got, want) {
		t.Errorf("begun %v, want %v", got, want)
	}
}

// Of the deliveries with one order key, one is due, also when one call makes them due in any order, and when one call ends
// several of them.
func TestOrderKeysInOneCall(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	r := h.deliver(t, uuid.New(), "k", h.succeed, h.succeed, h.succeed, h.succeed)
	var writes []Write
	for _, i := range []int{3, 1, 2, 0} {
		writes = append(writes, Write{Event: r[i].Ref, Changes: []Change{h.again(t, r[i], h.retry)}})
	}
	recorded, _, err := h.Record(t.Context(), h.now, under(testReplica, writes))
	if all := found(t, recorded, err); len(all) > 0 {
		t.Fatalf("found %+v", all)
	}
	h.begins(t, r[0])
	// end ends the attempt of one delivery, and changes another one in the same call.
	end := func(ended, other delivery.Ref, change func(delivery.Record) delivery.Record) {
		t.Helper()
		won := h.again(t, ended, h.succeed)
		won.InFlight = true
		recorded, _, err := h.Record(t.Context(), h.now, under(testReplica, []Write{
			{Event: ended.Ref, Changes: []Change{won}}, {Event: other.Ref, Changes: []Change{h.again(t, other, change)}},
		}))
		if all := found(t, recorded, err); len(all) > 0 {
			t.Fatalf("found %+v", all)
		}
	}
	end(r[0], r[1], h.drop)
	h.begins(t, r[2])
	end(r[2], r[1], h.retry) // it is before the one that has ended
	h.begins(t, r[1])
	end(r[1], r[0], h.retry)
	h.begins(t, r[0])
	end(r[0], r[1], h.retry)
	h.begins(t, r[1])
	end(r[1], r[3], h.drop)
	h.begins(t)
}

// The deliveries of an ordered subscriber wait until the first one is due. When it is cancelled, they wait no more.
func TestOrderedDeliveriesDoNotWaitForACancelledOne(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	sub := uuid.New()
	h.client.HSet(t.Context(), queues.EndpointKey(h.company, sub), "ordered", "1")
	r := h.deliver(t, sub, "", h.fail, h.queue)
	h.begins(t)
	h.mustWrite(t, Write{Event: r[0].Ref, Changes: []Change{h.again(t, r[0], h.drop)}})
	h.begins(t, r[1])
}
