package storage_test

import (
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/shopspring/decimal"

	"spendhook/storage"
)

func dec(text string) *decimal.Decimal {
	d := decimal.RequireFromString(text)
	return &d
}

func secs(n int) time.Duration { return time.Duration(n) * time.Second }

func request() storage.CardRequest {
	return storage.CardRequest{Type: "VIRTUAL", Alias: "Travel", UserUUID: ann, Threshold: dec("100.50"), Periodicity: "MONTHLY"}
}

func create(t *testing.T, s *storage.Store) storage.Card {
	t.Helper()
	return must(s.CreateCard(t.Context(), acme, request(), storage.Once{}))(t)
}

func TestContractCardTypeFromWhatWasAsked(t *testing.T) {
	t.Parallel()
	for name, setup := range databases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := setup(t)
			loadCompanies(t, s)
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
				made := must(s.CreateCard(t.Context(), acme, r, storage.Once{}))(t)
				got := must(s.Card(t.Context(), acme, made.UUID))(t)
				if got.Type != c.want || got.Periodicity != "WEEKLY" || got.Status != storage.CardActive {
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
			loadCompanies(t, s)
			for field, breakIt := range map[string]func(*storage.CardRequest){
				"type":         func(r *storage.CardRequest) { r.Type = "VISA" },
				"alias":        func(r *storage.CardRequest) { r.Alias = " \t" },
				"userUuid":     func(r *storage.CardRequest) { r.UserUUID = uuid.Nil },
				"businessType": func(r *storage.CardRequest) { r.BusinessType = "GOLD" },
				"periodicity":  func(r *storage.CardRequest) { r.Periodicity = "YEARLY" },
				"threshold":    func(r *storage.CardRequest) { r.Threshold = dec("1.001") },
			} {
				r := request()
				breakIt(&r)
				_, err := s.CreateCard(t.Context(), acme, r, storage.Once{})
				wantInvalid(t, err, field)
			}
			r := request()
			r.Alias = "a\x00b"
			_, err := s.CreateCard(t.Context(), acme, r, storage.Once{})
			wantInvalid(t, err, "alias")
			wantCards(t, s, 0)
		})
	}
}

func wantCards(t *testing.T, s *storage.Store, want int64) {
	t.Helper()
	_, total, err := s.Cards(t.Context(), storage.CardFilter{Company: &acme})
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
			loadCompanies(t, s)
			card := create(t, s)
			for _, amount := range []string{"0", "-1", "0.001", "1e-9999"} {
				_, err := s.SetCardThreshold(t.Context(), acme, card.UUID, *dec(amount))
				wantInvalid(t, err, "threshold")
			}
			for _, amount := range []string{"1000.01", "1e9999", "92233720368547758.08"} {
				_, err := s.SetCardThreshold(t.Context(), acme, card.UUID, *dec(amount))
				wantError(t, err, storage.ErrThresholdExceedsLimit)
				r := request()
				r.Threshold = dec(amount)
				_, err = s.CreateCard(t.Context(), acme, r, storage.Once{})
				wantError(t, err, storage.ErrThresholdExceedsLimit)
			}
			for _, amount := range []string{"1000", "1000.00", "1000.0000", "0.01", "1e2"} {
				got := must(s.SetCardThreshold(t.Context(), acme, card.UUID, *dec(amount)))(t)
				if !got.Threshold.Equal(*dec(amount)) {
					t.Errorf("threshold = %s, want %s", got.Threshold, amount)
				}
			}
			r := request()
			r.UserUUID, r.Threshold = bo, dec("100.5") // yen have no decimals
			_, err := s.CreateCard(t.Context(), bolt, r, storage.Once{})
			wantInvalid(t, err, "threshold")
		})
	}
}

func TestContractUnknownUserIsRefused(t *testing.T) {
	t.Parallel()
	for name, setup := range databases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := setup(t)
			loadCompanies(t, s)
			for _, user := range []uuid.UUID{uuid.New(), bo, ivo} {
				r := request()
				r.UserUUID = user
				_, err := s.CreateCard(t.Context(), acme, r, storage.Once{})
				wantError(t, err, storage.ErrUserNotFound)
			}
			_, err := s.CreateCard(t.Context(), uuid.New(), request(), storage.Once{})
			wantError(t, err, storage.ErrUserNotFound)
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
			loadCompanies(t, s)
			card := create(t, s)
			for _, lock := range []bool{true, true, false, false} {
				want := storage.CardActive
				if lock {
					want = storage.CardBlocked
				}
				if got := must(s.LockCard(t.Context(), acme, card.UUID, lock))(t); got.Status != want {
					t.Errorf("lock %t: %s", lock, got.Status)
				}
			}
			must(s.LockCard(t.Context(), acme, card.UUID, true))(t)
			_, err := s.SetCardThreshold(t.Context(), acme, card.UUID, *dec("5"))
			wantError(t, err, storage.ErrCardNotActive)
		})
	}
}

