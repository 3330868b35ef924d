package cards_test

import (
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/shopspring/decimal"

	"spendhook/storage"
	"spendhook/storage/cards"
	"spendhook/storage/lists"
	"spendhook/storage/storagetest"
)

func dec(text string) *decimal.Decimal {
	d := decimal.RequireFromString(text)
	return &d
}

func secs(n int) time.Duration { return time.Duration(n) * time.Second }

func request() cards.Request {
	return cards.Request{Type: "VIRTUAL", Alias: "Travel", UserUUID: ann, Threshold: dec("100.50"), Periodicity: "MONTHLY"}
}

func create(t *testing.T, s *cards.Store) cards.Card {
	t.Helper()
	return storagetest.Must(s.CreateCard(t.Context(), acme, request(), cards.Once{}))(t)
}

func TestContractCardTypeFromWhatWasAsked(t *testing.T) {
	t.Parallel()
	for name, setup := range databases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := setup(t)
			for _, c := range []struct{ kind, business, want string }{
				{"VIRTUAL", "", "MASTER_VIRTUAL"},
				{"virtual", "business", "MASTER_VIRTUAL"},
				{"PHYSICAL", "WORLD_ELITE", "MASTER_WORLD_ELITE"},
				{"physical", "world_elite", "MASTER_WORLD_ELITE"},
				{"PHYSICAL", "BUSINESS", "MASTER_CORPORATE"},
				{"PHYSICAL", "", "MASTER_CORPORATE"},
			} {
				r := request()
				r.Type, r.BusinessType, r.Periodicity = c.kind, c.business, "weekly"
				made := storagetest.Must(s.CreateCard(t.Context(), acme, r, cards.Once{}))(t)
				got := storagetest.Must(s.Card(t.Context(), acme, made.UUID))(t)
				if got.Type != c.want || got.Periodicity != "WEEKLY" || got.Status != cards.Active {
					t.Errorf("%s %s: %+v", c.kind, c.business, got)
				}
				if !got.Threshold.Equal(*dec("100.50")) || got.Currency != "EUR" || !got.IssuedAt.Equal(now) || got.HolderUUID != ann {
					t.Errorf("read back %+v", got)
				}
			}
		})
	}
}

func TestSpec22CardCreationRequestFields(t *testing.T) {
	t.Parallel()
	for name, setup := range databases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := setup(t)
			for field, breakIt := range map[string]func(*cards.Request){
				"type":         func(r *cards.Request) { r.Type = "VISA" },
				"alias":        func(r *cards.Request) { r.Alias = " \t" },
				"userUuid":     func(r *cards.Request) { r.UserUUID = uuid.Nil },
				"businessType": func(r *cards.Request) { r.BusinessType = "GOLD" },
				"periodicity":  func(r *cards.Request) { r.Periodicity = "YEARLY" },
				"threshold":    func(r *cards.Request) { r.Threshold = dec("1.001") },
			} {
				r := request()
				breakIt(&r)
				_, err := s.CreateCard(t.Context(), acme, r, cards.Once{})
				storagetest.WantInvalid(t, err, field)
			}
			r := request()
			r.Alias = "a\x00b"
			_, err := s.CreateCard(t.Context(), acme, r, cards.Once{})
			storagetest.WantInvalid(t, err, "alias")
			wantCards(t, s, 0)
		})
	}
}

func wantCards(t *testing.T, s *cards.Store, want int64) {
	t.Helper()
	_, total, err := s.Cards(t.Context(), cards.Filter{Company: &acme})
	if err != nil || total != want {
		t.Errorf("%d cards, %v, want %d", total, err, want)
	}
}

func TestContractThresholdLimits(t *testing.T) {
	t.Parallel()
	for name, setup := range databases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := setup(t)
			card := create(t, s)
			for _, amount := range []string{"0", "-1", "0.001", "1e-9999"} {
				_, err := s.SetCardThreshold(t.Context(), acme, card.UUID, *dec(amount))
				storagetest.WantInvalid(t, err, "threshold")
			}
			for _, amount := range []string{"1000.01", "1e9999", "92233720368547758.08"} {
				_, err := s.SetCardThreshold(t.Context(), acme, card.UUID, *dec(amount))
				storagetest.WantError(t, err, cards.ErrThresholdExceedsLimit)
				r := request()
				r.Threshold = dec(amount)
				_, err = s.CreateCard(t.Context(), acme, r, cards.Once{})
				storagetest.WantError(t, err, cards.ErrThresholdExceedsLimit)
			}
			for _, amount := range []string{"1000", "1000.00", "1000.0000", "0.01", "1e2"} {
				got := storagetest.Must(s.SetCardThreshold(t.Context(), acme, card.UUID, *dec(amount)))(t)
				if !got.Threshold.Equal(*dec(amount)) {
					t.Errorf("threshold = %s, want %s", got.Threshold, amount)
				}
			}
			r := request()
			r.UserUUID, r.Threshold = bo, dec("100.5") // yen have no decimals
			_, err := s.CreateCard(t.Context(), bolt, r, cards.Once{})
			storagetest.WantInvalid(t, err, "threshold")
		})
	}
}

