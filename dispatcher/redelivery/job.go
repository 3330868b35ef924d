package redelivery

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"

	"spendhook/dispatcher/delivery"
	"spendhook/dispatcher/delivery/lifecycle"
	"spendhook/dispatcher/delivery/query"
	"spendhook/dispatcher/delivery/store"
	"spendhook/events"
	"spendhook/internal/cursor"
	"spendhook/subscribers"
	"spendhook/subscribers/filter"
)

// JobKind is what a job does with deliveries.
type JobKind string

// The kinds of job.
const (
	JobRecover JobKind = "RECOVER" // send failed and missed deliveries again
	JobCancel  JobKind = "CANCEL"  // cancel pending deliveries of a deleted subscriber
	JobDrop    JobKind = "DROP"    // drop the deliveries that wait for a paused subscriber, then resume it
	JobRetry   JobKind = "RETRY"   // send the deliveries that match a filter again
	JobErase   JobKind = "ERASE"   // erase the data of a company
)

// JobStatus is the status of a job.
type JobStatus string

// The job statuses.
const (
	JobQueued    JobStatus = "QUEUED"
	JobRunning   JobStatus = "RUNNING"
	JobCompleted JobStatus = "COMPLETED"
	JobCancelled JobStatus = "CANCELLED"
)

// Job changes many deliveries of one subscriber or company in the background, a page at a
// time. After a crash it continues from its last page.
type Job struct {
	UUID           uuid.UUID         `json:"uuid"`
	CompanyUUID    uuid.UUID         `json:"company"`
	SubscriberUUID uuid.UUID         `json:"subscriber,omitzero"` // zero: all of the company's
	Kind           JobKind           `json:"kind"`
	Status         JobStatus         `json:"status"`
	DryRun         bool              `json:"dryRun,omitzero"`
	Since          time.Time         `json:"since,omitzero"`
	Until          time.Time         `json:"until,omitzero"`
	Statuses       []delivery.Status `json:"statuses,omitempty"`
	Retry          *query.Filter     `json:"retry,omitempty"` // filter of a RETRY
	Examined       int64             `json:"examined"`        // deliveries and events examined
	Redelivered    int64             `json:"redelivered"`     // deliveries changed (in a dry run: that would change); of an ERASE, payloads erased
	CreatedAt      time.Time         `json:"createdAt"`
	UpdatedAt      time.Time         `json:"updatedAt"`
	FinishedAt     *time.Time        `json:"finishedAt,omitempty"`

	Phase  int    `json:"phase"`            // index into phases(Kind)
	Cursor string `json:"cursor,omitempty"` // where the phase goes on

	HeldSince time.Time `json:"heldSince,omitzero"` // since when the job waits, see errHeld

	text string // as it was read

	Unknown jsontext.Value `json:",embed"` // what a newer release wrote
}

func (j *Job) finished() bool { return j.Status == JobCompleted || j.Status == JobCancelled }

// end finishes the job.
func (j *Job) end(as JobStatus, now time.Time) {
	now = now.UTC()
	j.Status, j.UpdatedAt, j.FinishedAt = as, now, &now
}

// RecoverRequest says what to deliver again to a subscriber.
type RecoverRequest struct {
	Company, Subscriber uuid.UUID
	Since               time.Time         // events accepted from here on
	Until               time.Time         // to here, inclusive; zero: now
	Statuses            []delivery.Status // of existing deliveries; empty: DEAD. Missed events are always included
	DryRun              bool              // only count
}

// Recover starts a job that sends the failed deliveries of a time span again, and the events
// that the subscriber missed while it was disabled.
// delivery.ErrSubscriberGone, delivery.ErrSubscriberDisabled or ErrTooManyJobs.
func (s *Service) Recover(ctx context.Context, r RecoverRequest) (Job, error) {
	if _, err := s.reachable(ctx, r.Company, r.Subscriber); err != nil {
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
		CompanyUUID: r.Company, SubscriberUUID: r.Subscriber, Kind: JobRecover,
		Since: r.Since, Until: r.Until, Statuses: r.Statuses, DryRun: r.DryRun,
	})
}

// SubscriberDeleting starts a job that cancels the pending deliveries of a subscriber. Call it
// before the deletion: the job waits up to cancelWithin for the deletion, and does nothing if the
// subscriber still exists then. So neither a crash nor a lost answer leaves pending deliveries
// behind. ErrTooManyJobs while too many subscribers are being deleted.
func (s *Service) SubscriberDeleting(ctx context.Context, company, subscriber uuid.UUID) error {
	_, err := s.startJob(ctx, Job{CompanyUUID: company, SubscriberUUID: subscriber, Kind: JobCancel})
	return err
}

