package cards_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"spendhook/storage"
	"spendhook/storage/cards"
	"spendhook/storage/storagetest"
)

// requests asks for n cards; each index in doomed is for an unknown user.
func requests(n int, doomed ...int) []cards.Request {
	list := make([]cards.Request, n)
	for i := range list {
		list[i] = request()
		list[i].Alias = fmt.Sprintf("card %d", i)
	}
	for _, i := range doomed {
		list[i].UserUUID = bo
	}
	return list
}

func TestContractBulkCreateStoresTheJobBeforeAnyWork(t *testing.T) {
	t.Parallel()
	for name, setup := range databases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := setup(t)
			made := storagetest.Must(s.CreateCardJob(t.Context(), acme, requests(3), cards.Once{}))(t)
			job := storagetest.Must(s.CardJob(t.Context(), acme, made.UUID))(t)
			if job.Status != cards.JobQueued || job.Total != 3 || len(job.Items) != 3 || job.FinishedAt != nil || !job.CreatedAt.Equal(now) {
				t.Errorf("job = %+v", job)
			}
			for i, item := range job.Items {
				if item.Index != i || item.Status != cards.ItemPending || item.RequestUUID != made.Items[i].RequestUUID || item.CompanyUUID != acme {
					t.Errorf("item = %+v", item)
				}
			}
			wantCards(t, s, 0)
			_, err := s.CardJob(t.Context(), bolt, made.UUID)
			storagetest.WantError(t, err, storage.ErrNotFound)
		})
	}
}

func TestContractShapeErrorsRefuseTheWholeBulk(t *testing.T) {
	t.Parallel()
	for name, setup := range databases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := setup(t)
			bad := requests(5)
			bad[3].Threshold = dec("1.005")
			for field, list := range map[string][]cards.Request{
				"cardsRequests":              {},
				"/cardsRequests/3/threshold": bad,
			} {
				_, err := s.CreateCardJob(t.Context(), acme, list, cards.Once{})
				storagetest.WantInvalid(t, err, field)
			}
			_, err := s.CreateCardJob(t.Context(), acme, requests(501), cards.Once{})
			storagetest.WantInvalid(t, err, "cardsRequests")
			if n := storagetest.Must(s.PendingItems(t.Context()))(t); n != 0 {
				t.Errorf("%d items are pending", n)
			}
			storagetest.Must(s.CreateCardJob(t.Context(), acme, requests(500), cards.Once{}))(t)
		})
	}
}

func TestContractEachItemEndsInExactlyOneOutcome(t *testing.T) {
	t.Parallel()
	for name, setup := range databases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := setup(t)
			list := requests(4, 1)
			list[2].Threshold = dec("1e9999")
			job := storagetest.Must(s.CreateCardJob(t.Context(), acme, list, cards.Once{}))(t)
			for i, code := range []string{"", "USER_NOT_FOUND", "THRESHOLD_EXCEEDS_LIMIT", ""} {
				item := createNext(t, s, now)
				if item.Index != i || item.ErrorCode != code || (item.CardUUID == nil) != (code != "") || (item.ErrorMessage == "") != (code == "") {
					t.Errorf("item %d = %+v", i, item)
				}
				if got := storagetest.Must(s.CardJob(t.Context(), acme, job.UUID))(t); i < 3 && got.Status != cards.JobRunning {
					t.Errorf("after item %d the job is %s", i, got.Status)
				}
			}
			done := storagetest.Must(s.CardJob(t.Context(), acme, job.UUID))(t)
			if done.Status != cards.JobCompleted || done.Succeeded != 2 || done.Failed != 2 || done.FinishedAt == nil {
				t.Errorf("job = %+v", done)
			}
			card := storagetest.Must(s.Card(t.Context(), acme, *done.Items[3].CardUUID))(t)
			if card.Name != "card 3" || card.Type != "MASTER_VIRTUAL" || card.Periodicity != "MONTHLY" || !card.Threshold.Equal(*dec("100.5")) {
				t.Errorf("card = %+v", card)
			}
			wantCards(t, s, 2)
			if item, found, err := s.CreateNextCard(t.Context(), now); found || err != nil {
				t.Errorf("item = %+v, %v", item, err)
			}
		})
	}
}

func TestWorkersAtTheSameTimeShareTheItems(t *testing.T) {
	t.Parallel()
	for name, setup := range databases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := setup(t)
			storagetest.Must(s.CreateCardJob(t.Context(), acme, requests(10, 4), cards.Once{}))(t)
			var done sync.Map
			var run []func()
			for range 8 {
				run = append(run, func() {
					for {
						item, found, err := s.CreateNextCard(t.Context(), now)
						if err != nil || !found {
							if err != nil {
								t.Error(err)
							}
							return
						}
						if _, again := done.LoadOrStore(item.Index, true); again {
							t.Errorf("item %d was worked on twice", item.Index)
						}
					}
				})
			}
			race(run...)
			wantCards(t, s, 9)
			if out := storagetest.Must(s.PendingOutcomes(t.Context(), 100))(t); len(out) != 10 {
				t.Errorf("%d outcomes, want 10", len(out))
			}
		})
	}
}

// createNext works on an item that there must be.
func createNext(t *testing.T, s *cards.Store, now time.Time) cards.Item {
	t.Helper()
	item, found, err := s.CreateNextCard(t.Context(), now)
	if err != nil || !found {
		t.Fatalf("found %v, %v", found, err)
	}
	return item
}