func TestContractUnknownUserIsRefused(t *testing.T) {
	t.Parallel()
	for name, setup := range databases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := setup(t)
			for _, user := range []uuid.UUID{uuid.New(), bo, ivo} {
				r := request()
				r.UserUUID = user
				_, err := s.CreateCard(t.Context(), acme, r, cards.Once{})
				storagetest.WantError(t, err, cards.ErrUserNotFound)
			}
			_, err := s.CreateCard(t.Context(), uuid.New(), request(), cards.Once{})
			storagetest.WantError(t, err, cards.ErrUserNotFound)
			wantCards(t, s, 0)
		})
	}
}

func TestSpec31LockAndUnlock(t *testing.T) {
	t.Parallel()
	for name, setup := range databases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := setup(t)
			card := create(t, s)
			for _, lock := range []bool{true, true, false, false} {
				want := cards.Active
				if lock {
					want = cards.Blocked
				}
				if got := storagetest.Must(s.LockCard(t.Context(), acme, card.UUID, lock))(t); got.Status != want {
					t.Errorf("lock %t: %s", lock, got.Status)
				}
			}
			storagetest.Must(s.LockCard(t.Context(), acme, card.UUID, true))(t)
			_, err := s.SetCardThreshold(t.Context(), acme, card.UUID, *dec("5"))
			storagetest.WantError(t, err, cards.ErrNotActive)
		})
	}
}

func TestSpec31DeletedCardCannotBeRecovered(t *testing.T) {
	t.Parallel()
	for name, setup := range databases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := setup(t)
			card := create(t, s)
			for range 2 { // 204, again 204
				if err := s.CancelCard(t.Context(), acme, card.UUID); err != nil {
					t.Fatal(err)
				}
			}
			for _, lock := range []bool{true, false} {
				_, err := s.LockCard(t.Context(), acme, card.UUID, lock)
				storagetest.WantError(t, err, cards.ErrNotActive)
			}
			_, err := s.SetCardThreshold(t.Context(), acme, card.UUID, *dec("5"))
			storagetest.WantError(t, err, cards.ErrNotActive)
			if got := storagetest.Must(s.Card(t.Context(), acme, card.UUID))(t); got.Status != cards.Cancelled || !got.Threshold.Equal(*card.Threshold) {
				t.Errorf("card = %+v", got)
			}
		})
	}
}

func TestContractAnotherCompanysCardIsNotFound(t *testing.T) {
	t.Parallel()
	for name, setup := range databases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := setup(t)
			card := create(t, s)
			_, err := s.Card(t.Context(), bolt, card.UUID)
			storagetest.WantError(t, err, storage.ErrNotFound)
			_, err = s.LockCard(t.Context(), bolt, card.UUID, true)
			storagetest.WantError(t, err, storage.ErrNotFound)
			_, err = s.SetCardThreshold(t.Context(), bolt, card.UUID, *dec("5"))
			storagetest.WantError(t, err, storage.ErrNotFound)
			storagetest.WantError(t, s.CancelCard(t.Context(), bolt, card.UUID), storage.ErrNotFound)
			if got := storagetest.Must(s.Card(t.Context(), acme, card.UUID))(t); got.Status != cards.Active {
				t.Errorf("card = %+v", got)
			}
		})
	}
}

func TestContractCancelSeveralCards(t *testing.T) {
	t.Parallel()
	for name, setup := range databases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := setup(t)
			a, b, unknown := create(t, s), create(t, s), uuid.New()
			got := storagetest.Must(s.CancelCards(t.Context(), acme, []uuid.UUID{b.UUID, unknown, a.UUID, b.UUID}))(t)
			want := []cards.CancelResult{{b.UUID, true}, {unknown, false}, {a.UUID, true}, {b.UUID, true}}
			if !slices.Equal(got, want) {
				t.Errorf("results = %v, want %v", got, want)
			}
			_, err := s.CancelCards(t.Context(), acme, nil)
			storagetest.WantInvalid(t, err, "uuids")
			_, err = s.CancelCards(t.Context(), acme, make([]uuid.UUID, 101))
			storagetest.WantInvalid(t, err, "uuids")
			storagetest.Must(s.CancelCards(t.Context(), acme, make([]uuid.UUID, 100)))(t)
		})
	}
}

