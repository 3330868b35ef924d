package redelivery

import (
	"context"
	_ "embed" // the script
	"errors"
	"fmt"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/dispatcher/delivery"
	"spendhook/dispatcher/workqueue"
	"spendhook/internal/partition"
	"spendhook/internal/script"
)

//go:embed lua/add.lua
var addSource string

var addScript = workqueue.Script(addSource, false)

// jobRetention is how long a job can be watched after its last step.
const jobRetention = 7 * 24 * time.Hour

// jobKey: string with the job's JSON.
func jobKey(company, job uuid.UUID) string {
	return partition.Key(company, "job:"+company.String()+"/"+job.String())
}

// add stores a job that is to begin after a delay.
func (s *Service) add(ctx context.Context, j Job, after time.Duration) error {
	text, err := json.Marshal(j)
	if err != nil {
		return fmt.Errorf("encode job: %w", err)
	}
	p := partition.Of(j.CompanyUUID)
	call := &script.Call{Script: addScript, Keys: workqueue.Keys(p), Args: []any{
		partition.Prefix(p), j.CompanyUUID.String(), j.UUID.String(), text, after.Milliseconds(), jobRetention.Milliseconds(),
	}}
	if err := script.Run(ctx, s.Client, nil, call); err != nil {
		return fmt.Errorf("add job: %w", err)
	}
	if wake, _ := call.Reply().(int64); wake == 1 {
		s.Queue.Wake(ctx, []int{p})
	}
	return nil
}

// Job reads a job of a company; delivery.ErrNotFound when there is none (they are
// kept for 7 days).
func (s *Service) Job(ctx context.Context, company, id uuid.UUID) (Job, error) {
	text, err := s.Client.Get(ctx, jobKey(company, id)).Bytes()
	if errors.Is(err, redis.Nil) {
		return Job{}, delivery.ErrNotFound
	}
	if err != nil {
		return Job{}, fmt.Errorf("read job: %w", err)
	}
	var j Job
	if err := json.Unmarshal(text, &j); err != nil {
		return Job{}, fmt.Errorf("decode job: %w", err)
	}
	return j, nil
}

// save keeps a job's progress.
func (s *Service) save(ctx context.Context, j Job) error {
	text, err := json.Marshal(j)
	if err != nil {
		return fmt.Errorf("encode job: %w", err)
	}
	if err := s.Client.Set(ctx, jobKey(j.CompanyUUID, j.UUID), text, jobRetention).Err(); err != nil {
		return fmt.Errorf("save job: %w", err)
	}
	return nil
}
