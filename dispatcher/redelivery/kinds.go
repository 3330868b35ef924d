package redelivery

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/google/uuid"

	"spendhook/dispatcher/delivery"
	"spendhook/dispatcher/delivery/store"
	"spendhook/events"
	"spendhook/subscribers"
	"spendhook/subscribers/expression"
)

// BulkRequest says which deliveries of a company to change.
type BulkRequest struct {
	Kind    JobKind // JobRetry or JobCancel
	Company uuid.UUID
	Filter  store.Filter // without a status: DEAD for JobRetry, PENDING and RETRYING for JobCancel
	DryRun  bool         // only count
}

// Detail describes the request in the audit log, which outlives the job: its filter as JSON.
func (r *BulkRequest) Detail() string {
	filter, err := json.Marshal(r.Filter)
	if err != nil { // a time beyond year 9999
		return ""
	}
	detail := string(filter[:min(len(filter), maxDetail)])
	if r.DryRun {
		return "dry run of " + detail
	}
	return detail
}

// maxDetail bounds Detail, in bytes.
const maxDetail = 1000

// Matching is the filter of the deliveries to change. The error is ErrNotWaiting for a cancellation of a status other
// than PENDING and RETRYING.
func (r *BulkRequest) Matching() (store.Filter, error) {
	f, usual := r.Filter, []delivery.Status{delivery.StatusDead}
	f.Company = &r.Company
	if r.Kind == JobCancel {
		usual = waiting
		if slices.ContainsFunc(f.Statuses, func(status delivery.Status) bool { return !slices.Contains(waiting, status) }) {
			return f, ErrNotWaiting
		}
	}
	if len(f.Statuses) == 0 {
		f.Statuses = usual
	}
	return f, nil
}

// Bulk starts a job that changes the deliveries of the filter, but none that was created after the call.
//
// JobRetry attempts them again, each with a fresh schedule. It skips deliveries with an attempt under way, and
// those whose subscriber is disabled or was deleted.
//
// JobCancel cancels those that wait for an attempt, also those of events that are not matched yet. It looks again when
// attempts that are under way have ended, for those that failed and still match.
//
// A dry run over few deliveries is completed when Bulk returns. The error may be that of Matching, subscribers.ErrNotFound,
// delivery.ErrSubscriberDisabled, publish.ErrStorageFull or ErrTooManyJobs.
func (s *Service) Bulk(ctx context.Context, r BulkRequest) (Job, error) {
	f, err := r.Matching()
	if err != nil {
		return Job{}, err
	}
	now, err := s.present(ctx, r.Company)
	if err != nil {
		return Job{}, err
	}
	if f.To == nil || f.To.After(now) {
		f.To = &now
	}
	j := Job{CompanyUUID: r.Company, Kind: r.Kind, Filter: f, DryRun: r.DryRun}
	if f.Subscriber != nil {
		j.SubscriberUUID = *f.Subscriber
		err := s.reachable(ctx, r.Company, *f.Subscriber)
		if err != nil && (r.Kind != JobCancel || !errors.Is(err, delivery.ErrSubscriberDisabled)) {
			return Job{}, err
		}
	}
	return s.startJob(ctx, j)
}

// ErrNotWaiting says that deliveries of a status cannot be cancelled.
var ErrNotWaiting = errors.New("only PENDING and RETRYING deliveries can be cancelled")

// waiting are the statuses of deliveries that wait for an attempt.
var waiting = []delivery.Status{delivery.StatusPending, delivery.StatusRetrying}

// RecoverRequest says what to deliver again to a subscriber.
type RecoverRequest struct {
	Company, Subscriber uuid.UUID
	Since               time.Time         // the earliest acceptance of an event
	Until               time.Time         // the latest acceptance; zero: now
	Statuses            []delivery.Status // of existing deliveries; empty: DEAD. Missed events are always included
	DryRun              bool              // only count
}

// Recover starts a job that sends the failed deliveries of a time span again, and the events
// that the subscriber missed while it was disabled.
// The error may be subscribers.ErrNotFound, delivery.ErrSubscriberDisabled, publish.ErrStorageFull or
// ErrTooManyJobs.
func (s *Service) Recover(ctx context.Context, r RecoverRequest) (Job, error) {
	if err := s.reachable(ctx, r.Company, r.Subscriber); err != nil {
		return Job{}, err
	}
	now := s.Now().UTC()
	if r.Until.IsZero() || r.Until.After(now) {
		r.Until = now
	}
	if len(r.Statuses) == 0 {
		r.Statuses = []delivery.Status{delivery.StatusDead}
	}
	return s.startJob(ctx, Job{
		CompanyUUID: r.Company, SubscriberUUID: r.Subscriber, Kind: JobRecover, DryRun: r.DryRun,
		Filter: store.Filter{From: &r.Since, To: &r.Until, Statuses: r.Statuses},
	})
}

// walk changes a page of the job's deliveries, newest first: only dead ones, or all others. Dead letters
// have their own index, which keeps them longer. walk skips deliveries with an attempt under way and
// those that change meanwhile. All jobs but DROP and CANCEL also skip deliveries whose subscriber is disabled or was
// deleted.
func (s *Service) walk(ctx context.Context, j *Job, dead bool) (string, error) {
	statuses := slices.DeleteFunc(slices.Clone(j.Filter.Statuses), func(status delivery.Status) bool {
		return (status == delivery.StatusDead) != dead
	})
	if len(statuses) == 0 {
		return "", nil
	}
	page, err := s.Deliveries.List(ctx, j.page(statuses, s.Page))
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
	for i := range page.Items {
		d := &page.Items[i]
		var next delivery.Record
		switch {
		case d.Status == delivery.StatusDelivering:
			continue
		case j.Kind == JobDrop || j.Kind == JobCancel:
			next = delivery.Cancel(d.Record, delivery.ReasonDropped, s.Now())
		case !enabled[d.Subscriber]:
			continue
		default:
			next = delivery.Restart(d.Record, j.reason(), s.Now())
		}
		writes = append(writes, writeOf(d.Ref, &d.Record, &next))
	}
	return page.Next, s.redeliver(ctx, j, len(page.Items), writes)
}

