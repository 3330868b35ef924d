package redelivery

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"spendhook/dispatcher/delivery"
	"spendhook/dispatcher/delivery/store"
	"spendhook/events/history"
	"spendhook/internal/redistest"
)

// newService is a Service with jobs alone, and the time that it takes for the present one.
func newService(t *testing.T) (*Service, *time.Time) {
	t.Helper()
	now := time.Now()
	client := redistest.New(t)
	return New(Options{
		Client: client, Events: history.New(history.Options{Client: client}), Deliveries: store.New(store.Options{Client: client}), Wake: func(context.Context, []int) {}, NewID: uuid.New, Logger: slog.New(slog.DiscardHandler),
		Now: func() time.Time { return now },
	}), &now
}

// start adds a job.
func start(t *testing.T, s *Service, company uuid.UUID) Job {
	t.Helper()
	j, err := s.startJob(t.Context(), Job{CompanyUUID: company, Kind: JobRecover})
	if err != nil {
		t.Fatal(err)
	}
	return j
}

// finish ends a job.
func finish(t *testing.T, s *Service, j Job) {
	t.Helper()
	j, err := s.Job(t.Context(), j.CompanyUUID, j.UUID)
	if err != nil {
		t.Fatal(err)
	}
	j.end(JobCompleted, s.Now())
	if err := s.save(t.Context(), &j); err != nil {
		t.Fatal(err)
	}
}

// daysLeft are the times to live, in days, of a company's jobs and of their index; -1: none.
func daysLeft(t *testing.T, s *Service, company uuid.UUID) [2]time.Duration {
	t.Helper()
	var days [2]time.Duration
	for i, key := range []string{jobsKey(company), endsKey(company)} {
		life, err := s.Client.PTTL(t.Context(), key).Result()
		if err != nil {
			t.Fatal(err)
		}
		if days[i] = life; life > 0 {
			days[i] = life.Round(time.Hour) / (24 * time.Hour)
		}
	}
	return days
}

// A job that is not finished does not expire, however long it waits, and stays in the list. A
// finished one leaves the list when it has expired.
func TestUnfinishedJobsAreKept(t *testing.T) {
	t.Parallel()
	s, now := newService(t)
	company := uuid.New()
	old := start(t, s, company)
	if got := daysLeft(t, s, company); got != [2]time.Duration{-1, -1} {
		t.Errorf("a new job is kept for %d days", got)
	}
	*now = now.Add(2 * jobRetention)
	late := start(t, s, company)
	page, err := s.Jobs(t.Context(), JobFilter{Company: company})
	if err != nil || len(page.Items) != 2 || page.Items[1].UUID != old.UUID {
		t.Errorf("%+v, %v", page, err)
	}
	finish(t, s, late)
	if got := daysLeft(t, s, company); got != [2]time.Duration{-1, -1} {
		t.Errorf("with an unfinished one, the jobs are kept for %d days", got)
	}
	*now = now.Add(jobRetention - time.Second)
	finish(t, s, old)
	if got := daysLeft(t, s, company); got != [2]time.Duration{7, 7} {
		t.Errorf("finished jobs are kept for %d days", got)
	}
	if page, err = s.Jobs(t.Context(), JobFilter{Company: company}); err != nil || len(page.Items) != 2 {
		t.Errorf("%+v, %v", page, err)
	}
	*now = now.Add(time.Minute)
	start(t, s, company)
	if _, err := s.Job(t.Context(), company, late.UUID); !errors.Is(err, delivery.ErrNotFound) {
		t.Errorf("after 7 days, a finished job is read: %v", err)
	}
	if n := s.Client.ZCard(t.Context(), endsKey(company)).Val(); n != 2 {
		t.Errorf("%d jobs are in the list", n)
	}
}

// The number of a company's finished jobs is bounded, whatever the number of unfinished ones
// that are older.
func TestFinishedJobsAreBounded(t *testing.T) {
	t.Parallel()
	s, now := newService(t)
	company := uuid.New()
	var unfinished []uuid.UUID
	for range 50 {
		unfinished = append(unfinished, start(t, s, company).UUID)
	}
	*now = now.Add(time.Second)
	for range keptJobs {
		j := Job{UUID: uuid.New(), CompanyUUID: company, Kind: JobRetry, Status: JobCompleted, CreatedAt: *now}
		if err := s.save(t.Context(), &j); err != nil {
			t.Fatal(err)
		}
	}
	ids := s.Client.ZRange(t.Context(), endsKey(company), 0, -1).Val()
	if len(ids) != keptJobs {
		t.Errorf("%d jobs are kept", len(ids))
	}
	for _, id := range unfinished {
		if !slices.Contains(ids, id.String()) {
			t.Fatalf("the unfinished %s is not listed", id)
		}
	}
	if texts := s.Client.HLen(t.Context(), jobsKey(company)).Val(); texts != keptJobs {
		t.Errorf("%d texts are kept", texts)
	}
}

