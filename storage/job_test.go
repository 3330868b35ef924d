package storage_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"

	"spendhook/storage"
)

// requests asks for n cards; each index in doomed is for an unknown user.
func requests(n int, doomed ...int) []storage.CardRequest {
	list := make([]storage.CardRequest, n)
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
			loadCompanies(t, s)
			made := must(s.CreateCardJob(t.Context(), acme, requests(3), storage.Once{}))(t)
			job := must(s.CardJob(t.Context(), acme, made.UUID))(t)
			if job.Status != storage.JobQueued || job.Total != 3 || len(job.Items) != 3 || job.FinishedAt != nil || !job.CreatedAt.Equal(now) {
				t.Errorf("job = %+v", job)
			}
			for i, item := range job.Items {
				if item.Index != i || item.Status != storage.ItemPending || item.RequestUUID != made.Items[i].RequestUUID || item.CompanyUUID != acme {
					t.Errorf("item = %+v", item)
				}
			}
			wantCards(t, s, 0)
			_, err := s.CardJob(t.Context(), bolt, made.UUID)
			wantError(t, err, storage.ErrNotFound)
		})
	}
}

func TestContractShapeErrorsRefuseTheWholeBulk(t *testing.T) {
	t.Parallel()
	for name, setup := range databases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := setup(t)
			loadCompanies(t, s)
			bad := requests(5)
			bad[3].Threshold = dec("1.005")
			for field, list := range map[string][]storage.CardRequest{
				"cardsRequests":              {},
				"cardsRequests[3].threshold": bad,
			} {
				_, err := s.CreateCardJob(t.Context(), acme, list, storage.Once{})
				wantInvalid(t, err, field)
			}
			_, err := s.CreateCardJob(t.Context(), acme, requests(501), storage.Once{})
			wantInvalid(t, err, "cardsRequests")
			if jobs := must(s.UnfinishedJobs(t.Context(), uuid.Nil, 10))(t); len(jobs) != 0 {
				t.Errorf("jobs = %v", jobs)
			}
			must(s.CreateCardJob(t.Context(), acme, requests(500), storage.Once{}))(t)
		})
	}
}

func TestContractEachItemEndsInExactlyOneOutcome(t *testing.T) {
	t.Parallel()
	for name, setup := range databases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := setup(t)
			loadCompanies(t, s)
			list := requests(4, 1)
			list[2].Threshold = dec("1e9999")
			job := must(s.CreateCardJob(t.Context(), acme, list, storage.Once{}))(t)
			for i, code := range []string{"", "USER_NOT_FOUND", "THRESHOLD_EXCEEDS_LIMIT", ""} {
				item := must(s.CreateCardForItem(t.Context(), job.UUID, i, now))(t)
				if item.ErrorCode != code || (item.CardUUID == nil) != (code != "") || (item.ErrorMessage == "") != (code == "") {
					t.Errorf("item %d = %+v", i, item)
				}
				if got := must(s.CardJob(t.Context(), acme, job.UUID))(t); i < 3 && got.Status != storage.JobRunning {
					t.Errorf("after item %d the job is %s", i, got.Status)
				}
			}
			done := must(s.CardJob(t.Context(), acme, job.UUID))(t)
			if done.Status != storage.JobCompleted || done.Succeeded != 2 || done.Failed != 2 || done.FinishedAt == nil {
				t.Errorf("job = %+v", done)
			}
			card := must(s.Card(t.Context(), acme, *done.Items[3].CardUUID))(t)
			if card.Name != "card 3" || card.Type != "MASTER_VIRTUAL" || card.Periodicity != "MONTHLY" || !card.Threshold.Equal(*dec("100.5")) {
				t.Errorf("card = %+v", card)
			}
			wantCards(t, s, 2)
			_, err := s.CreateCardForItem(t.Context(), job.UUID, 4, now)
			wantError(t, err, storage.ErrNotFound)
		})
	}
}

func TestItemsDoneAtTheSameTimeMakeOneCardAndOneOutcome(t *testing.T) {
	t.Parallel()
	for name, setup := range databases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := setup(t)
			loadCompanies(t, s)
			job := must(s.CreateCardJob(t.Context(), acme, requests(10, 4), storage.Once{}))(t)
			var run []func()
			for i := range 40 {
				run = append(run, func() {
					if _, err := s.CreateCardForItem(t.Context(), job.UUID, i%10, now); err != nil {
						t.Error(err)
					}
				})
			}
			race(run...)
			wantCards(t, s, 9)
			if out := must(s.PendingOutcomes(t.Context(), 100))(t); len(out) != 10 {
				t.Errorf("%d outcomes, want 10", len(out))
			}
		})
	}
}

