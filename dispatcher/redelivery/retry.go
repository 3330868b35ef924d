package redelivery

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/google/uuid"

	"spendhook/dispatcher/delivery"
	"spendhook/dispatcher/delivery/lifecycle"
	"spendhook/dispatcher/delivery/query"
	"spendhook/dispatcher/delivery/store"
	"spendhook/subscribers"
)

// RetryRequest says which deliveries of a company to attempt again.
type RetryRequest struct {
	Company uuid.UUID
	Filter  query.Filter // applies to present deliveries; no status: DEAD
	DryRun  bool         // only count
}

// Matching is the filter of the deliveries to retry.
func (r *RetryRequest) Matching() query.Filter {
	f := r.Filter
	f.Company = &r.Company
	if len(f.Statuses) == 0 {
		f.Statuses = []delivery.Status{delivery.StatusDead}
	}
	return f
}

// retryAtOnce is how many pages a dry run counts before it becomes a job.
const retryAtOnce = 2

// RetryAll starts a job that attempts the deliveries of the filter again, each with a fresh
// schedule. It skips deliveries with an attempt under way, deliveries whose subscriber is disabled
// or was deleted, and deliveries created after the call. A dry run over few deliveries is completed
// when RetryAll returns. subscribers.ErrNotFound, delivery.ErrSubscriberDisabled or ErrTooManyJobs.
func (s *Service) RetryAll(ctx context.Context, r RetryRequest) (Job, error) {
	f := r.Matching()
	if f.Subscriber != nil {
		_, err := s.reachable(ctx, r.Company, *f.Subscriber)
		if errors.Is(err, delivery.ErrSubscriberGone) {
			err = subscribers.ErrNotFound
		}
		if err != nil {
			return Job{}, err
		}
	}
	now := s.Now().UTC()
	if f.To == nil || f.To.After(now) {
		f.To = &now
	}
	j := Job{CompanyUUID: r.Company, Kind: JobRetry, Retry: &f, DryRun: r.DryRun}
	if f.Subscriber != nil {
		j.SubscriberUUID = *f.Subscriber
	}
	s.prepare(&j)
	for range retryAtOnce {
		if !j.DryRun || j.finished() {
			break
		}
		if err := s.step(ctx, &j); err != nil {
			return Job{}, err
		}
	}
	return j, s.add(ctx, j, 0)
}

// errHeld says that a step must wait: for endpoint queues to get shorter, for events and jobs to
// end before they are erased, or for the deletion of a subscriber.
var errHeld = errors.New("the job must wait")

// maxHeld is how long a job over several subscribers waits for one full endpoint queue. Then it
// makes another step, so that one endpoint that is down does not block the others.
const maxHeld = 30 * time.Second

// retryMatching attempts a page of deliveries again.
func (s *Service) retryMatching(ctx context.Context, j *Job) (string, error) {
	f := *j.Retry
	f.Company, f.Cursor, f.Size = &j.CompanyUUID, j.Cursor, jobPage
	page, err := s.Deliveries.List(ctx, f)
	if err != nil {
		return "", err
	}
	subs, err := s.Registry.Current(ctx, j.CompanyUUID)
	if err != nil {
		return "", err
	}
	enabled := make(map[uuid.UUID]bool, len(subs))
	for _, sub := range subs {
		enabled[sub.UUID] = sub.Enabled
	}
	var writes []store.Write
	var to []uuid.UUID
	for i := range page.Items {
		d := &page.Items[i]
		if !enabled[d.Subscriber] || d.Status == delivery.StatusDelivering {
			continue
		}
		next := lifecycle.Restart(d.Record, delivery.ReasonReplay, s.Now())
		writes = append(writes, writeOf(d.Ref, &d.Record, &next))
		if !slices.Contains(to, d.Subscriber) {
			to = append(to, d.Subscriber)
		}
	}
	if err := s.hold(ctx, j, to...); err != nil {
		return "", err
	}
	j.Examined += int64(len(page.Items))
	return page.Next, s.redeliver(ctx, j, writes)
}

// hold returns errHeld while one of the subscribers has many deliveries due.
func (s *Service) hold(ctx context.Context, j *Job, subs ...uuid.UUID) error {
	if j.DryRun {
		return nil
	}
	waiting, err := s.Deliveries.Waiting(ctx, j.CompanyUUID, subs...)
	if err != nil || waiting <= crowdedAbove {
		return err
	}
	if j.SubscriberUUID == uuid.Nil && !j.HeldSince.IsZero() && s.Now().Sub(j.HeldSince) >= maxHeld {
		return nil
	}
	return errHeld
}