// Drop starts a job that pauses a subscriber if it is not paused, cancels the deliveries that
// wait for it, and then resumes it. Deliveries of events accepted from this millisecond on are
// kept. subscribers.ErrNotFound or ErrTooManyJobs.
func (s *Service) Drop(ctx context.Context, company, subscriber uuid.UUID) (Job, error) {
	_, err := s.reachable(ctx, company, subscriber)
	if errors.Is(err, delivery.ErrSubscriberGone) {
		return Job{}, subscribers.ErrNotFound
	}
	if err != nil && !errors.Is(err, delivery.ErrSubscriberDisabled) {
		return Job{}, err
	}
	return s.startJob(ctx, Job{CompanyUUID: company, SubscriberUUID: subscriber, Kind: JobDrop, Until: s.Now().UTC().Truncate(time.Millisecond).Add(-time.Millisecond)})
}

const (
	// cancelAfter is the delay of a CANCEL job, so that it seldom waits for the deletion.
	cancelAfter = time.Second
	// cancelWithin is how long a CANCEL job waits for the deletion, which takes longer than
	// usual when the process is suspended or the network is slow. Without the job, deliveries
	// are cancelled when they become due.
	cancelWithin = time.Minute
)

func (s *Service) startJob(ctx context.Context, j Job) (Job, error) {
	s.prepare(&j)
	after := time.Duration(0)
	if j.Kind == JobCancel {
		after = cancelAfter
	}
	return j, s.add(ctx, j, after)
}

// prepare sets the job's UUID, status and times.
func (s *Service) prepare(j *Job) {
	now := s.Now().UTC()
	j.UUID, j.Status, j.CreatedAt, j.UpdatedAt = s.NewID(), JobQueued, now, now
}

const (
	// minWait and maxWait bound the delay of the next step of a job that must wait.
	minWait = time.Second
	maxWait = 10 * time.Second
	// crowdedAbove is how many due deliveries of a subscriber make its jobs wait, so that
	// restarted deliveries do not delay new ones for long.
	crowdedAbove = 1000
)

// Step runs one step of a job that the caller has claimed, and returns when the next one is due;
// negative when the job is done. After a crash the step runs again: its changes are compare-and-set
// and recognise what is done already.
func (s *Service) Step(ctx context.Context, company, id uuid.UUID) (again time.Duration, err error) {
	j, err := s.Job(ctx, company, id)
	switch {
	case errors.Is(err, errUnreadable):
		s.Logger.Error("job dropped", "company_uuid", company, "job_uuid", id, "exception.message", err)
		return -1, s.forget(ctx, company, id)
	case errors.Is(err, delivery.ErrNotFound):
		return -1, s.forget(ctx, company, id)
	case err != nil:
		return 0, err
	case j.finished():
		return -1, nil
	}
	err = s.step(ctx, &j)
	if err != nil && !errors.Is(err, errHeld) {
		return 0, err
	}
	again = j.waits(errors.Is(err, errHeld), s.Now().UTC())
	saved, err := s.save(ctx, &j)
	switch {
	case err != nil:
		return 0, err
	case !saved:
		return s.overtaken(ctx, j)
	case j.finished():
		return -1, nil
	}
	return again, nil
}

// waits notes whether the job must wait, and returns the delay of its next step: as long as it
// has waited already.
func (j *Job) waits(held bool, now time.Time) time.Duration {
	if !held {
		j.HeldSince = time.Time{}
		return 0
	}
	if j.HeldSince.IsZero() {
		j.HeldSince = now
	}
	return min(max(now.Sub(j.HeldSince), minWait), maxWait)
}

// overtaken handles a job that was changed during a step. A cancelled job keeps the counts of
// the step. A job that another replica has stepped meanwhile goes on with its next step.
func (s *Service) overtaken(ctx context.Context, j Job) (again time.Duration, err error) {
	now, err := s.Job(ctx, j.CompanyUUID, j.UUID)
	if err != nil {
		return 0, err
	}
	if !now.finished() {
		return 0, nil
	}
	now.Examined, now.Redelivered = j.Examined, j.Redelivered
	_, err = s.save(ctx, &now)
	return -1, err
}

// jobPage is how many deliveries or events one step of a job examines.
const jobPage = 500

// phase processes one page and returns where the next begins, "" after the last.
type phase func(context.Context, *Job) (next string, err error)