// A job whose text is damaged is dropped.
func TestDamagedJobIsDropped(t *testing.T) {
	t.Parallel()
	s, _ := newService(t)
	company := uuid.New()
	j := start(t, s, company)
	if err := s.Client.HSet(t.Context(), jobsKey(company), j.UUID.String(), "garbage").Err(); err != nil {
		t.Fatal(err)
	}
	if again, err := s.Step(t.Context(), company, j.UUID); again >= 0 || err != nil {
		t.Errorf("it is served again after %v, %v", again, err)
	}
	for _, key := range []string{jobsKey(company), endsKey(company)} {
		if s.Client.Exists(t.Context(), key).Val() != 0 {
			t.Errorf("%s is left", key)
		}
	}
}

// A job that was lost from the hash of jobs does not count as unfinished after its next step.
// During an upgrade, a job that only a newer replica knows waits for it.
func TestAJobOfAnUnknownKindWaits(t *testing.T) {
	t.Parallel()
	s, _ := newService(t)
	company := uuid.New()
	j, err := s.startJob(t.Context(), Job{CompanyUUID: company, Kind: "NEWER"})
	if err != nil {
		t.Fatal(err)
	}
	again, err := s.Step(t.Context(), company, j.UUID)
	if err != nil || again <= 0 {
		t.Errorf("it is served again after %v, %v", again, err)
	}
	if j, err = s.Job(t.Context(), company, j.UUID); err != nil || j.finished() {
		t.Errorf("%+v, %v", j, err)
	}
}

func TestMissingJobIsForgotten(t *testing.T) {
	t.Parallel()
	s, _ := newService(t)
	company := uuid.New()
	j := start(t, s, company)
	if err := s.Client.HDel(t.Context(), jobsKey(company), j.UUID.String()).Err(); err != nil {
		t.Fatal(err)
	}
	if again, err := s.Step(t.Context(), company, j.UUID); again >= 0 || err != nil {
		t.Errorf("it is served again after %v, %v", again, err)
	}
	if n := s.Client.ZCard(t.Context(), endsKey(company)).Val(); n != 0 {
		t.Errorf("%d jobs count as unfinished", n)
	}
}

// A job whose answer was lost is not refused when it is added again, though it is the last one that
// the company may add.
func TestLastJobIsAddedAgain(t *testing.T) {
	t.Parallel()
	s, _ := newService(t)
	s.Unfinished = 1000 // the most that limits.unfinished_jobs may be
	company := uuid.New()
	var last Job
	for range s.Unfinished {
		last = start(t, s, company)
	}
	last.text = ""
	if err := s.save(t.Context(), &last); err != nil {
		t.Error(err)
	}
	if _, err := s.startJob(t.Context(), Job{CompanyUUID: company, Kind: JobDrop}); !errors.Is(err, ErrTooManyJobs) {
		t.Errorf("another job: %v", err)
	}
	if _, err := s.startJob(t.Context(), Job{CompanyUUID: company, Kind: JobErase}); err != nil {
		t.Errorf("an erasure: %v", err)
	}
}

// The audit log says what a bulk request was to change.
func TestDetail(t *testing.T) {
	t.Parallel()
	r := BulkRequest{Kind: JobCancel, Company: uuid.New(), Filter: store.Filter{EventTypes: []string{"BAD"}, CodeFrom: 500}}
	if got := r.Detail(); got != `{"types":["BAD"],"codeFrom":500}` {
		t.Error(got)
	}
	r.DryRun = true
	if got := r.Detail(); got != `dry run of {"types":["BAD"],"codeFrom":500}` {
		t.Error(got)
	}
}

// A job that must wait is served again at growing intervals.
func TestJobWaitsLongerAndLonger(t *testing.T) {
	t.Parallel()
	now := time.Now()
	j := Job{UpdatedAt: now}
	var steps []int
	for range 7 {
		again := j.wait(now)
		steps = append(steps, int(again/time.Second))
		now = now.Add(again)
	}
	if got, want := fmt.Sprint(steps), "[1 1 2 4 8 10 10]"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	j.UpdatedAt = now // it has made a step
	if again := j.wait(now); again != minWait {
		t.Errorf("it waits again for %v", again)
	}
}
