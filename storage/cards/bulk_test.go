package cards_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"spendhook/storage"
	"spendhook/storage/cards"
	"spendhook/storage/cards/cardstest"
	"spendhook/storage/storagetest"
)

func TestContractBulkCreateStoresTheJobBeforeAnyWork(t *testing.T) {
	t.Parallel()
	cardstest.OnBoth(t, func(h *cardstest.Data) {
		made := storagetest.Must(h.CreateCardJob(h.Context(), acme, cardstest.Requests(3), cards.Once{}))(h)
		job := storagetest.Must(h.CardJob(h.Context(), acme, made.UUID))(h)
		if job.Status != cards.JobQueued || job.Total != 3 || len(job.Items) != 3 || job.FinishedAt != nil || !job.CreatedAt.Equal(now) {
			h.Errorf("job = %+v", job)
		}
		for i, item := range job.Items {
			if item.Index != i || item.Status != cards.ItemPending || item.RequestUUID != made.Items[i].RequestUUID || item.CompanyUUID != acme {
				h.Errorf("item = %+v", item)
			}
		}
		h.WantCards(0)
		_, err := h.CardJob(h.Context(), bolt, made.UUID)
		storagetest.WantError(h.T, err, storage.ErrNotFound)
	})
}

func TestContractShapeErrorsRefuseTheWholeBulk(t *testing.T) {
	t.Parallel()
	cardstest.OnBoth(t, func(h *cardstest.Data) {
		bad := cardstest.Requests(5)
		bad[3].Threshold = cardstest.Amount("1.005")
		for field, list := range map[string][]cards.Request{
			"cardsRequests":              {},
			"/cardsRequests/3/threshold": bad,
		} {
			_, err := h.CreateCardJob(h.Context(), acme, list, cards.Once{})
			storagetest.WantInvalid(h.T, err, field)
		}
		_, err := h.CreateCardJob(h.Context(), acme, cardstest.Requests(501), cards.Once{})
		storagetest.WantInvalid(h.T, err, "cardsRequests")
		if n := storagetest.Must(h.PendingItems(h.Context()))(h); n != 0 {
			h.Errorf("%d items are pending", n)
		}
		storagetest.Must(h.CreateCardJob(h.Context(), acme, cardstest.Requests(500), cards.Once{}))(h)
	})
}

func TestContractEachItemEndsInExactlyOneOutcome(t *testing.T) {
	t.Parallel()
	cardstest.OnBoth(t, func(h *cardstest.Data) {
		list := cardstest.Requests(4, 1)
		list[2].Threshold = cardstest.Amount("1e9999")
		job := storagetest.Must(h.CreateCardJob(h.Context(), acme, list, cards.Once{}))(h)
		for i, code := range []string{"", "USER_NOT_FOUND", "THRESHOLD_EXCEEDS_LIMIT", ""} {
			item := h.CreateNext()
			if item.Index != i || item.ErrorCode != code || (item.CardUUID == nil) != (code != "") || (item.ErrorMessage == "") != (code == "") {
				h.Errorf("item %d = %+v", i, item)
			}
			if got := storagetest.Must(h.CardJob(h.Context(), acme, job.UUID))(h); i < 3 && got.Status != cards.JobRunning {
				h.Errorf("after item %d the job is %s", i, got.Status)
			}
		}
		done := storagetest.Must(h.CardJob(h.Context(), acme, job.UUID))(h)
		if done.Status != cards.JobCompleted || done.Succeeded != 2 || done.Failed != 2 || done.FinishedAt == nil {
			h.Errorf("job = %+v", done)
		}
		card := storagetest.Must(h.Card(h.Context(), acme, *done.Items[3].CardUUID))(h)
		if card.Name != "card 3" || card.Type != "MASTER_VIRTUAL" || card.Periodicity != "MONTHLY" || !card.Threshold.Equal(*cardstest.Amount("100.5")) {
			h.Errorf("card = %+v", card)
		}
		h.WantCards(2)
		if item, found, err := h.CreateNextCard(h.Context()); found || err != nil {
			h.Errorf("item = %+v, %v", item, err)
		}
	})
}