// However many items one company queued first, another's come in turn, and each
// company's in the order of its jobs.
func TestCompaniesAreServedInTurn(t *testing.T) {
	t.Parallel()
	onBoth(t, func(h *clocked) {
		jobs := map[uuid.UUID]int{}
		for i, company := range []uuid.UUID{acme, acme, acme, bolt, acme, bolt} {
			h.clock = now.Add(secs(i))
			list := slices.Repeat([]cards.Request{{Type: "VIRTUAL", Alias: "a", UserUUID: ann}}, 3)
			jobs[storagetest.Must(h.CreateCardJob(h.Context(), company, list, cards.Once{}))(h).UUID] = i
		}
		var order []string
		for range 18 {
			item := createNext(h.T, h.Store, now)
			order = append(order, fmt.Sprint(jobs[item.JobUUID], ".", item.Index))
		}
		want := "0.0 3.0 0.1 3.1 0.2 3.2 1.0 5.0 1.1 5.1 1.2 5.2 2.0 2.1 2.2 4.0 4.1 4.2"
		if got := strings.Join(order, " "); got != want {
			h.Errorf("order %s\nwant  %s", got, want)
		}
	})
}

func TestOutcomesArePendingUntilPublished(t *testing.T) {
	t.Parallel()
	for name, setup := range databases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := setup(t)
			storagetest.Must(s.CreateCardJob(t.Context(), acme, requests(3, 1), cards.Once{}))(t)
			var finished []cards.Item
			for i := range 3 {
				finished = append(finished, createNext(t, s, now.Add(secs(i))))
			}
			out := storagetest.Must(s.PendingOutcomes(t.Context(), 2))(t)
			if len(out) != 2 || out[1].ErrorCode != "USER_NOT_FOUND" || out[0].CompanyUUID != acme || *out[0].CardUUID != *finished[0].CardUUID {
				t.Errorf("outcomes = %+v", out)
			}
			for _, want := range []int{2, 0} {
				marked := storagetest.Must(s.MarkPublished(t.Context(), out[0].RequestUUID, out[1].RequestUUID))(t)
				if len(marked) != want || want > 0 && !marked[out[0].RequestUUID] {
					t.Errorf("marked %v, want %d", marked, want)
				}
			}
			left := storagetest.Must(s.PendingOutcomes(t.Context(), 100))(t)
			if len(left) != 1 || left[0].Index != 2 {
				t.Errorf("left = %+v", left)
			}
		})
	}
}

func TestAJobEndsOnce(t *testing.T) {
	t.Parallel()
	onBoth(t, func(h *clocked) {
		for round := range 20 {
			storagetest.Must(h.CreateCardJob(h.Context(), acme, requests(4), cards.Once{}))(h)
			storagetest.Must(h.CreateCardJob(h.Context(), acme, requests(1), cards.Once{}))(h)
			for i := range 4 {
				createNext(h.T, h.Store, now.Add(secs(i)))
			}
			var ended atomic.Int64
			end := func() {
				for _, job := range storagetest.Must(h.EndJobs(h.Context()))(h) {
					ended.Add(1)
					if !job.CreatedAt.Equal(now) || job.FinishedAt.Before(now) {
						h.Errorf("job = %+v", job)
					}
				}
			}
			end()
			before := ended.Load() // the order of two jobs of one time is not given
			createNext(h.T, h.Store, now.Add(secs(9)))
			race(end, end, end, end)
			if n := ended.Load(); before > 1 || n != 2 {
				h.Errorf("round %d: ended %d jobs, of which %d at first", round, n, before)
			}
		}
	})
}

func TestPendingItemsAreCounted(t *testing.T) {
	t.Parallel()
	onBoth(t, func(h *clocked) {
		storagetest.Must(h.CreateCardJob(h.Context(), acme, requests(3), cards.Once{}))(h)
		for want := 3; want >= 0; want-- {
			if n := storagetest.Must(h.PendingItems(h.Context()))(h); n != want {
				h.Errorf("%d items are pending, want %d", n, want)
			}
			if want > 0 {
				createNext(h.T, h.Store, now)
			}
		}
	})
}

func TestOnlyJobsThatAreOverArePurged(t *testing.T) {
	t.Parallel()
	for name, setup := range databases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := setup(t)
			for range 3 {
				storagetest.Must(s.CreateCardJob(t.Context(), acme, requests(1), cards.Once{}))(t)
			}
			over := createNext(t, s, now)
			createNext(t, s, now)
			storagetest.Must(s.MarkPublished(t.Context(), over.RequestUUID))(t)
			if n := storagetest.Must(s.PurgeCardJobs(t.Context(), now.Add(secs(1))))(t); n != 0 {
				t.Errorf("purged %d whose end is not written", n)
			}
			storagetest.Must(s.EndJobs(t.Context()))(t)
			if n := storagetest.Must(s.PurgeCardJobs(t.Context(), now))(t); n != 0 {
				t.Errorf("purged %d that are not older", n)
			}
			if n := storagetest.Must(s.PurgeCardJobs(t.Context(), now.Add(secs(1))))(t); n != 1 {
				t.Errorf("purged %d, want 1", n)
			}
			_, err := s.CardJob(t.Context(), acme, over.JobUUID)
			storagetest.WantError(t, err, storage.ErrNotFound)
			wantCards(t, s, 2)
		})
	}
}

func TestRequestUUIDsDifferAndAreRepeatable(t *testing.T) {
	t.Parallel()
	s := open(t, storage.Options{}, nil)
	job := storagetest.Must(s.CreateCardJob(t.Context(), acme, requests(500), cards.Once{}))(t)
	seen := map[string]bool{}
	for _, item := range job.Items {
		id := item.RequestUUID.String()
		if seen[id] || strings.Contains(id, ".") {
			t.Fatalf("request %s comes twice", id)
		}
		seen[id] = true
	}
}
