package cards_test

import (
	"maps"
	"slices"
	"strconv"
	"testing"

	"github.com/google/uuid"

	"spendhook/storage"
	"spendhook/storage/cards"
	"spendhook/storage/cards/cardstest"
	"spendhook/storage/storagetest"
)

func create(h *cardstest.Data) cards.Card {
	h.Helper()
	return storagetest.Must(h.CreateCard(h.Context(), acme, cardstest.Request(), cards.Once{}))(h)
}

func TestContractCardTypeFromWhatWasAsked(t *testing.T) {
	t.Parallel()
	cardstest.OnBoth(t, func(h *cardstest.Data) {
		for _, c := range []struct{ kind, business, want string }{
			{"VIRTUAL", "", "MASTER_VIRTUAL"},
			{"virtual", "business", "MASTER_VIRTUAL"},
			{"PHYSICAL", "WORLD_ELITE", "MASTER_WORLD_ELITE"},
			{"physical", "world_elite", "MASTER_WORLD_ELITE"},
			{"PHYSICAL", "BUSINESS", "MASTER_CORPORATE"},
			{"PHYSICAL", "", "MASTER_CORPORATE"},
		} {
			r := cardstest.Request()
			r.Type, r.BusinessType, r.Periodicity = c.kind, c.business, "weekly"
			made := storagetest.Must(h.CreateCard(h.Context(), acme, r, cards.Once{}))(h)
			got := storagetest.Must(h.Card(h.Context(), acme, made.UUID))(h)
			if got.Type != c.want || got.Periodicity != "WEEKLY" || got.Status != cards.Active {
				h.Errorf("%s %s: %+v", c.kind, c.business, got)
			}
			if !got.Threshold.Equal(*cardstest.Amount("100.50")) || got.Currency != "EUR" || !got.IssuedAt.Equal(now) || got.HolderUUID != ann {
				h.Errorf("read back %+v", got)
			}
		}
	})
}

func TestSpec22CardCreationRequestFields(t *testing.T) {
	t.Parallel()
	cardstest.OnBoth(t, func(h *cardstest.Data) {
		for field, breakIt := range map[string]func(*cards.Request){
			"type":         func(r *cards.Request) { r.Type = "VISA" },
			"alias":        func(r *cards.Request) { r.Alias = " \t" },
			"userUuid":     func(r *cards.Request) { r.UserUUID = uuid.Nil },
			"businessType": func(r *cards.Request) { r.BusinessType = "GOLD" },
			"periodicity":  func(r *cards.Request) { r.Periodicity = "YEARLY" },
			"threshold":    func(r *cards.Request) { r.Threshold = cardstest.Amount("1.001") },
		} {
			r := cardstest.Request()
			breakIt(&r)
			_, err := h.CreateCard(h.Context(), acme, r, cards.Once{})
			storagetest.WantInvalid(h.T, err, field)
		}
		r := cardstest.Request()
		r.Alias = "a\x00b"
		_, err := h.CreateCard(h.Context(), acme, r, cards.Once{})
		storagetest.WantInvalid(h.T, err, "alias")
		h.WantCards(0)
	})
}

func TestContractThresholdLimits(t *testing.T) {
	t.Parallel()
	cardstest.OnBoth(t, func(h *cardstest.Data) {
		card := create(h)
		for _, amount := range []string{"0", "-1", "0.001", "1e-9999"} {
			_, err := h.SetCardThreshold(h.Context(), acme, card.UUID, *cardstest.Amount(amount))
			storagetest.WantInvalid(h.T, err, "threshold")
		}
		for _, amount := range []string{"1000.01", "1e9999", "92233720368547758.08"} {
			_, err := h.SetCardThreshold(h.Context(), acme, card.UUID, *cardstest.Amount(amount))
			storagetest.WantError(h.T, err, cards.ErrThresholdExceedsLimit)
			r := cardstest.Request()
			r.Threshold = cardstest.Amount(amount)
			_, err = h.CreateCard(h.Context(), acme, r, cards.Once{})
			storagetest.WantError(h.T, err, cards.ErrThresholdExceedsLimit)
		}
		for _, amount := range []string{"1000", "1000.00", "1000.0000", "0.01", "1e2"} {
			got := storagetest.Must(h.SetCardThreshold(h.Context(), acme, card.UUID, *cardstest.Amount(amount)))(h)
			if !got.Threshold.Equal(*cardstest.Amount(amount)) {
				h.Errorf("threshold = %s, want %s", got.Threshold, amount)
			}
		}
		r := cardstest.Request()
		r.UserUUID, r.Threshold = bo, cardstest.Amount("100.5") // yen have no decimals
		_, err := h.CreateCard(h.Context(), bolt, r, cards.Once{})
		storagetest.WantInvalid(h.T, err, "threshold")
	})
}