// The company is imported after its job was stored. The unit of the threshold was unknown then.
func TestNoCardGetsAThresholdOfAnUnknownCurrency(t *testing.T) {
	t.Parallel()
	cardstest.OnBoth(t, func(h *cardstest.Data) {
		company, user := uuid.New(), uuid.New()
		list := cardstest.Requests(2)
		list[0].UserUUID, list[0].Threshold = user, cardstest.Amount("100")
		list[1].UserUUID, list[1].Threshold = user, nil
		storagetest.Must(h.CreateCardJob(h.Context(), company, list, cards.Once{}))(h)
		storagetest.Load(h, h.DB,
			fmt.Sprintf(`{"kind":"company","uuid":"%s","name":"Late","currency":"JPY","creditLimit":50000}`, company),
			fmt.Sprintf(`{"kind":"user","uuid":"%s","companyUuid":"%s","username":"u","name":"U"}`, user, company))
		for i, code := range []string{"THRESHOLD_EXCEEDS_LIMIT", ""} {
			if item := h.CreateNext(); item.ErrorCode != code {
				h.Errorf("item %d = %+v", i, item)
			}
		}
	})
}

func TestWorkersAtTheSameTimeShareTheItems(t *testing.T) {
	t.Parallel()
	cardstest.OnBoth(t, func(h *cardstest.Data) {
		storagetest.Must(h.CreateCardJob(h.Context(), acme, cardstest.Requests(10, 4), cards.Once{}))(h)
		var done sync.Map
		var run []func()
		for range 8 {
			run = append(run, func() {
				for {
					item, found, err := h.CreateNextCard(h.Context())
					if err != nil || !found {
						if err != nil {
							h.Error(err)
						}
						return
					}
					if _, again := done.LoadOrStore(item.Index, true); again {
						h.Errorf("item %d was worked on twice", item.Index)
					}
				}
			})
		}
		storagetest.Race(run...)
		h.WantCards(9)
		if out := storagetest.Must(h.NextOutcomes(h.Context(), uuid.Nil, 100))(h); len(out) != 10 {
			h.Errorf("%d outcomes, want 10", len(out))
		}
	})
}

