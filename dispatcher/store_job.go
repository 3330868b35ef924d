package dispatcher

import (
	"context"
	"fmt"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/events"
	"spendhook/subscribers"
)

// jobRetention is how long a job can be watched after its last step.
const jobRetention = 7 * 24 * time.Hour

// addJob stores a job that is to begin at due.
func (s *Store) addJob(ctx context.Context, j Job, due time.Time) error {
	text, err := json.Marshal(j)
	if err != nil {
		return fmt.Errorf("encode job: %w", err)
	}
	_, err = s.client.TxPipelined(ctx, func(p redis.Pipeliner) error {
		p.Set(ctx, jobKey(j.CompanyUUID, j.UUID), text, jobRetention)
		p.ZAdd(ctx, delayedKey(events.Partition(j.CompanyUUID)), redis.Z{Score: float64(due.UnixMilli()), Member: j.ref()})
		return nil
	})
	if err != nil {
		return fmt.Errorf("add job: %w", err)
	}
	return nil
}

func (s *Store) job(ctx context.Context, company, id uuid.UUID) (Job, error) {
	text, err := s.client.Get(ctx, jobKey(company, id)).Bytes()
	if isNil(err) {
		return Job{}, ErrNotFound
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

// beginJob notes a job as in flight and reads it.
func (s *Store) beginJob(ctx context.Context, replica, token string, company, id uuid.UUID) (Job, error) {
	ref := (&Job{CompanyUUID: company, UUID: id}).ref()
	if err := s.client.HSet(ctx, inFlightKey(replica), token, ref).Err(); err != nil {
		return Job{}, fmt.Errorf("begin job: %w", err)
	}
	return s.job(ctx, company, id)
}

// saveJob keeps a job's progress.
func (s *Store) saveJob(ctx context.Context, j Job) error {
	text, err := json.Marshal(j)
	if err != nil {
		return fmt.Errorf("encode job: %w", err)
	}
	if err := s.client.Set(ctx, jobKey(j.CompanyUUID, j.UUID), text, jobRetention).Err(); err != nil {
		return fmt.Errorf("save job: %w", err)
	}
	return nil
}

func (s *Store) endJob(ctx context.Context, replica, token, ref string) error {
	p, err := partitionOf(ref)
	if err != nil {
		return err
	}
	pipe := s.client.Pipeline()
	pipe.ZRem(ctx, events.OpenKey(p), ref)
	pipe.HDel(ctx, inFlightKey(replica), token)
	if _, err := pipe.Exec(ctx); err != nil {
		return fmt.Errorf("end job: %w", err)
	}
	return nil
}

// subscriberVersion is the version of a company's subscribers, 0 when it has none.
func (s *Store) subscriberVersion(ctx context.Context, company uuid.UUID) (int64, error) {
	v, err := s.client.HGet(ctx, subscribers.CompanyKey(company), subscribers.VersionField).Int64()
	if isNil(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read subscriber version: %w", err)
	}
	return v, nil
}

func (s *Store) stats(ctx context.Context, company, sub uuid.UUID) (Stats, error) {
	pipe := s.client.Pipeline()
	all := pipe.ZCard(ctx, allOfSubscriber(company, sub))
	live := pipe.ZCard(ctx, liveOfSubscriber(company, sub))
	dead := pipe.ZCard(ctx, deadOfSubscriber(company, sub))
	oldest := pipe.ZRangeWithScores(ctx, liveOfSubscriber(company, sub), 0, 0)
	if _, err := pipe.Exec(ctx); err != nil {
		return Stats{}, fmt.Errorf("count deliveries: %w", err)
	}
	out := Stats{Total: all.Val(), Live: live.Val(), Dead: dead.Val()}
	for _, z := range oldest.Val() {
		at := msTime(int64(z.Score))
		out.OldestLiveAt = &at
	}
	return out, nil
}
