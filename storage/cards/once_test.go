package cards_test

import (
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"spendhook/storage/cards"
	"spendhook/storage/storagetest"
)

var once = cards.Once{Key: [32]byte{1}, Fingerprint: [32]byte{2}}

func TestOnceMakesOneCardAndReturnsItAsItWasMade(t *testing.T) {
	t.Parallel()
	onBoth(t, func(h *clocked) {
		r := request()
		r.Threshold, r.Periodicity = dec("12.50"), "daily"
		first := storagetest.Must(h.CreateCard(h.Context(), acme, r, once))(h)
		storagetest.Must(h.SetCardThreshold(h.Context(), acme, first.UUID, *dec("7")))(h)
		storagetest.Must(h.LockCard(h.Context(), acme, first.UUID, true))(h)
		h.clock = now.Add(23 * time.Hour)
		if again := storagetest.Must(h.CreateCard(h.Context(), acme, r, once))(h); !cmp.Equal(first, again) {
			h.Errorf("%s", cmp.Diff(first, again))
		}
		wantCards(h.T, h.Store, 1)

		other := once
		other.Fingerprint[0]++
		_, err := h.CreateCard(h.Context(), acme, r, other)
		storagetest.WantError(h.T, err, cards.ErrKeyReused)
		_, err = h.CreateCardJob(h.Context(), acme, requests(1), other)
		storagetest.WantError(h.T, err, cards.ErrKeyReused)
		wantCards(h.T, h.Store, 1)

		other = once
		other.Key[0]++
		storagetest.Must(h.CreateCard(h.Context(), acme, r, other))(h)
		wantCards(h.T, h.Store, 2)
	})
}

func TestOnceOfARefusedCardIsFreeAgain(t *testing.T) {
	t.Parallel()
	onBoth(t, func(h *clocked) {
		r := request()
		r.UserUUID = bo
		_, err := h.CreateCard(h.Context(), acme, r, once)
		storagetest.WantError(h.T, err, cards.ErrUserNotFound)
		other := once
		other.Fingerprint[0]++
		storagetest.Must(h.CreateCard(h.Context(), acme, request(), other))(h)
		wantCards(h.T, h.Store, 1)
	})
}

func TestOnceLastsADay(t *testing.T) {
	t.Parallel()
	onBoth(t, func(h *clocked) {
		first := storagetest.Must(h.CreateCard(h.Context(), acme, request(), once))(h)
		h.clock = now.Add(24 * time.Hour)
		second := storagetest.Must(h.CreateCard(h.Context(), acme, request(), once))(h)
		if first.UUID == second.UUID || !second.IssuedAt.Equal(h.clock) {
			h.Errorf("%+v, then %+v", first, second)
		}
		if again := storagetest.Must(h.CreateCard(h.Context(), acme, request(), once))(h); again.UUID != second.UUID {
			h.Error("the second card was not recorded")
		}
		h.clock = now.Add(47 * time.Hour)
		if n := storagetest.Must(h.PurgeCreations(h.Context()))(h); n != 0 {
			h.Errorf("%d forgotten too early", n)
		}
		h.clock = now.Add(48 * time.Hour)
		if n := storagetest.Must(h.PurgeCreations(h.Context()))(h); n != 1 {
			h.Errorf("%d forgotten", n)
		}
		wantCards(h.T, h.Store, 2)
	})
}

func TestOnceStoresOneJob(t *testing.T) {
	t.Parallel()
	onBoth(t, func(h *clocked) {
		first := storagetest.Must(h.CreateCardJob(h.Context(), acme, requests(3), once))(h)
		createNext(h.T, h.Store, now)
		h.clock = now.Add(time.Hour)
		if again := storagetest.Must(h.CreateCardJob(h.Context(), acme, requests(3), once))(h); !cmp.Equal(first, again) {
			h.Errorf("%s", cmp.Diff(first, again))
		}
		if n := storagetest.Must(h.PendingItems(h.Context()))(h); n != 2 || first.Total != 3 {
			h.Errorf("%d items are pending of %d", n, first.Total)
		}
		_, err := h.CreateCard(h.Context(), acme, request(), cards.Once{Key: once.Key})
		storagetest.WantError(h.T, err, cards.ErrKeyReused)
	})
}

func TestOnceAtTheSameTime(t *testing.T) {
	t.Parallel()
	onBoth(t, func(h *clocked) {
		var all sync.WaitGroup
		made := make([]uuid.UUID, 8)
		for i := range made {
			all.Go(func() {
				card, err := h.CreateCard(h.Context(), acme, request(), once)
				if err != nil {
					h.Error(err)
				}
				made[i] = card.UUID
			})
		}
		all.Wait()
		for _, id := range made {
			if id != made[0] {
				h.Errorf("made %v", made)
			}
		}
		wantCards(h.T, h.Store, 1)
	})
}