func TestContractUnknownUserIsRefused(t *testing.T) {
	t.Parallel()
	cardstest.OnBoth(t, func(h *cardstest.Data) {
		for _, user := range []uuid.UUID{uuid.New(), bo, ivo} {
			r := cardstest.Request()
			r.UserUUID = user
			_, err := h.CreateCard(h.Context(), acme, r, cards.Once{})
			storagetest.WantError(h.T, err, cards.ErrUserNotFound)
		}
		for _, amount := range []string{"1", "1.2345"} { // a company without records has no currency
			r := cardstest.Request()
			r.Threshold = cardstest.Amount(amount)
			_, err := h.CreateCard(h.Context(), uuid.New(), r, cards.Once{})
			storagetest.WantError(h.T, err, cards.ErrUserNotFound)
		}
		h.WantCards(0)
	})
}

func TestSpec31LockAndUnlock(t *testing.T) {
	t.Parallel()
	cardstest.OnBoth(t, func(h *cardstest.Data) {
		card := create(h)
		for _, lock := range []bool{true, true, false, false} {
			want := cards.Active
			if lock {
				want = cards.Blocked
			}
			if got := storagetest.Must(h.LockCard(h.Context(), acme, card.UUID, lock))(h); got.Status != want {
				h.Errorf("lock %t: %s", lock, got.Status)
			}
		}
		storagetest.Must(h.LockCard(h.Context(), acme, card.UUID, true))(h)
		_, err := h.SetCardThreshold(h.Context(), acme, card.UUID, *cardstest.Amount("5"))
		storagetest.WantError(h.T, err, cards.ErrNotActive)
	})
}

func TestSpec31DeletedCardCannotBeRecovered(t *testing.T) {
	t.Parallel()
	cardstest.OnBoth(t, func(h *cardstest.Data) {
		card := create(h)
		for range 2 { // 204, again 204
			if err := h.CancelCard(h.Context(), acme, card.UUID); err != nil {
				h.Fatal(err)
			}
		}
		for _, lock := range []bool{true, false} {
			_, err := h.LockCard(h.Context(), acme, card.UUID, lock)
			storagetest.WantError(h.T, err, cards.ErrNotActive)
		}
		_, err := h.SetCardThreshold(h.Context(), acme, card.UUID, *cardstest.Amount("5"))
		storagetest.WantError(h.T, err, cards.ErrNotActive)
		if got := storagetest.Must(h.Card(h.Context(), acme, card.UUID))(h); got.Status != cards.Cancelled || !got.Threshold.Equal(*card.Threshold) {
			h.Errorf("card = %+v", got)
		}
	})
}

func TestContractAnotherCompanysCardIsNotFound(t *testing.T) {
	t.Parallel()
	cardstest.OnBoth(t, func(h *cardstest.Data) {
		card := create(h)
		_, err := h.Card(h.Context(), bolt, card.UUID)
		storagetest.WantError(h.T, err, storage.ErrNotFound)
		_, err = h.LockCard(h.Context(), bolt, card.UUID, true)
		storagetest.WantError(h.T, err, storage.ErrNotFound)
		_, err = h.SetCardThreshold(h.Context(), bolt, card.UUID, *cardstest.Amount("5"))
		storagetest.WantError(h.T, err, storage.ErrNotFound)
		storagetest.WantError(h.T, h.CancelCard(h.Context(), bolt, card.UUID), storage.ErrNotFound)
		if got := storagetest.Must(h.Card(h.Context(), acme, card.UUID))(h); got.Status != cards.Active {
			h.Errorf("card = %+v", got)
		}
	})
}

func TestContractCancelSeveralCards(t *testing.T) {
	t.Parallel()
	cardstest.OnBoth(t, func(h *cardstest.Data) {
		a, b, unknown := create(h), create(h), uuid.New()
		got := storagetest.Must(h.CancelCards(h.Context(), acme, []uuid.UUID{b.UUID, unknown, a.UUID, b.UUID}))(h)
		want := map[uuid.UUID]bool{a.UUID: true, b.UUID: true}
		if !maps.Equal(got, want) {
			h.Errorf("results = %v, want %v", got, want)
		}
		_, err := h.CancelCards(h.Context(), acme, nil)
		storagetest.WantInvalid(h.T, err, "uuids")
		_, err = h.CancelCards(h.Context(), acme, make([]uuid.UUID, 101))
		storagetest.WantInvalid(h.T, err, "uuids")
		storagetest.Must(h.CancelCards(h.Context(), acme, make([]uuid.UUID, 100)))(h)
	})
}

