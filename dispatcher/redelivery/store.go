package redelivery

import (
	"cmp"
	"context"
	_ "embed" // the script
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/dispatcher/delivery"
	"spendhook/internal/cursor"
	"spendhook/internal/partition"
	"spendhook/internal/queues"
	"spendhook/internal/script"
)

var (
	//go:embed lua/save.lua
	saveSource string

	saveScript = queues.Script(saveSource, true)
)

const (
	// jobRetention is how long a finished job can be read.
	jobRetention = 7 * 24 * time.Hour
	// keptJobs is how many jobs of a company are kept: all unfinished jobs, and those that were
	// finished last.
	keptJobs = 2000
)

// Errors of jobs that a caller branches on.
var (
	// ErrTooManyJobs says that too many jobs of the company are not finished.
	ErrTooManyJobs = errors.New("too many jobs of the company are not finished")
	// ErrFinished says that a job has completed.
	ErrFinished = errors.New("the job has completed")
	// ErrNotCancellable says that a job erases a company: such jobs cannot be cancelled.
	ErrNotCancellable = errors.New("the job erases a company and cannot be cancelled")
)

var (
	errUnreadable = errors.New("the job cannot be read")
	errChanged    = errors.New("the job was changed meanwhile")
)

// docs/redis.md lists type, writer and time to live of each key.

// jobsKey is the hash of a company's jobs: job UUID -> JSON.
func jobsKey(company uuid.UUID) string { return partition.Key(company, "jobs:"+company.String()) }

// endsKey is the zset of a company's jobs by the ms at which they were finished; infinity for
// unfinished ones.
func endsKey(company uuid.UUID) string { return partition.Key(company, "je:"+company.String()) }

// save stores a new job, or the progress of a job that was read. The error is ErrTooManyJobs when
// a new job is refused, errChanged when the stored job has changed since it was read.
func (s *Service) save(ctx context.Context, j *Job) error {
	text, err := json.Marshal(*j)
	if err != nil {
		return fmt.Errorf("encode job: %w", err)
	}
	finished, most := "0", s.Unfinished
	if j.finished() {
		finished = "1"
	}
	if j.Kind == JobErase {
		most = keptJobs * 3 / 4 // more than limits.unfinished_jobs can be
	}
	p := partition.Of(j.CompanyUUID)
	call := &script.Call{Script: saveScript, Keys: queues.Keys(p), Args: []any{
		partition.Prefix(p), j.CompanyUUID.String(), j.UUID.String(), j.text, text, script.Now(s.clock), finished,
		jobRetention.Milliseconds(), keptJobs, most,
	}}
	if err := script.Run(ctx, s.Client, call); err != nil {
		return fmt.Errorf("save job: %w", err)
	}
	switch call.Reply() {
	case int64(-2):
		return errChanged
	case int64(-1):
		return ErrTooManyJobs
	case int64(1):
		s.Wake(ctx, []int{p})
	}
	j.text = string(text)
	return nil
}

// Job reads a job of a company; delivery.ErrNotFound when there is none (finished ones are
// kept for 7 days).
func (s *Service) Job(ctx context.Context, company, id uuid.UUID) (Job, error) {
	text, err := s.Client.HGet(ctx, jobsKey(company), id.String()).Result()
	if errors.Is(err, redis.Nil) {
		return Job{}, delivery.ErrNotFound
	}
	if err != nil {
		return Job{}, fmt.Errorf("read job: %w", err)
	}
	return decodeJob(text)
}

func decodeJob(text string) (Job, error) {
	j := Job{text: text}
	if err := json.Unmarshal([]byte(text), &j); err != nil {
		return Job{}, fmt.Errorf("%w: %w", errUnreadable, err)
	}
	return j, nil
}

// all reads the jobs of a company, newest first. It leaves out damaged jobs.
func (s *Service) all(ctx context.Context, company uuid.UUID) ([]Job, error) {
	texts, err := s.Client.HVals(ctx, jobsKey(company)).Result()
	if err != nil {
		return nil, fmt.Errorf("read jobs: %w", err)
	}
	jobs := make([]Job, 0, len(texts))
	for _, text := range texts {
		if j, err := decodeJob(text); err == nil {
			jobs = append(jobs, j)
		}
	}
	slices.SortFunc(jobs, func(a, b Job) int { return cmp.Compare(b.place(), a.place()) })
	return jobs, nil
}

// forget removes an unreadable or missing job: the set at endsKey may still have a missing one.
func (s *Service) forget(ctx context.Context, company, id uuid.UUID) error {
	_, err := s.Client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		pipe.HDel(ctx, jobsKey(company), id.String())
		pipe.ZRem(ctx, endsKey(company), id.String())
		return nil
	})
	if err != nil {
		return fmt.Errorf("forget job: %w", err)
	}
	return nil
}

// JobFilter says which jobs of a company to list; zero fields do not filter.
type JobFilter struct {
	Company    uuid.UUID
	Subscriber *uuid.UUID
	Kinds      []JobKind
	Statuses   []JobStatus
	Cursor     string // JobPage.Next of the page before
	Size       int    // at most 100, default 20
}

// JobPage is one page of jobs, newest first. Next is "" on the last page.
type JobPage struct {
	Items []Job
	Next  string
}

const jobList = "jobs"

// place is the position of a job in the order of creation, as a text that sorts like it.
func (j *Job) place() string { return fmt.Sprintf("%020d%s", j.CreatedAt.UnixNano(), j.UUID) }

// Jobs lists jobs of a company. cursor.ErrBad when the cursor is not of this list.
func (s *Service) Jobs(ctx context.Context, f JobFilter) (page JobPage, err error) {
	key, after := fmt.Sprint(f.Company, f.Subscriber, f.Kinds, f.Statuses), ""
	if err := cursor.Decode(f.Cursor, jobList, key, &after); err != nil {
		return page, err
	}
	page.Items, err = s.all(ctx, f.Company)
	page.Items = slices.DeleteFunc(page.Items, func(j Job) bool {
		return f.Cursor != "" && j.place() >= after ||
			f.Subscriber != nil && j.SubscriberUUID != *f.Subscriber ||
			len(f.Kinds) > 0 && !slices.Contains(f.Kinds, j.Kind) ||
			len(f.Statuses) > 0 && !slices.Contains(f.Statuses, j.Status)
	})
	if size := min(cmp.Or(f.Size, 20), 100); len(page.Items) > size {
		page.Items = page.Items[:size]
		page.Next = cursor.Encode(jobList, key, page.Items[size-1].place())
	}
	return page, err
}

// cancelTries bounds the tries of Cancel on a job that changes between read and write.
const cancelTries = 10

// Cancel ends a job early. The job's changes stay, and a running step ends normally. A cancelled
// DROP leaves the pause of its subscriber as it is. Cancel does nothing for a cancelled job. The error
// may be delivery.ErrNotFound, ErrFinished or ErrNotCancellable.
func (s *Service) Cancel(ctx context.Context, company, id uuid.UUID) (j Job, err error) {
	for range cancelTries {
		j, err = s.Job(ctx, company, id)
		switch {
		case err != nil, j.Status == JobCancelled:
			return j, err
		case j.Kind == JobErase:
			return j, ErrNotCancellable
		case j.Status == JobCompleted:
			return j, ErrFinished
		}
		j.end(JobCancelled, s.Now())
		if err = s.save(ctx, &j); !errors.Is(err, errChanged) {
			return j, err
		}
	}
	return j, err
}
