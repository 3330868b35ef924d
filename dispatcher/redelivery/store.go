package redelivery

import (
	"context"
	_ "embed" // the scripts
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/dispatcher/delivery"
	"spendhook/dispatcher/workqueue/queues"
	"spendhook/internal/cursor"
	"spendhook/internal/partition"
	"spendhook/internal/script"
)

var (
	//go:embed lua/add.lua
	addSource string
	//go:embed lua/save.lua
	saveSource string

	addScript  = queues.Script(addSource, false)
	saveScript = queues.Script(saveSource, true)
)

const (
	// jobRetention is how long a finished job can be read.
	jobRetention = 7 * 24 * time.Hour
	// keptJobs is how many jobs of a company are kept: unfinished ones, and the newest others.
	keptJobs = 2000
	// maxWaiting bounds the unfinished jobs of a company; further ones are refused.
	// maxDeleting bounds the unfinished jobs of deletions.
	maxWaiting  = 100
	maxDeleting = 1000
)

// Errors of jobs that a caller branches on.
var (
	// ErrTooManyJobs says that too many jobs of the company are not finished.
	ErrTooManyJobs = errors.New("too many jobs of the company are not finished")
	// ErrFinished says that a job has completed.
	ErrFinished = errors.New("the job has completed")
	// ErrNotCancellable says that a job is part of the deletion of a subscriber, or erases a
	// company.
	ErrNotCancellable = errors.New("the job belongs to the deletion of a subscriber or company and cannot be cancelled")
)

// docs/redis.md lists type, writer and time to live of each key.

// jobKey: string with the job's JSON.
func jobKey(company, job uuid.UUID) string {
	return partition.Key(company, "job:"+company.String()+"/"+job.String())
}

// jobsKey: zset of a company's jobs, by creation.
func jobsKey(company uuid.UUID) string { return partition.Key(company, "jobs:"+company.String()) }

// activeKey: set of a company's jobs that are not finished.
func activeKey(company uuid.UUID) string { return partition.Key(company, "ja:"+company.String()) }

// add stores a job, which begins after a delay unless it is finished.
func (s *Service) add(ctx context.Context, j Job, after time.Duration) error {
	text, err := json.Marshal(j)
	if err != nil {
		return fmt.Errorf("encode job: %w", err)
	}
	delay, most := any(after.Milliseconds()), any("")
	if j.finished() {
		delay = ""
	}
	switch j.Kind {
	case JobRecover, JobRetry, JobDrop:
		most = maxWaiting
	case JobCancel, JobErase:
		most = maxDeleting
	}
	p := partition.Of(j.CompanyUUID)
	call := &script.Call{Script: addScript, Keys: queues.Keys(p), Args: []any{
		partition.Prefix(p), j.CompanyUUID.String(), j.UUID.String(), text, delay, jobRetention.Milliseconds(),
		j.CreatedAt.UnixMilli(), most, keptJobs,
	}}
	if err := script.Run(ctx, s.Client, call); err != nil {
		return fmt.Errorf("add job: %w", err)
	}
	switch call.Reply() {
	case int64(-1):
		return ErrTooManyJobs
	case int64(1):
		s.Queue.Wake(ctx, []int{p})
	}
	return nil
}

// Job reads a job of a company; delivery.ErrNotFound when there is none (finished ones are
// kept for 7 days).
func (s *Service) Job(ctx context.Context, company, id uuid.UUID) (Job, error) {
	text, err := s.Client.Get(ctx, jobKey(company, id)).Result()
	if errors.Is(err, redis.Nil) {
		return Job{}, delivery.ErrNotFound
	}
	if redis.HasErrorPrefix(err, "WRONGTYPE") {
		return Job{}, errors.Join(errUnreadable, err)
	}
	if err != nil {
		return Job{}, fmt.Errorf("read job: %w", err)
	}
	return decodeJob(text)
}

// errUnreadable says that the text of a job is damaged.
var errUnreadable = errors.New("the job cannot be read")

func decodeJob(text string) (Job, error) {
	j := Job{text: text}
	if err := json.Unmarshal([]byte(text), &j); err != nil {
		return Job{}, fmt.Errorf("%w: %w", errUnreadable, err)
	}
	return j, nil
}

// save stores a job's progress. It reports false when the stored job has changed meanwhile.
func (s *Service) save(ctx context.Context, j *Job) (saved bool, err error) {
	text, err := json.Marshal(*j)
	if err != nil {
		return false, fmt.Errorf("encode job: %w", err)
	}
	p, finished := partition.Of(j.CompanyUUID), "0"
	if j.finished() {
		finished = "1"
	}
	call := &script.Call{Script: saveScript, Keys: queues.Keys(p), Args: []any{
		partition.Prefix(p), j.CompanyUUID.String(), j.UUID.String(), j.text, text, jobRetention.Milliseconds(), finished,
	}}
	if err := script.Run(ctx, s.Client, call); err != nil {
		return false, fmt.Errorf("save job: %w", err)
	}
	if call.Reply() != int64(1) {
		return false, nil
	}
	j.text = string(text)
	return true, nil
}