// A company with many queued items does not delay another company. Each company's items are
// worked on in the order of its jobs.
func TestCompaniesAreServedInTurn(t *testing.T) {
	t.Parallel()
	cardstest.OnBoth(t, func(h *cardstest.Data) {
		jobs := map[uuid.UUID]int{}
		for i, company := range []uuid.UUID{acme, acme, acme, bolt, acme, bolt} {
			h.Clock = now.Add(seconds(i))
			list := slices.Repeat([]cards.Request{{Type: "VIRTUAL", Alias: "a", UserUUID: ann}}, 3)
			jobs[storagetest.Must(h.CreateCardJob(h.Context(), company, list, cards.Once{}))(h).UUID] = i
		}
		var order []string
		for range 18 {
			item := h.CreateNext()
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
	cardstest.OnBoth(t, func(h *cardstest.Data) {
		storagetest.Must(h.CreateCardJob(h.Context(), acme, cardstest.Requests(3, 1), cards.Once{}))(h)
		var finished []cards.Item
		for i := range 3 {
			h.Clock = now.Add(seconds(i))
			finished = append(finished, h.CreateNext())
		}
		out := storagetest.Must(h.NextOutcomes(h.Context(), uuid.Nil, 2))(h)
		if len(out) != 2 || out[1].ErrorCode != "USER_NOT_FOUND" || out[0].CompanyUUID != acme || *out[0].CardUUID != *finished[0].CardUUID {
			h.Errorf("outcomes = %+v", out)
		}
		for _, want := range []int{2, 0} {
			marked := storagetest.Must(h.MarkPublished(h.Context(), out[0].RequestUUID, out[1].RequestUUID))(h)
			if len(marked) != want || want > 0 && !marked[out[0].RequestUUID] {
				h.Errorf("marked %v, want %d", marked, want)
			}
		}
		left := storagetest.Must(h.NextOutcomes(h.Context(), uuid.Nil, 100))(h)
		if len(left) != 1 || left[0].Index != 2 {
			h.Errorf("left = %+v", left)
		}
	})
}

func TestCompaniesWithPendingOutcomes(t *testing.T) {
	t.Parallel()
	cardstest.OnBoth(t, func(h *cardstest.Data) {
		want := func(companies ...uuid.UUID) {
			h.Helper()
			var got []uuid.UUID
			for after := uuid.Nil; ; {
				out := storagetest.Must(h.NextOutcomes(h.Context(), after, 1))(h)
				if len(out) == 0 {
					break
				}
				after = out[0].CompanyUUID
				got = append(got, after)
			}
			if !slices.Equal(got, companies) {
				h.Errorf("companies %v, want %v", got, companies)
			}
		}
		for _, company := range []uuid.UUID{bolt, acme, bolt} {
			list := slices.Repeat([]cards.Request{{Type: "VIRTUAL", Alias: "a", UserUUID: ann}}, 2)
			storagetest.Must(h.CreateCardJob(h.Context(), company, list, cards.Once{}))(h)
		}
		want()
		for range 6 {
			h.CreateNext()
		}
		want(acme, bolt)
		for _, item := range storagetest.Must(h.NextOutcomes(h.Context(), uuid.Nil, 100))(h) {
			storagetest.Must(h.MarkPublished(h.Context(), item.RequestUUID))(h)
		}
		want(bolt)
		if out := storagetest.Must(h.NextOutcomes(h.Context(), acme, 100))(h); len(out) != 4 {
			h.Errorf("%d outcomes, want 4", len(out))
		}
	})
}

func TestAJobEndsOnce(t *testing.T) {
	t.Parallel()
	cardstest.OnBoth(t, func(h *cardstest.Data) {
		for round := range 20 {
			h.Clock = now
			jobs := [2]uuid.UUID{}
			for i, n := range []int{4, 1} {
				jobs[i] = storagetest.Must(h.CreateCardJob(h.Context(), acme, cardstest.Requests(n), cards.Once{}))(h).UUID
			}
			h.Clock = now.Add(seconds(9))
			var ended sync.Map
			next := func() {
				item := h.CreateNext()
				if item.JobTook == nil {
					return
				}
				if _, again := ended.LoadOrStore(item.JobUUID, true); again || *item.JobTook != seconds(9) {
					h.Errorf("round %d: job %s took %v, ended before: %v", round, item.JobUUID, *item.JobTook, again)
				}
			}
			storagetest.Race(next, next, next, next, next)
			for _, id := range jobs {
				job := storagetest.Must(h.CardJob(h.Context(), acme, id))(h)
				if _, counted := ended.Load(id); !counted || job.Status != cards.JobCompleted || !job.FinishedAt.Equal(now.Add(seconds(9))) {
					h.Errorf("round %d: counted %v, job = %+v", round, counted, job)
				}
			}
		}
	})
}

func TestPendingItemsAreCounted(t *testing.T) {
	t.Parallel()
	cardstest.OnBoth(t, func(h *cardstest.Data) {
		storagetest.Must(h.CreateCardJob(h.Context(), acme, cardstest.Requests(3), cards.Once{}))(h)
		for want := 3; want >= 0; want-- {
			if n := storagetest.Must(h.PendingItems(h.Context()))(h); n != want {
				h.Errorf("%d items are pending, want %d", n, want)
			}
			if want > 0 {
				h.CreateNext()
			}
		}
	})
}

func TestOnlyJobsThatAreOverArePurged(t *testing.T) {
	t.Parallel()
	cardstest.OnBoth(t, func(h *cardstest.Data) {
		for range 3 {
			storagetest.Must(h.CreateCardJob(h.Context(), acme, cardstest.Requests(1), cards.Once{}))(h)
		}
		over := h.CreateNext()
		h.CreateNext()
		const month = 30 * 24 * time.Hour
		h.Clock = now.Add(month)
		if n := storagetest.Must(h.Purge(h.Context()))(h); n != 0 {
			h.Errorf("purged %d jobs that are not published", n)
		}
		storagetest.Must(h.MarkPublished(h.Context(), over.RequestUUID))(h)
		h.Clock = now.Add(month - time.Second)
		if n := storagetest.Must(h.Purge(h.Context()))(h); n != 0 {
			h.Errorf("purged %d jobs that are too new", n)
		}
		h.Clock = now.Add(month)
		if n := storagetest.Must(h.Purge(h.Context()))(h); n != 1 {
			h.Errorf("purged %d, want 1", n)
		}
		_, err := h.CardJob(h.Context(), acme, over.JobUUID)
		storagetest.WantError(h.T, err, storage.ErrNotFound)
		h.WantCards(2)
	})
}

func TestRequestUUIDsDifferAndAreRepeatable(t *testing.T) {
	t.Parallel()
	h := cardstest.New(t, storagetest.Open(t, storage.Options{}))
	job := storagetest.Must(h.CreateCardJob(h.Context(), acme, cardstest.Requests(500), cards.Once{}))(t)
	seen := map[string]bool{}
	for _, item := range job.Items {
		id := item.RequestUUID.String()
		if seen[id] || strings.Contains(id, ".") {
			t.Fatalf("request %s comes twice", id)
		}
		seen[id] = true
	}
}

func seconds(n int) time.Duration { return time.Duration(n) * time.Second }