func TestSpec31DeletedCardCannotBeRecovered(t *testing.T) {
	t.Parallel()
	for name, setup := range databases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := setup(t)
			loadCompanies(t, s)
			card := create(t, s)
			for range 2 { // 204, again 204
				if err := s.CancelCard(t.Context(), acme, card.UUID); err != nil {
					t.Fatal(err)
				}
			}
			for _, lock := range []bool{true, false} {
				_, err := s.LockCard(t.Context(), acme, card.UUID, lock)
				wantError(t, err, storage.ErrCardNotActive)
			}
			_, err := s.SetCardThreshold(t.Context(), acme, card.UUID, *dec("5"))
			wantError(t, err, storage.ErrCardNotActive)
			if got := must(s.Card(t.Context(), acme, card.UUID))(t); got.Status != storage.CardCancelled || !got.Threshold.Equal(*card.Threshold) {
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
			loadCompanies(t, s)
			card := create(t, s)
			_, err := s.Card(t.Context(), bolt, card.UUID)
			wantError(t, err, storage.ErrNotFound)
			_, err = s.LockCard(t.Context(), bolt, card.UUID, true)
			wantError(t, err, storage.ErrNotFound)
			_, err = s.SetCardThreshold(t.Context(), bolt, card.UUID, *dec("5"))
			wantError(t, err, storage.ErrNotFound)
			wantError(t, s.CancelCard(t.Context(), bolt, card.UUID), storage.ErrNotFound)
			if got := must(s.Card(t.Context(), acme, card.UUID))(t); got.Status != storage.CardActive {
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
			loadCompanies(t, s)
			a, b, unknown := create(t, s), create(t, s), uuid.New()
			got := must(s.CancelCards(t.Context(), acme, []uuid.UUID{b.UUID, unknown, a.UUID, b.UUID}))(t)
			want := []storage.CancelResult{{b.UUID, true}, {unknown, false}, {a.UUID, true}, {b.UUID, true}}
			if !slices.Equal(got, want) {
				t.Errorf("results = %v, want %v", got, want)
			}
			_, err := s.CancelCards(t.Context(), acme, nil)
			wantInvalid(t, err, "uuids")
			_, err = s.CancelCards(t.Context(), acme, make([]uuid.UUID, 101))
			wantInvalid(t, err, "uuids")
			must(s.CancelCards(t.Context(), acme, make([]uuid.UUID, 100)))(t)
		})
	}
}

func TestSpec41FindAllCardsFilters(t *testing.T) {
	t.Parallel()
	for name, setup := range databases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := setup(t)
			loadCompanies(t, s)
			for i := range 25 {
				r := request()
				r.Alias = strconv.Itoa(i)
				if i%5 == 0 {
					r.Type, r.Periodicity = "PHYSICAL", ""
				}
				must(s.CreateCard(t.Context(), acme, r, storage.Once{}))(t)
			}
			all, _, _ := s.Cards(t.Context(), storage.CardFilter{Company: &acme, Page: storage.Page{Size: 100}})
			must(s.LockCard(t.Context(), acme, all[7].UUID, true))(t)
			other := uuid.New()
			for name, c := range map[string]struct {
				filter storage.CardFilter
				want   int64
			}{
				"all":               {storage.CardFilter{Company: &acme}, 25},
				"platform":          {storage.CardFilter{}, 25},
				"other company":     {storage.CardFilter{Company: &bolt}, 0},
				"userUuid":          {storage.CardFilter{Company: &acme, UserUUID: &ann}, 25},
				"unknown userUuid":  {storage.CardFilter{Company: &acme, UserUUID: &other}, 0},
				"username":          {storage.CardFilter{Company: &acme, Username: "ann"}, 25},
				"username is exact": {storage.CardFilter{Company: &acme, Username: "an"}, 0},
				"userErpId":         {storage.CardFilter{Company: &acme, UserERPID: "ERP-1"}, 25},
				"other userErpId":   {storage.CardFilter{Company: &acme, UserERPID: "ERP-2"}, 0},
				"status":            {storage.CardFilter{Company: &acme, Status: "blocked"}, 1},
				"type":              {storage.CardFilter{Company: &acme, Type: "MASTER_CORPORATE"}, 5},
				"periodicity":       {storage.CardFilter{Company: &acme, Periodicity: "MONTHLY"}, 20},
				"together":          {storage.CardFilter{Company: &acme, Username: "ann", Type: "MASTER_VIRTUAL", Status: "ACTIVE", Periodicity: "monthly"}, 0},
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
func pageCards(t *testing.T, s *storage.Store, all []storage.Card) {
	t.Helper()
	var got []uuid.UUID
	for n := range 4 {
		page, total, err := s.Cards(t.Context(), storage.CardFilter{Company: &acme, Page: storage.Page{Number: n, Size: 10}})
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
			for field, f := range map[string]storage.CardFilter{
				"userErpId":   {UserUUID: &ann, UserERPID: "ERP-1"},
				"status":      {Status: "LOST"},
				"type":        {Type: "VIRTUAL"},
				"periodicity": {Periodicity: "HOURLY"},
				"page":        {Page: storage.Page{Number: -1}},
				"size":        {Page: storage.Page{Size: -1}},
				"username":    {Username: "a\x00"},
			} {
				_, _, err := s.Cards(t.Context(), f)
				wantInvalid(t, err, field)
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
			loadCompanies(t, s)
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
				if got := must(s.Card(t.Context(), acme, card.UUID))(t); got.Status != storage.CardCancelled {
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
			loadCompanies(t, s)
			for range 15 {
				card := create(t, s)
				var locked storage.Card
				race(
					func() { locked, _ = s.LockCard(t.Context(), acme, card.UUID, true) },
					func() { _, _ = s.SetCardThreshold(t.Context(), acme, card.UUID, *dec("1")) },
					func() { _, _ = s.SetCardThreshold(t.Context(), acme, card.UUID, *dec("2")) },
				)
				got := must(s.Card(t.Context(), acme, card.UUID))(t)
				if got.Status != storage.CardBlocked || !got.Threshold.Equal(*locked.Threshold) {
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
