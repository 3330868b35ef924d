package cards_test

import (
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"spendhook/storage/cards"
	"spendhook/storage/cards/cardstest"
	"spendhook/storage/storagetest"
)

var once = cards.Once{Key: [32]byte{1}, Fingerprint: [32]byte{2}}

func TestOnceMakesOneCardAndReturnsItAsItWasMade(t *testing.T) {
	t.Parallel()
	cardstest.OnBoth(t, func(h *cardstest.Data) {
		r := cardstest.Request()
		r.Threshold, r.Periodicity = cardstest.Amount("12.50"), "daily"
		first := storagetest.Must(h.CreateCard(h.Context(), acme, r, once))(h)
		storagetest.Must(h.SetCardThreshold(h.Context(), acme, first.UUID, *cardstest.Amount("7")))(h)
		storagetest.Must(h.LockCard(h.Context(), acme, first.UUID, true))(h)
		h.Clock = now.Add(23 * time.Hour)
		if again := storagetest.Must(h.CreateCard(h.Context(), acme, r, once))(h); !cmp.Equal(first, again) {
			h.Errorf("%s", cmp.Diff(first, again))
		}
		h.WantCards(1)

		other := once
		other.Fingerprint[0]++
		_, err := h.CreateCard(h.Context(), acme, r, other)
		storagetest.WantError(h.T, err, cards.ErrKeyReused)
		_, err = h.CreateCardJob(h.Context(), acme, cardstest.Requests(1), other)
		storagetest.WantError(h.T, err, cards.ErrKeyReused)
		h.WantCards(1)

		other = once
		other.Key[0]++
		storagetest.Must(h.CreateCard(h.Context(), acme, r, other))(h)
		h.WantCards(2)
	})
}

func TestOnceOfARefusedCardIsFreeAgain(t *testing.T) {
	t.Parallel()
	cardstest.OnBoth(t, func(h *cardstest.Data) {
		r := cardstest.Request()
		r.UserUUID = bo
		_, err := h.CreateCard(h.Context(), acme, r, once)
		storagetest.WantError(h.T, err, cards.ErrUserNotFound)
		other := once
		other.Fingerprint[0]++
		storagetest.Must(h.CreateCard(h.Context(), acme, cardstest.Request(), other))(h)
		h.WantCards(1)
	})
}

func TestOnceLastsADay(t *testing.T) {
	t.Parallel()
	cardstest.OnBoth(t, func(h *cardstest.Data) {
		first := storagetest.Must(h.CreateCard(h.Context(), acme, cardstest.Request(), once))(h)
		h.Clock = now.Add(24 * time.Hour)
		second := storagetest.Must(h.CreateCard(h.Context(), acme, cardstest.Request(), once))(h)
		if first.UUID == second.UUID || !second.IssuedAt.Equal(h.Clock) {
			h.Errorf("%+v, then %+v", first, second)
		}
		if again := storagetest.Must(h.CreateCard(h.Context(), acme, cardstest.Request(), once))(h); again.UUID != second.UUID {
			h.Error("the second card was not recorded")
		}
		h.Clock = now.Add(47 * time.Hour)
		if n := storagetest.Must(h.Purge(h.Context()))(h); n != 0 {
			h.Errorf("%d forgotten too early", n)
		}
		h.Clock = now.Add(48 * time.Hour)
		if n := storagetest.Must(h.Purge(h.Context()))(h); n != 1 {
			h.Errorf("%d forgotten", n)
		}
		h.WantCards(2)
	})
}

func TestOnceStoresOneJob(t *testing.T) {
	t.Parallel()
	cardstest.OnBoth(t, func(h *cardstest.Data) {
		first := storagetest.Must(h.CreateCardJob(h.Context(), acme, cardstest.Requests(3), once))(h)
		h.CreateNext()
		h.Clock = now.Add(time.Hour)
		if again := storagetest.Must(h.CreateCardJob(h.Context(), acme, cardstest.Requests(3), once))(h); !cmp.Equal(first, again) {
			h.Errorf("%s", cmp.Diff(first, again))
		}
		if n := storagetest.Must(h.PendingItems(h.Context()))(h); n != 2 || first.Total != 3 {
			h.Errorf("%d items are pending of %d", n, first.Total)
		}
		_, err := h.CreateCard(h.Context(), acme, cardstest.Request(), cards.Once{Key: once.Key})
		storagetest.WantError(h.T, err, cards.ErrKeyReused)
	})
}

func TestOnceAtTheSameTime(t *testing.T) {
	t.Parallel()
	cardstest.OnBoth(t, func(h *cardstest.Data) {
		var all sync.WaitGroup
		made := make([]uuid.UUID, 8)
		for i := range made {
			all.Go(func() {
				card, err := h.CreateCard(h.Context(), acme, cardstest.Request(), once)
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
		h.WantCards(1)
	})
}
