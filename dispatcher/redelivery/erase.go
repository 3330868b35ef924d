package redelivery

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/google/uuid"

	"spendhook/dispatcher/delivery"
	"spendhook/dispatcher/delivery/query"
	"spendhook/dispatcher/workqueue/quarantine"
	"spendhook/events"
	"spendhook/subscribers"
	"spendhook/subscribers/certificate"
)

// Erase starts a job that erases the present data of a company: its subscribers with their
// secrets, its egress certificate, its pending deliveries, the payloads of its events with the
// receivers' answers, and its other jobs. Ids, digests and numbers of events stay, and so does
// data that the company adds later. ErrTooManyJobs.
func (s *Service) Erase(ctx context.Context, company uuid.UUID) (Job, error) {
	return s.startJob(ctx, Job{CompanyUUID: company, Kind: JobErase, Until: s.Now().UTC().Truncate(time.Millisecond)})
}

// eraseSubscribers deletes the subscribers, each with a job that cancels its pending
// deliveries. Other jobs end first, because they would create deliveries again.
func (s *Service) eraseSubscribers(ctx context.Context, j *Job) (string, error) {
	if err := s.cancelOthers(ctx, j); err != nil {
		return "", err
	}
	subs, err := s.Registry.Current(ctx, j.CompanyUUID)
	if err != nil {
		return "", err
	}
	removal := subscribers.NewService(s.Subscribers, s)
	for _, sub := range subs {
		if sub.CreatedAt.After(j.Until) {
			continue
		}
		j.Examined++
		if err := removal.Delete(ctx, j.CompanyUUID, sub.UUID); err != nil && !errors.Is(err, subscribers.ErrNotFound) {
			return "", err
		}
	}
	err = s.Certificates.Remove(ctx, j.CompanyUUID)
	if errors.Is(err, certificate.ErrNotFound) {
		err = nil
	}
	return "", err
}

// cancelOthers ends the company's jobs that are older than this one and can be ended.
func (s *Service) cancelOthers(ctx context.Context, j *Job) error {
	others, err := s.others(ctx, j)
	for _, other := range others {
		_, failed := s.Cancel(ctx, j.CompanyUUID, other)
		if !errors.Is(failed, ErrNotCancellable) && !errors.Is(failed, ErrFinished) &&
			!errors.Is(failed, delivery.ErrNotFound) && !errors.Is(failed, errUnreadable) {
			err = errors.Join(err, failed)
		}
	}
	return err
}

// forceAfter is how long the job waits until unreadable events are quarantined, where they are
// counted. After that it erases them all the same.
const forceAfter = time.Minute

// eraseEvents erases a page of events, the oldest first. It waits at a page while one of its
// events is open: pending deliveries end through the jobs of the subscribers, through attempts
// under way, or when the event is matched with no subscriber.
func (s *Service) eraseEvents(ctx context.Context, j *Job) (string, error) {
	if err := s.dropQuarantined(ctx, j); err != nil {
		return "", err
	}
	ids, next, err := s.Events.Walk(ctx, j.CompanyUUID, time.UnixMilli(0), j.Until, j.Cursor, jobPage)
	if err != nil {
		return "", err
	}
	refs := make([]events.Ref, len(ids))
	for i, id := range ids {
		refs[i] = events.Ref{Company: j.CompanyUUID, ID: id}
	}
	return next, s.eraseAll(ctx, j, refs)
}

// eraseAll returns errHeld when some of the events are open.
func (s *Service) eraseAll(ctx context.Context, j *Job, refs []events.Ref) error {
	erased, open, err := s.Deliveries.EraseAll(ctx, refs, s.Now().Sub(j.CreatedAt) > forceAfter)
	j.Examined += int64(erased)
	j.Redelivered += int64(erased)
	if err == nil && open > 0 {
		return errHeld
	}
	return err
}

// dropQuarantined drops the company's entries from the quarantine. Its subscribers are deleted
// already.
func (s *Service) dropQuarantined(ctx context.Context, j *Job) error {
	page, err := s.Quarantine.List(ctx, quarantine.Filter{Company: &j.CompanyUUID, Size: 100})
	if err != nil {
		return err
	}
	for _, e := range page.Items {
		if e.EventID == "" {
			err = s.Quarantine.Forget(ctx, e)
		} else {
			err = s.Deliveries.DropQuarantined(ctx, e)
		}
		if err != nil && !errors.Is(err, quarantine.ErrNotFound) && !errors.Is(err, delivery.ErrInFlight) {
			return err
		}
	}
	return nil
}

// eraseDead erases the events of dead letters. They are kept longer than the index of events
// lists them.
func (s *Service) eraseDead(ctx context.Context, j *Job) (string, error) {
	page, err := s.Deliveries.List(ctx, query.Filter{
		Company: &j.CompanyUUID, Statuses: []delivery.Status{delivery.StatusDead}, To: &j.Until, Cursor: j.Cursor, Size: jobPage,
	})
	if err != nil {
		return "", err
	}
	refs := make([]events.Ref, 0, len(page.Items))
	for i := range page.Items {
		refs = append(refs, page.Items[i].Ref.Ref)
	}
	return page.Next, s.eraseAll(ctx, j, refs)
}

// eraseJobs waits for the company's other jobs to end, and deletes them. Of two ERASE jobs the
// later one waits for the earlier.
func (s *Service) eraseJobs(ctx context.Context, j *Job) (string, error) {
	others, err := s.others(ctx, j)
	if err != nil {
		return "", err
	}
	ended := make([]uuid.UUID, 0, len(others))
	for _, id := range others {
		other, err := s.Job(ctx, j.CompanyUUID, id)
		switch {
		case err != nil && !errors.Is(err, delivery.ErrNotFound) && !errors.Is(err, errUnreadable):
			return "", err
		case err != nil || other.finished():
			ended = append(ended, id)
		case other.Kind != JobErase || other.startedBefore(j):
			return "", errHeld
		}
	}
	return "", s.forget(ctx, j.CompanyUUID, ended...)
}

// startedBefore orders jobs. The UUID decides between jobs that were started at the same time.
func (j *Job) startedBefore(o *Job) bool {
	return cmp.Or(j.CreatedAt.Compare(o.CreatedAt), bytes.Compare(j.UUID[:], o.UUID[:])) < 0
}
