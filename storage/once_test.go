package storage_test

import (
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"spendhook/storage"
	"spendhook/storage/storagetest"
)

var once = storage.Once{Key: [32]byte{1}, Fingerprint: [32]byte{2}}

// clocked is a database with the companies in it and a clock that can be put
// forward.
type clocked struct {
	*testing.T
	*storage.Store
	clock time.Time
}

// onBoth runs the test on each database.
func onBoth(t *testing.T, test func(*clocked)) {
	t.Helper()
	for name, options := range map[string]func(*testing.T) storage.Options{
		"sqlite":   func(t *testing.T) storage.Options { t.Helper(); return storage.Options{} },
		"postgres": func(t *testing.T) storage.Options { t.Helper(); return storage.Options{URL: storagetest.Postgres(t)} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h, o := &clocked{T: t, clock: now}, options(t)
			o.Now = func() time.Time { return h.clock }
			h.Store = open(t, o)
			loadCompanies(t, h.Store)
			test(h)
		})
	}
}

func TestOnceMakesOneCardAndReturnsItAsItWasMade(t *testing.T) {
	t.Parallel()
	onBoth(t, func(h *clocked) {
		r := request()
		r.Threshold, r.Periodicity = dec("12.50"), "daily"
		first := must(h.CreateCard(h.Context(), acme, r, once))(h)
		must(h.SetCardThreshold(h.Context(), acme, first.UUID, *dec("7")))(h)
		must(h.LockCard(h.Context(), acme, first.UUID, true))(h)
		h.clock = now.Add(23 * time.Hour)
		if again := must(h.CreateCard(h.Context(), acme, r, once))(h); !cmp.Equal(first, again) {
			h.Errorf("%s", cmp.Diff(first, again))
		}
		wantCards(h.T, h.Store, 1)

		other := once
		other.Fingerprint[0]++
		_, err := h.CreateCard(h.Context(), acme, r, other)
		wantError(h.T, err, storage.ErrKeyReused)
		_, err = h.CreateCardJob(h.Context(), acme, requests(1), other)
		wantError(h.T, err, storage.ErrKeyReused)
		wantCards(h.T, h.Store, 1)

		other = once
		other.Key[0]++
		must(h.CreateCard(h.Context(), acme, r, other))(h)
		wantCards(h.T, h.Store, 2)
	})
}

func TestOnceOfARefusedCardIsFreeAgain(t *testing.T) {
	t.Parallel()
	onBoth(t, func(h *clocked) {
		r := request()
		r.UserUUID = bo
		_, err := h.CreateCard(h.Context(), acme, r, once)
		wantError(h.T, err, storage.ErrUserNotFound)
		other := once
		other.Fingerprint[0]++
		must(h.CreateCard(h.Context(), acme, request(), other))(h)
		wantCards(h.T, h.Store, 1)
	})
}

func TestOnceLastsADay(t *testing.T) {
	t.Parallel()
	onBoth(t, func(h *clocked) {
		first := must(h.CreateCard(h.Context(), acme, request(), once))(h)
		h.clock = now.Add(24 * time.Hour)
		second := must(h.CreateCard(h.Context(), acme, request(), once))(h)
		if first.UUID == second.UUID || !second.IssuedAt.Equal(h.clock) {
			h.Errorf("%+v, then %+v", first, second)
		}
		if again := must(h.CreateCard(h.Context(), acme, request(), once))(h); again.UUID != second.UUID {
			h.Error("the second card was not recorded")
		}
		h.clock = now.Add(47 * time.Hour)
		if n := must(h.PurgeCreations(h.Context()))(h); n != 0 {
			h.Errorf("%d forgotten too early", n)
		}
		h.clock = now.Add(48 * time.Hour)
		if n := must(h.PurgeCreations(h.Context()))(h); n != 1 {
			h.Errorf("%d forgotten", n)
		}
		wantCards(h.T, h.Store, 2)
	})
}

func TestOnceStoresOneJob(t *testing.T) {
	t.Parallel()
	onBoth(t, func(h *clocked) {
		first := must(h.CreateCardJob(h.Context(), acme, requests(3), once))(h)
		createNext(h.T, h.Store, now)
		h.clock = now.Add(time.Hour)
		if again := must(h.CreateCardJob(h.Context(), acme, requests(3), once))(h); !cmp.Equal(first, again) {
			h.Errorf("%s", cmp.Diff(first, again))
		}
		if n := must(h.PendingItems(h.Context()))(h); n != 2 || first.Total != 3 {
			h.Errorf("%d items are pending of %d", n, first.Total)
		}
		_, err := h.CreateCard(h.Context(), acme, request(), storage.Once{Key: once.Key})
		wantError(h.T, err, storage.ErrKeyReused)
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