func TestSpec41FindAllCardsFilters(t *testing.T) {
	t.Parallel()
	cardstest.OnBoth(t, func(h *cardstest.Data) {
		for i := range 25 {
			r := cardstest.Request()
			r.Alias = strconv.Itoa(i)
			if i%5 == 0 {
				r.Type, r.Periodicity = "PHYSICAL", ""
			}
			storagetest.Must(h.CreateCard(h.Context(), acme, r, cards.Once{}))(h)
		}
		all, _, _ := h.Cards(h.Context(), cards.Filter{Company: &acme, Page: storage.Page{Size: 100}})
		storagetest.Must(h.LockCard(h.Context(), acme, all[7].UUID, true))(h)
		other := uuid.New()
		for name, c := range map[string]struct {
			filter cards.Filter
			want   int64
		}{
			"all":               {cards.Filter{Company: &acme}, 25},
			"platform":          {cards.Filter{}, 25},
			"other company":     {cards.Filter{Company: &bolt}, 0},
			"userUuid":          {cards.Filter{Company: &acme, UserUUID: &ann}, 25},
			"unknown userUuid":  {cards.Filter{Company: &acme, UserUUID: &other}, 0},
			"username":          {cards.Filter{Company: &acme, Username: "ann"}, 25},
			"username is exact": {cards.Filter{Company: &acme, Username: "an"}, 0},
			"userErpId":         {cards.Filter{Company: &acme, UserERPID: "ERP-1"}, 25},
			"other userErpId":   {cards.Filter{Company: &acme, UserERPID: "ERP-2"}, 0},
			"status":            {cards.Filter{Company: &acme, Status: "blocked"}, 1},
			"type":              {cards.Filter{Company: &acme, Type: "MASTER_CORPORATE"}, 5},
			"periodicity":       {cards.Filter{Company: &acme, Periodicity: "MONTHLY"}, 20},
			"together":          {cards.Filter{Company: &acme, Username: "ann", Type: "MASTER_VIRTUAL", Status: "ACTIVE", Periodicity: "monthly"}, 0},
		} {
			if name == "together" {
				c.want = 20
				if all[7].Type == "MASTER_VIRTUAL" {
					c.want = 19
				}
			}
			cards, total, err := h.Cards(h.Context(), c.filter)
			if err != nil || total != c.want || int64(len(cards)) != min(20, c.want) {
				h.Errorf("%s: %d of %d, %v, want %d", name, len(cards), total, err, c.want)
			}
		}
		pageCards(h, all)
	})
}

// pageCards: the pages of 10 put together are the list.
func pageCards(h *cardstest.Data, all []cards.Card) {
	h.Helper()
	var got []uuid.UUID
	for n := range 4 {
		page, total, err := h.Cards(h.Context(), cards.Filter{Company: &acme, Page: storage.Page{Number: n, Size: 10}})
		if err != nil || total != 25 {
			h.Fatalf("page %d: total %d, %v", n, total, err)
		}
		for _, c := range page {
			got = append(got, c.UUID)
		}
	}
	var want []uuid.UUID
	for _, c := range all {
		want = append(want, c.UUID)
	}
	if !slices.Equal(got, want) {
		h.Errorf("pages = %v, want %v", got, want)
	}
}

func TestSpec41UserUuidCannotBeCombinedWithUserErpId(t *testing.T) {
	t.Parallel()
	cardstest.OnBoth(t, func(h *cardstest.Data) {
		for field, f := range map[string]cards.Filter{
			"userErpId": {UserUUID: &ann, UserERPID: "ERP-1"},
			"username":  {Username: "a\x00"},
		} {
			_, _, err := h.Cards(h.Context(), f)
			storagetest.WantInvalid(h.T, err, field)
		}
	})
}

// A threshold change and a lock that race with a cancellation never undo it,
// and a threshold never changes on a card that is not active.
func TestConcurrentChangesNeverLeaveAForbiddenState(t *testing.T) {
	t.Parallel()
	cardstest.OnBoth(t, func(h *cardstest.Data) {
		for range 15 {
			card := create(h)
			storagetest.Race(
				func() { _, _ = h.LockCard(h.Context(), acme, card.UUID, true) },
				func() { _, _ = h.SetCardThreshold(h.Context(), acme, card.UUID, *cardstest.Amount("1")) },
				func() { _, _ = h.SetCardThreshold(h.Context(), acme, card.UUID, *cardstest.Amount("2")) },
				func() {
					if err := h.CancelCard(h.Context(), acme, card.UUID); err != nil {
						h.Error(err)
					}
				},
				func() { _, _ = h.LockCard(h.Context(), acme, card.UUID, false) },
			)
			if got := storagetest.Must(h.Card(h.Context(), acme, card.UUID))(h); got.Status != cards.Cancelled {
				h.Fatalf("a cancelled card is %s", got.Status)
			}
		}
	})
}

// After the answer to a lock, the threshold of the card does not change any more.
func TestThresholdNeverChangesAfterTheLockWasAnswered(t *testing.T) {
	t.Parallel()
	cardstest.OnBoth(t, func(h *cardstest.Data) {
		for range 15 {
			card := create(h)
			var locked cards.Card
			storagetest.Race(
				func() { locked, _ = h.LockCard(h.Context(), acme, card.UUID, true) },
				func() { _, _ = h.SetCardThreshold(h.Context(), acme, card.UUID, *cardstest.Amount("1")) },
				func() { _, _ = h.SetCardThreshold(h.Context(), acme, card.UUID, *cardstest.Amount("2")) },
			)
			got := storagetest.Must(h.Card(h.Context(), acme, card.UUID))(h)
			if got.Status != cards.Blocked || !got.Threshold.Equal(*locked.Threshold) {
				h.Fatalf("answered %+v, then became %+v", locked, got)
			}
		}
	})
}