// others lists the company's other jobs that were started before j, or in the same millisecond.
func (s *Service) others(ctx context.Context, j *Job) ([]uuid.UUID, error) {
	ids, err := s.Client.ZRangeByScore(ctx, jobsKey(j.CompanyUUID), &redis.ZRangeBy{
		Min: "-inf", Max: strconv.FormatInt(j.CreatedAt.UnixMilli(), 10),
	}).Result()
	if err != nil {
		return nil, fmt.Errorf("list jobs: %w", err)
	}
	others := make([]uuid.UUID, 0, len(ids))
	for _, text := range ids {
		if id, err := uuid.Parse(text); err == nil && id != j.UUID {
			others = append(others, id)
		}
	}
	return others, nil
}

// forget drops jobs that are finished, missing or unreadable.
func (s *Service) forget(ctx context.Context, company uuid.UUID, ids ...uuid.UUID) error {
	_, err := s.Client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for _, id := range ids {
			pipe.Unlink(ctx, jobKey(company, id))
			pipe.SRem(ctx, activeKey(company), id.String())
			pipe.ZRem(ctx, jobsKey(company), id.String())
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("forget jobs: %w", err)
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

// JobPage is one page of jobs, the newest first. Next is "" at the end.
type JobPage struct {
	Items []Job
	Next  string
}

const jobList = "jobs"

// jobPlace is where a page of jobs ended.
type jobPlace struct {
	MS int64  `json:"t"`
	ID string `json:"i"`
}

// after reports whether the list shows an entry of its index later.
func (p jobPlace) after(z redis.Z) bool {
	ms, id := int64(z.Score), z.Member.(string)
	return ms < p.MS || ms == p.MS && id < p.ID
}

// Jobs lists jobs of a company. cursor.ErrBad when the cursor is not of this list.
func (s *Service) Jobs(ctx context.Context, f JobFilter) (JobPage, error) {
	key := fmt.Sprint(f.Company, f.Subscriber, f.Kinds, f.Statuses)
	at := jobPlace{}
	if err := cursor.Decode(f.Cursor, jobList, key, &at); err != nil {
		return JobPage{}, err
	}
	index, err := s.Client.ZRevRangeWithScores(ctx, jobsKey(f.Company), 0, keptJobs).Result() // that is all
	if err != nil {
		return JobPage{}, fmt.Errorf("list jobs: %w", err)
	}
	if f.Cursor != "" {
		index = slices.DeleteFunc(index, func(z redis.Z) bool { return !at.after(z) })
	}
	size := max(1, min(f.Size, 100))
	if f.Size == 0 {
		size = 20
	}
	page := JobPage{}
	for some := range slices.Chunk(index, 100) {
		jobs, err := s.readJobs(ctx, f.Company, some)
		if err != nil {
			return JobPage{}, err
		}
		for i, j := range jobs {
			if j == nil || !f.matches(j) {
				continue
			}
			if len(page.Items) == size {
				page.Next = cursor.Encode(jobList, key, at)
				return page, nil
			}
			page.Items = append(page.Items, *j)
			at = jobPlace{MS: int64(some[i].Score), ID: some[i].Member.(string)}
		}
	}
	return page, nil
}

func (f *JobFilter) matches(j *Job) bool {
	return (f.Subscriber == nil || j.SubscriberUUID == *f.Subscriber) &&
		(len(f.Kinds) == 0 || slices.Contains(f.Kinds, j.Kind)) && (len(f.Statuses) == 0 || slices.Contains(f.Statuses, j.Status))
}

// readJobs reads jobs by their index; nil stands for one that is not kept any more, or
// is damaged.
func (s *Service) readJobs(ctx context.Context, company uuid.UUID, index []redis.Z) ([]*Job, error) {
	keys := make([]string, len(index))
	for i, z := range index {
		keys[i] = partition.Key(company, "job:"+company.String()+"/"+z.Member.(string))
	}
	texts, err := s.Client.MGet(ctx, keys...).Result()
	if err != nil {
		return nil, fmt.Errorf("read jobs: %w", err)
	}
	jobs := make([]*Job, len(index))
	for i, text := range texts {
		if text, ok := text.(string); ok {
			if j, err := decodeJob(text); err == nil {
				jobs[i] = &j
			}
		}
	}
	return jobs, nil
}

// cancelTries bounds the retries of Cancel while the job makes steps meanwhile.
const cancelTries = 10

// Cancel ends a job early. Its changes stay, and a running step is finished. A cancelled DROP
// leaves its subscriber paused. Cancelling a job again does nothing. delivery.ErrNotFound,
// ErrFinished, or ErrNotCancellable.
func (s *Service) Cancel(ctx context.Context, company, id uuid.UUID) (Job, error) {
	for range cancelTries {
		j, err := s.Job(ctx, company, id)
		switch {
		case err != nil, j.Status == JobCancelled:
			return j, err
		case j.Kind == JobCancel, j.Kind == JobErase:
			return j, ErrNotCancellable
		case j.Status == JobCompleted:
			return j, ErrFinished
		}
		j.end(JobCancelled, s.Now())
		if saved, err := s.save(ctx, &j); saved || err != nil {
			return j, err
		}
	}
	return Job{}, errContended
}