func TestSpec41FindAllCardsFilters(t *testing.T) {
	t.Parallel()
	for name, setup := range databases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := setup(t)
			for i := range 25 {
				r := request()
				r.Alias = strconv.Itoa(i)
				if i%5 == 0 {
					r.Type, r.Periodicity = "PHYSICAL", ""
				}
				storagetest.Must(s.CreateCard(t.Context(), acme, r, cards.Once{}))(t)
			}
			all, _, _ := s.Cards(t.Context(), cards.Filter{Company: &acme, Page: lists.Page{Size: 100}})
			storagetest.Must(s.LockCard(t.Context(), acme, all[7].UUID, true))(t)
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
				cards, total, err := s.Cards(t.Context(), c.filter)
				if err != nil || total != c.want || int64(len(cards)) != min(20, c.want) {
					t.Errorf("%s: %d of %d, %v, want %d", name, len(cards), total, err, c.want)
				}
			}
			pageCards(t, s, all)
		})
	}
}

// pageCards: the pages of 10 put together are the list.
func pageCards(t *testing.T, s *cards.Store, all []cards.Card) {
	t.Helper()
	var got []uuid.UUID
	for n := range 4 {
		page, total, err := s.Cards(t.Context(), cards.Filter{Company: &acme, Page: lists.Page{Number: n, Size: 10}})
		if err != nil || total != 25 {
			t.Fatalf("page %d: total %d, %v", n, total, err)
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
		t.Errorf("pages = %v, want %v", got, want)
	}
}

func TestSpec41UserUuidCannotBeCombinedWithUserErpId(t *testing.T) {
	t.Parallel()
	for name, setup := range databases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := setup(t)
			for field, f := range map[string]cards.Filter{
				"userErpId":   {UserUUID: &ann, UserERPID: "ERP-1"},
				"status":      {Status: "LOST"},
				"type":        {Type: "VIRTUAL"},
				"periodicity": {Periodicity: "HOURLY"},
				"page":        {Page: lists.Page{Number: -1}},
				"size":        {Page: lists.Page{Size: -1}},
				"username":    {Username: "a\x00"},
			} {
				_, _, err := s.Cards(t.Context(), f)
				storagetest.WantInvalid(t, err, field)
			}
		})
	}
}

// A threshold change and a lock that race with a cancellation never undo it,
// and a threshold never changes on a card that is not active.
func TestConcurrentChangesNeverLeaveAForbiddenState(t *testing.T) {
	t.Parallel()
	for name, setup := range databases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := setup(t)
			for range 15 {
				card := create(t, s)
				race(
					func() { _, _ = s.LockCard(t.Context(), acme, card.UUID, true) },
					func() { _, _ = s.SetCardThreshold(t.Context(), acme, card.UUID, *dec("1")) },
					func() { _, _ = s.SetCardThreshold(t.Context(), acme, card.UUID, *dec("2")) },
					func() {
						if err := s.CancelCard(t.Context(), acme, card.UUID); err != nil {
							t.Error(err)
						}
					},
					func() { _, _ = s.LockCard(t.Context(), acme, card.UUID, false) },
				)
				if got := storagetest.Must(s.Card(t.Context(), acme, card.UUID))(t); got.Status != cards.Cancelled {
					t.Fatalf("a cancelled card is %s", got.Status)
				}
			}
		})
	}
}

// Whoever is told that the threshold changed saw it change on an active card:
// once the lock has been answered, no change is.
func TestThresholdNeverChangesAfterTheLockWasAnswered(t *testing.T) {
	t.Parallel()
	for name, setup := range databases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := setup(t)
			for range 15 {
				card := create(t, s)
				var locked cards.Card
				race(
					func() { locked, _ = s.LockCard(t.Context(), acme, card.UUID, true) },
					func() { _, _ = s.SetCardThreshold(t.Context(), acme, card.UUID, *dec("1")) },
					func() { _, _ = s.SetCardThreshold(t.Context(), acme, card.UUID, *dec("2")) },
				)
				got := storagetest.Must(s.Card(t.Context(), acme, card.UUID))(t)
				if got.Status != cards.Blocked || !got.Threshold.Equal(*locked.Threshold) {
					t.Fatalf("answered %+v, then became %+v", locked, got)
				}
			}
		})
	}
}

func race(run ...func()) {
	var wg sync.WaitGroup
	for _, f := range run {
		wg.Go(f)
	}
	wg.Wait()
}