// cancelAll cancels the deliveries that wait, until all events that were accepted before the call are matched. Without
// delivery.StatusPending in its filter it has nothing to wait for.
func (s *Service) cancelAll(ctx context.Context, j *Job) (string, error) {
	if !slices.Contains(j.Filter.Statuses, delivery.StatusPending) {
		return s.walk(ctx, j, false)
	}
	matched, err := s.Events.Matched(ctx, j.CompanyUUID, *j.Filter.To)
	if err != nil {
		return "", err
	}
	if !matched && s.checkMemory(j.CompanyUUID) == nil { // each delivery that spills gets a record
		s.Spill(j.CompanyUUID)
	}
	next, err := s.walk(ctx, j, false)
	if next == "" && err == nil && !matched {
		j.Cursor, err = "", errHeld
	}
	return next, err
}

// awaitAttempts waits until attempts that were under way when the job looked have ended, so that its next look finds
// those that failed.
func (s *Service) awaitAttempts(_ context.Context, j *Job) (string, error) {
	if s.Now().Sub(j.UpdatedAt) < s.Attempt {
		return "", errHeld
	}
	return "", nil
}

// recoverMissed creates deliveries of the events of the time span that match the subscriber and
// have no delivery to it.
func (s *Service) recoverMissed(ctx context.Context, j *Job) (string, error) {
	sub, err := s.Registry.Find(ctx, j.CompanyUUID, j.SubscriberUUID)
	if errors.Is(err, subscribers.ErrNotFound) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	ids, next, err := s.Events.Walk(ctx, j.CompanyUUID, *j.Filter.From, *j.Filter.To, j.Cursor, s.Page)
	if err != nil {
		return "", err
	}
	batches, err := s.missed(ctx, j.CompanyUUID, sub.UUID, ids)
	if err != nil {
		return "", err
	}
	var writes []store.Write
	for _, batch := range batches {
		stored, err := s.Events.GetMany(ctx, batch)
		if err != nil {
			return "", err
		}
		for _, e := range stored {
			if e == nil || e.State == events.Ready || e.State == events.Compacted || e.AcceptedAt.Before(sub.CreatedAt) {
				continue
			}
			candidate := expression.NewEvent(e.Event)
			matches, _ := sub.Matches(ctx, candidate) // a filter that fails does not match
			key := ""
			if matches {
				key, _ = sub.OrderKey(ctx, candidate) // one that fails has none
			}
			if err := ctx.Err(); err != nil {
				return "", err
			}
			if matches {
				base := delivery.NewRecord(*e, key)
				next := delivery.Restart(*base, j.reason(), s.Now())
				writes = append(writes, writeOf(delivery.Ref{Ref: e.Ref(), Subscriber: sub.UUID}, base, &next))
			}
		}
	}
	return next, s.redeliver(ctx, j, len(ids), writes)
}

// missed returns the events without a delivery to the subscriber, in batches that may be loaded at
// once.
func (s *Service) missed(ctx context.Context, company, sub uuid.UUID, ids []string) ([][]events.Ref, error) {
	var refs []delivery.Ref
	for _, event := range refsOf(company, ids) {
		refs = append(refs, delivery.Ref{Ref: event, Subscriber: sub})
	}
	kept, err := s.Deliveries.Stored(ctx, refs)
	if err != nil {
		return nil, err
	}
	var missed []events.Ref
	for i, r := range refs {
		if kept[i] == nil {
			missed = append(missed, r.Ref)
		}
	}
	return s.Events.Batches(ctx, missed)
}

func refsOf(company uuid.UUID, ids []string) []events.Ref {
	refs := make([]events.Ref, len(ids))
	for i, id := range ids {
		refs[i] = events.Ref{Company: company, ID: id}
	}
	return refs
}

// live are the statuses of deliveries with attempts ahead.
var live = []delivery.Status{delivery.StatusPending, delivery.StatusDelivering, delivery.StatusRetrying}

// Drop starts a job that cancels the deliveries that wait for a subscriber, and then ends its pause, if
// any. It keeps deliveries of events accepted from this millisecond on. The error may be
// subscribers.ErrNotFound or ErrTooManyJobs.
func (s *Service) Drop(ctx context.Context, company, subscriber uuid.UUID) (Job, error) {
	if _, err := s.Registry.Find(ctx, company, subscriber); err != nil {
		return Job{}, err
	}
	until := s.Now().UTC().Truncate(time.Millisecond).Add(-time.Millisecond)
	return s.startJob(ctx, Job{
		CompanyUUID: company, SubscriberUUID: subscriber, Kind: JobDrop, Filter: store.Filter{To: &until, Statuses: live},
	})
}

// resume ends the pause of the job's subscriber, if it still exists.
func (s *Service) resume(ctx context.Context, j *Job) (string, error) {
	err := s.Subscribers.Resume(ctx, j.CompanyUUID, j.SubscriberUUID)
	if errors.Is(err, subscribers.ErrNotFound) {
		err = nil
	}
	return "", err
}