func (s *Service) phases(k JobKind) []phase {
	switch k {
	case JobRecover:
		return []phase{s.recoverIn(delivery.StatusDead), s.recoverIn(), s.recoverMissed}
	case JobCancel:
		return []phase{s.cancelLive}
	case JobDrop:
		return []phase{unlessGone(s.Subscribers.Pause), s.dropWaiting, unlessGone(s.Subscribers.Resume)}
	case JobRetry:
		return []phase{s.retryMatching}
	case JobErase:
		return []phase{s.eraseSubscribers, s.eraseEvents, s.eraseDead, s.eraseJobs}
	}
	return nil
}

// step processes one page of a job. It may run twice after a crash: its changes are
// compare-and-set.
func (s *Service) step(ctx context.Context, j *Job) error {
	phases := s.phases(j.Kind)
	j.Status, j.UpdatedAt = JobRunning, s.Now().UTC()
	if j.Phase < len(phases) {
		next, err := phases[j.Phase](ctx, j)
		if err != nil {
			return err
		}
		if j.Cursor = next; next == "" {
			j.Phase++
		}
	}
	if j.Phase >= len(phases) {
		j.end(JobCompleted, s.Now())
	}
	return nil
}

// recoverIn restarts deliveries of the span in the job's statuses: with DEAD the dead letters, with
// no status all others. The dead letters have an index of their own, which keeps them longer than
// settled deliveries are kept.
func (s *Service) recoverIn(walked ...delivery.Status) phase {
	return func(ctx context.Context, j *Job) (string, error) {
		asked := slices.DeleteFunc(slices.Clone(j.Statuses), func(st delivery.Status) bool {
			return (st == delivery.StatusDead) != (len(walked) > 0)
		})
		if len(asked) == 0 {
			return "", nil
		}
		if err := s.hold(ctx, j, j.SubscriberUUID); err != nil {
			return "", err
		}
		return s.walk(ctx, j, walked, func(r delivery.Record) (delivery.Record, bool) {
			due := slices.Contains(asked, r.Status) && r.Status != delivery.StatusDelivering && j.spans(r)
			return lifecycle.Restart(r, delivery.ReasonRecover, s.Now()), due
		})
	}
}

// spans reports whether the delivery's event was accepted in the job's span.
func (j *Job) spans(r delivery.Record) bool {
	created := time.UnixMilli(r.Created)
	return !created.Before(j.Since) && !created.After(j.Until)
}

func (s *Service) cancelLive(ctx context.Context, j *Job) (string, error) {
	_, err := s.reachable(ctx, j.CompanyUUID, j.SubscriberUUID)
	if err == nil || errors.Is(err, delivery.ErrSubscriberDisabled) {
		if s.Now().Sub(j.CreatedAt) < cancelWithin {
			return "", errHeld
		}
		return "", nil // the deletion failed: the subscriber exists
	}
	if !errors.Is(err, delivery.ErrSubscriberGone) {
		return "", err
	}
	return s.walk(ctx, j, live, func(r delivery.Record) (delivery.Record, bool) {
		if r.Status == delivery.StatusDelivering { // its attempt ends it
			return r, false
		}
		return lifecycle.Cancel(r, s.Now()), true
	})
}

// unlessGone is a phase that changes the subscriber, if it still exists.
func unlessGone(change func(ctx context.Context, company, subscriber uuid.UUID) error) phase {
	return func(ctx context.Context, j *Job) (string, error) {
		err := change(ctx, j.CompanyUUID, j.SubscriberUUID)
		if errors.Is(err, subscribers.ErrNotFound) {
			err = nil
		}
		return "", err
	}
}

func (s *Service) dropWaiting(ctx context.Context, j *Job) (string, error) {
	return s.walk(ctx, j, live, func(r delivery.Record) (delivery.Record, bool) {
		return lifecycle.Drop(r, s.Now()), r.Status != delivery.StatusDelivering && j.spans(r)
	})
}

// live are the statuses of deliveries with attempts ahead.
var live = []delivery.Status{delivery.StatusPending, delivery.StatusDelivering, delivery.StatusRetrying}