func TestOutcomesArePendingUntilPublished(t *testing.T) {
	t.Parallel()
	for name, setup := range databases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := setup(t)
			loadCompanies(t, s)
			job := must(s.CreateCardJob(t.Context(), acme, requests(3, 1), storage.Once{}))(t)
			var finished []storage.CardItem
			for i := range 3 {
				finished = append(finished, must(s.CreateCardForItem(t.Context(), job.UUID, i, now.Add(secs(i))))(t))
			}
			out := must(s.PendingOutcomes(t.Context(), 2))(t)
			if len(out) != 2 || out[1].ErrorCode != "USER_NOT_FOUND" || out[0].CompanyUUID != acme || *out[0].CardUUID != *finished[0].CardUUID {
				t.Errorf("outcomes = %+v", out)
			}
			for range 2 {
				if err := s.MarkPublished(t.Context(), out[0].RequestUUID, out[1].RequestUUID); err != nil {
					t.Fatal(err)
				}
			}
			again := must(s.CreateCardForItem(t.Context(), job.UUID, 0, now))(t)
			if again.RequestUUID != finished[0].RequestUUID || *again.CardUUID != *finished[0].CardUUID {
				t.Errorf("done again = %+v", again)
			}
			left := must(s.PendingOutcomes(t.Context(), 100))(t)
			if len(left) != 1 || left[0].Index != 2 {
				t.Errorf("left = %+v", left)
			}
		})
	}
}

func TestUnfinishedJobsAreListedForRecovery(t *testing.T) {
	t.Parallel()
	for name, setup := range databases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := setup(t)
			loadCompanies(t, s)
			for range 3 {
				job := must(s.CreateCardJob(t.Context(), acme, requests(3), storage.Once{}))(t)
				must(s.CreateCardForItem(t.Context(), job.UUID, 1, now))(t)
			}
			done := must(s.CreateCardJob(t.Context(), acme, requests(1), storage.Once{}))(t)
			must(s.CreateCardForItem(t.Context(), done.UUID, 0, now))(t)
			first := must(s.UnfinishedJobs(t.Context(), uuid.Nil, 2))(t)
			rest := must(s.UnfinishedJobs(t.Context(), first[1].UUID, 2))(t)
			if len(first) != 2 || len(rest) != 1 {
				t.Fatalf("%d and %d jobs", len(first), len(rest))
			}
			for _, job := range append(first, rest...) {
				if fmt.Sprint(job.Indexes) != "[0 2]" || !job.CreatedAt.Equal(now) {
					t.Errorf("job = %+v", job)
				}
			}
		})
	}
}

func TestOnlyJobsThatAreOverArePurged(t *testing.T) {
	t.Parallel()
	for name, setup := range databases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := setup(t)
			loadCompanies(t, s)
			var jobs []storage.CardJob
			for range 3 {
				jobs = append(jobs, must(s.CreateCardJob(t.Context(), acme, requests(1), storage.Once{}))(t))
			}
			over := must(s.CreateCardForItem(t.Context(), jobs[0].UUID, 0, now))(t)
			must(s.CreateCardForItem(t.Context(), jobs[1].UUID, 0, now))(t)
			if err := s.MarkPublished(t.Context(), over.RequestUUID); err != nil {
				t.Fatal(err)
			}
			if n := must(s.PurgeCardJobs(t.Context(), now))(t); n != 0 {
				t.Errorf("purged %d that are not older", n)
			}
			if n := must(s.PurgeCardJobs(t.Context(), now.Add(secs(1))))(t); n != 1 {
				t.Errorf("purged %d, want 1", n)
			}
			_, err := s.CardJob(t.Context(), acme, jobs[0].UUID)
			wantError(t, err, storage.ErrNotFound)
			wantCards(t, s, 2)
		})
	}
}

func TestRequestUUIDsDifferAndAreRepeatable(t *testing.T) {
	t.Parallel()
	s := databases["sqlite"](t)
	loadCompanies(t, s)
	job := must(s.CreateCardJob(t.Context(), acme, requests(500), storage.Once{}))(t)
	seen := map[string]bool{}
	for _, item := range job.Items {
		id := item.RequestUUID.String()
		if seen[id] || strings.Contains(id, ".") {
			t.Fatalf("request %s comes twice", id)
		}
		seen[id] = true
	}
}
