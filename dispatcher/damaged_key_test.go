package dispatcher

import (
	"net/http"
	"testing"

	"github.com/google/uuid"

	"spendhook/dispatcher/delivery"
	"spendhook/internal/partition"
	"spendhook/internal/redistest"
)

// A company whose outcomes cannot be recorded, because a key of it is damaged, delays the outcomes of
// no other company. They are recorded when the key is repaired.
func TestDamagedKeyDelaysNoOutcomesOfOthers(t *testing.T) {
	t.Parallel()
	gate := make(chan struct{})
	h := build(t, redistest.New(t), noTimeout)
	slow, well := receive(t, func(int, http.ResponseWriter, *http.Request) { <-gate }), receive(t, nil)
	sub := h.subscribe(slow.URL)
	other := h.subscribeTo(uuid.New(), well.URL, "PAYMENT_PAID")
	h.start()
	ids := h.emit(20)
	eventually(t, func() bool { return slow.count() == len(ids) }, "attempts are under way")
	key := partition.Key(h.company, "c:"+h.company.String())
	repaired := h.client.Dump(t.Context(), key).Val()
	if err := h.client.Set(t.Context(), key, "damaged", 0).Err(); err != nil {
		t.Fatal(err)
	}
	close(gate)
	for range 5 {
		h.reachAll(h.emitOf(other.CompanyUUID, 5), other, delivery.StatusDelivered)
	}
	eventually(t, func() bool { return h.admission.Counts().Held == len(ids) }, "the outcomes of the others are written")
	if err := h.client.RestoreReplace(t.Context(), key, 0, repaired).Err(); err != nil {
		t.Fatal(err)
	}
	h.reachAll(ids, sub, delivery.StatusDelivered)
	eventually(t, func() bool { return h.admission.Counts().Held == 0 }, "all outcomes are written")
	slow.once(t, ids)
	eventually(t, func() bool { return h.records.lag() == 0 }, "the outcomes of the company are written with those of others again")
}