// walk applies change to a page of the subscriber's deliveries in some statuses (none: in all),
// newest first. A delivery that changes meanwhile is skipped.
func (s *Service) walk(ctx context.Context, j *Job, statuses []delivery.Status, change func(delivery.Record) (delivery.Record, bool)) (string, error) {
	f := query.Filter{Company: &j.CompanyUUID, Subscriber: &j.SubscriberUUID, Statuses: statuses, Cursor: j.Cursor, Size: jobPage}
	page, err := s.Deliveries.List(ctx, f)
	if errors.Is(err, cursor.ErrBad) { // of an earlier release: the phase begins again
		f.Cursor = ""
		page, err = s.Deliveries.List(ctx, f)
	}
	if err != nil {
		return "", err
	}
	j.Examined += int64(len(page.Items))
	var writes []store.Write
	for i := range page.Items {
		d := &page.Items[i]
		if next, ok := change(d.Record); ok {
			writes = append(writes, writeOf(d.Ref, &d.Record, &next))
		}
	}
	return page.Next, s.redeliver(ctx, j, writes)
}

func (s *Service) redeliver(ctx context.Context, j *Job, writes []store.Write) error {
	if j.DryRun {
		j.Redelivered += int64(len(writes))
		return nil
	}
	if len(writes) == 0 {
		return nil
	}
	found, err := s.write(ctx, writes...)
	if err != nil {
		return err
	}
	for _, f := range found {
		if f == nil {
			j.Redelivered++
		}
	}
	return nil
}

// recoverMissed creates deliveries of the events of the time span that match the subscriber and
// have no delivery to it.
func (s *Service) recoverMissed(ctx context.Context, j *Job) (string, error) {
	if err := s.hold(ctx, j, j.SubscriberUUID); err != nil {
		return "", err
	}
	sub, err := s.reachable(ctx, j.CompanyUUID, j.SubscriberUUID)
	if errors.Is(err, delivery.ErrSubscriberGone) {
		return "", nil
	}
	if err != nil && !errors.Is(err, delivery.ErrSubscriberDisabled) {
		return "", err
	}
	ids, next, err := s.Events.Walk(ctx, j.CompanyUUID, j.Since, j.Until, j.Cursor, jobPage)
	if err != nil || len(ids) == 0 {
		return "", err
	}
	j.Examined += int64(len(ids))
	missed, err := s.missed(ctx, j, ids)
	if err != nil {
		return "", err
	}
	var writes []store.Write
	err = s.eachMissed(ctx, sub, missed, func(e *events.Stored) {
		if e == nil || e.State == events.Compacted || e.AcceptedAt.Before(sub.CreatedAt) {
			return
		}
		if matches, _ := sub.Matches(filter.NewEvent(e.Event)); !matches {
			return
		}
		r := delivery.Ref{Ref: e.Ref(), Subscriber: j.SubscriberUUID}
		base := delivery.NewRecord(*e)
		next := lifecycle.Restart(*base, delivery.ReasonRecover, s.Now())
		writes = append(writes, writeOf(r, base, &next))
	})
	if err != nil {
		return "", err
	}
	return next, s.redeliver(ctx, j, writes)
}

// eachMissed calls do with each of the events, nil for one that cannot be read. Without a
// filter only the heads of events are read; an event with a damaged body is then quarantined
// when its delivery is claimed.
func (s *Service) eachMissed(ctx context.Context, sub *subscribers.Subscriber, refs []events.Ref, do func(*events.Stored)) error {
	if sub.Filter == "" {
		heads, err := s.Events.Heads(ctx, refs)
		for _, e := range heads {
			do(e)
		}
		return err
	}
	batches, err := s.Events.Batches(ctx, refs)
	if err != nil {
		return err
	}
	for _, batch := range batches {
		stored, err := s.Events.GetMany(ctx, batch)
		if err != nil {
			return err
		}
		for _, e := range stored {
			do(e)
		}
	}
	return nil
}

// missed returns those of the events that are matched and have no delivery to the subscriber.
func (s *Service) missed(ctx context.Context, j *Job, ids []string) ([]events.Ref, error) {
	refs := make([]delivery.Ref, len(ids))
	eventRefs := make([]events.Ref, len(ids))
	for i, id := range ids {
		eventRefs[i] = events.Ref{Company: j.CompanyUUID, ID: id}
		refs[i] = delivery.Ref{Ref: eventRefs[i], Subscriber: j.SubscriberUUID}
	}
	kept, err := s.Deliveries.Stored(ctx, refs)
	if err != nil {
		return nil, err
	}
	waiting, err := s.Deliveries.Unmatched(ctx, eventRefs)
	if err != nil {
		return nil, err
	}
	var out []events.Ref
	for i := range refs {
		if kept[i] == nil && !waiting[i] {
			out = append(out, eventRefs[i])
		}
	}
	return out, nil
}
