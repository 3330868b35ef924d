package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"spendhook/events"
)

// jobPrefix tells a job's reference from an event's.
const jobPrefix = "job:"

// JobKind is what a job does with a subscriber's deliveries.
type JobKind string

// The kinds of job.
const (
	JobRecover JobKind = "RECOVER" // deliver again what failed, and what was never delivered
	JobRelease JobKind = "RELEASE" // let go of what was held while it was disabled
	JobCancel  JobKind = "CANCEL"  // end what is pending, its subscriber being deleted
)

// JobStatus is where a job stands.
type JobStatus string

// The job statuses.
const (
	JobQueued    JobStatus = "QUEUED"
	JobRunning   JobStatus = "RUNNING"
	JobCompleted JobStatus = "COMPLETED"
)

// Job walks many deliveries of one subscriber in the background, a page at a
// time; after a crash it goes on from its last page.
type Job struct {
	UUID           uuid.UUID  `json:"uuid"`
	CompanyUUID    uuid.UUID  `json:"company"`
	SubscriberUUID uuid.UUID  `json:"subscriber"`
	Kind           JobKind    `json:"kind"`
	Status         JobStatus  `json:"status"`
	DryRun         bool       `json:"dryRun,omitzero"`
	Since          time.Time  `json:"since,omitzero"`
	Until          time.Time  `json:"until,omitzero"`
	Statuses       []Status   `json:"statuses,omitempty"`
	Examined       int64      `json:"examined"`    // deliveries and events looked at
	Redelivered    int64      `json:"redelivered"` // deliveries changed, or that would be in a dry run
	CreatedAt      time.Time  `json:"createdAt"`
	UpdatedAt      time.Time  `json:"updatedAt"`
	FinishedAt     *time.Time `json:"finishedAt,omitempty"`

	Phase  int    `json:"phase"`            // index into phases(Kind)
	Cursor string `json:"cursor,omitempty"` // where the phase goes on
}

func (j *Job) ref() string { return jobPrefix + j.CompanyUUID.String() + "/" + j.UUID.String() }

func parseJobRef(text string) (company, job uuid.UUID, err error) {
	c, id, ok := strings.Cut(strings.TrimPrefix(text, jobPrefix), "/")
	if !ok {
		return uuid.Nil, uuid.Nil, fmt.Errorf("job reference %q is not job:<company>/<job>", text)
	}
	if company, err = uuid.Parse(c); err != nil {
		return uuid.Nil, uuid.Nil, fmt.Errorf("job reference: %w", err)
	}
	if job, err = uuid.Parse(id); err != nil {
		return uuid.Nil, uuid.Nil, fmt.Errorf("job reference: %w", err)
	}
	return company, job, nil
}

// RecoverRequest says what to deliver again to a subscriber.
type RecoverRequest struct {
	Company, Subscriber uuid.UUID
	Since               time.Time // events accepted from here on
	Until               time.Time // to here, inclusive; zero: now
	Statuses            []Status  // of existing deliveries; empty: DEAD. What was never sent is always included
	DryRun              bool      // only count
}

// Recover starts a job that delivers again what failed in a span of time, and
// what was never sent because the subscriber was disabled.
// ErrSubscriberGone or ErrSubscriberDisabled.
func (d *Dispatcher) Recover(ctx context.Context, r RecoverRequest) (Job, error) {
	if err := d.reachable(ctx, r.Company, r.Subscriber); err != nil {
		return Job{}, err
	}
	now := d.Now().UTC()
	if r.Until.IsZero() || r.Until.After(now) {
		r.Until = now
	}
	if len(r.Statuses) == 0 {
		r.Statuses = []Status{StatusDead}
	}
	return d.startJob(ctx, Job{
		CompanyUUID: r.Company, SubscriberUUID: r.Subscriber, Kind: JobRecover,
		Since: r.Since, Until: r.Until, Statuses: r.Statuses, DryRun: r.DryRun,
	})
}

// SubscriberEnabled lets go of the deliveries that were held while the
// subscriber was disabled. Call it when one was enabled.
func (d *Dispatcher) SubscriberEnabled(ctx context.Context, company, subscriber uuid.UUID) error {
	_, err := d.startJob(ctx, Job{CompanyUUID: company, SubscriberUUID: subscriber, Kind: JobRelease})
	return err
}

// SubscriberDeleting cancels what is pending for a subscriber that is about to
// be deleted. Call it before: the job looks a moment later whether that has
// happened, so that neither a crash in between nor a lost answer leaves
// deliveries pending for nobody.
func (d *Dispatcher) SubscriberDeleting(ctx context.Context, company, subscriber uuid.UUID) error {
	_, err := d.startJob(ctx, Job{CompanyUUID: company, SubscriberUUID: subscriber, Kind: JobCancel})
	return err
}

// cancelAfter is longer than a deletion takes, or is waited for.
const cancelAfter = 3 * time.Second

// Job reads a job of a company; ErrNotFound when there is none (they are kept
// for 7 days).
func (d *Dispatcher) Job(ctx context.Context, company, id uuid.UUID) (Job, error) {
	return d.Store.job(ctx, company, id)
}

func (d *Dispatcher) startJob(ctx context.Context, j Job) (Job, error) {
	now := d.Now().UTC()
	j.UUID, j.Status, j.CreatedAt, j.UpdatedAt = d.NewID(), JobQueued, now, now
	due := now
	if j.Kind == JobCancel {
		due = now.Add(cancelAfter)
	}
	if err := d.Store.addJob(ctx, j, due); err != nil {
		return Job{}, err
	}
	d.wake()
	return j, nil
}

const (
	// maxJobs is how many jobs a replica walks at once, so that retries, which
	// wait in the same queue, find a free worker.
	maxJobs = 8
	// jobAfter is when a job that found no room tries again.
	jobAfter = time.Second
)

// runJob walks a job page by page until it is done or the daemon stops.
func (d *Dispatcher) runJob(ctx context.Context, token, text string) error {
	select {
	case d.jobs <- struct{}{}:
		defer func() { <-d.jobs }()
	default:
		_, err := d.Store.giveBack(ctx, d.Now().Add(jobAfter), []string{text})
		return err
	}
	if err := d.walkJob(ctx, token, text); err != nil {
		return d.failed(token, err)
	}
	return nil
}

func (d *Dispatcher) walkJob(ctx context.Context, token, text string) error {
	company, id, err := parseJobRef(text)
	if err != nil {
		return err
	}
	j, err := d.Store.beginJob(ctx, d.Replica, token, company, id)
	if errors.Is(err, ErrNotFound) {
		return d.Store.endJob(ctx, d.Replica, token, text)
	}
	if err != nil {
		return err
	}
	for j.Status != JobCompleted {
		if d.intake.Err() != nil {
			_, err := d.Store.giveBack(context.WithoutCancel(ctx), d.Now(), []string{text})
			return err
		}
		if err := d.step(ctx, &j); err != nil {
			return err
		}
		if err := d.Store.saveJob(ctx, j); err != nil {
			return err
		}
		d.wake()
	}
	return d.Store.endJob(ctx, d.Replica, token, text)
}

// jobPage is how many deliveries or events one step of a job looks at.
const jobPage = 500

// phase looks at one page and says where the next begins, "" when there is none.
type phase func(context.Context, *Job) (next string, err error)

func (d *Dispatcher) phases(k JobKind) []phase {
	switch k {
	case JobRecover:
		return []phase{d.recoverDead, d.recoverKept, d.recoverMissed}
	case JobRelease:
		return []phase{d.releaseHeld}
	case JobCancel:
		return []phase{d.cancelLive}
	}
	return nil
}

// step does one page of a job. It may run twice after a crash: every change is
// a compare-and-set that finds its work done.
func (d *Dispatcher) step(ctx context.Context, j *Job) error {
	phases := d.phases(j.Kind)
	j.Status, j.UpdatedAt = JobRunning, d.Now().UTC()
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
		j.Status, j.FinishedAt = JobCompleted, &j.UpdatedAt
	}
	return nil
}

// recoverDead restarts the dead letters of the span. They have an index of
// their own, which keeps them longer than the settled ones are kept.
func (d *Dispatcher) recoverDead(ctx context.Context, j *Job) (string, error) {
	if !slices.Contains(j.Statuses, StatusDead) {
		return "", nil
	}
	return d.walk(ctx, j, deadOfSubscriber, func(r record) (record, bool) {
		return restart(r, ReasonRecover, d.Now()), r.Status == StatusDead && j.spans(r)
	})
}

// recoverKept restarts the deliveries of the span in the job's other statuses.
func (d *Dispatcher) recoverKept(ctx context.Context, j *Job) (string, error) {
	if !slices.ContainsFunc(j.Statuses, func(s Status) bool { return s != StatusDead }) {
		return "", nil
	}
	return d.walk(ctx, j, allOfSubscriber, func(r record) (record, bool) {
		asked := slices.Contains(j.Statuses, r.Status) && r.Status != StatusDead && r.Status != StatusDelivering
		return restart(r, ReasonRecover, d.Now()), asked && j.spans(r)
	})
}

// spans reports whether the delivery's event was accepted in the job's span.
func (j *Job) spans(r record) bool {
	created := msTime(r.Created)
	return !created.Before(j.Since) && !created.After(j.Until)
}

func (d *Dispatcher) releaseHeld(ctx context.Context, j *Job) (string, error) {
	return d.walk(ctx, j, liveOfSubscriber, func(r record) (record, bool) {
		if r.Status == StatusDelivering || r.Due != 0 {
			return r, false
		}
		return again(r, r.Reason, d.Now(), d.Now()), true
	})
}

func (d *Dispatcher) cancelLive(ctx context.Context, j *Job) (string, error) {
	if _, err := d.subscriber(ctx, j.CompanyUUID, j.SubscriberUUID); !errors.Is(err, ErrSubscriberGone) {
		return "", err // it was not deleted after all
	}
	return d.walk(ctx, j, liveOfSubscriber, func(r record) (record, bool) {
		if r.Status == StatusDelivering { // its attempt ends it
			return r, false
		}
		return cancel(r, d.Now()), true
	})
}

// walk looks at a page of one of the subscriber's indexes, oldest last, and
// writes what change makes of each delivery. One that changes meanwhile is left
// to whoever changed it.
func (d *Dispatcher) walk(ctx context.Context, j *Job, index func(c, s uuid.UUID) string, change func(record) (record, bool)) (string, error) {
	at := position{Company: j.CompanyUUID}
	if j.Cursor != "" {
		var err error
		if at, err = parseCursor(j.Cursor); err != nil {
			return "", err
		}
	}
	entries, err := d.Store.entries(ctx, index(j.CompanyUUID, j.SubscriberUUID), at, "+inf", jobPage)
	if err != nil || len(entries) == 0 {
		return "", err
	}
	refs := make([]ref, len(entries))
	for i, e := range entries {
		refs[i] = ref{Ref: events.Ref{Company: j.CompanyUUID, ID: e.member}, Subscriber: j.SubscriberUUID}
	}
	recs, err := d.Store.get(ctx, refs)
	if err != nil {
		return "", err
	}
	if err := d.rewrite(ctx, j, refs, recs, change); err != nil {
		return "", err
	}
	last := entries[len(entries)-1]
	return position{Company: j.CompanyUUID, Score: last.score, Member: last.member}.cursor()
}

// rewrite changes the records that change wants changed; a nil record is left.
func (d *Dispatcher) rewrite(ctx context.Context, j *Job, refs []ref, recs []*record, change func(record) (record, bool)) error {
	var writes []write
	for i, rec := range recs {
		if rec == nil {
			continue
		}
		j.Examined++
		if next, ok := change(*rec); ok {
			writes = append(writes, writeOf(refs[i], rec, &next))
		}
	}
	return d.redeliver(ctx, j, writes)
}

func writeOf(r ref, base, next *record) write {
	return write{event: r.Ref, changes: []change{{ref: r, base: base, next: next}}}
}

func (d *Dispatcher) redeliver(ctx context.Context, j *Job, writes []write) error {
	if j.DryRun {
		j.Redelivered += int64(len(writes))
		return nil
	}
	if len(writes) == 0 {
		return nil
	}
	found, err := d.Store.record(ctx, d.Now(), writes, d.Replica, nil)
	if err != nil {
		return err
	}
	for _, f := range found {
		if f[0] == nil {
			j.Redelivered++
		}
	}
	return nil
}

// recoverMissed creates deliveries of the events of the span that the
// subscriber wants and never had one of.
func (d *Dispatcher) recoverMissed(ctx context.Context, j *Job) (string, error) {
	sub, err := d.subscriber(ctx, j.CompanyUUID, j.SubscriberUUID)
	if errors.Is(err, ErrSubscriberGone) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	ids, next, err := d.Events.Walk(ctx, j.CompanyUUID, j.Since, j.Until, j.Cursor, jobPage)
	if err != nil || len(ids) == 0 {
		return "", err
	}
	j.Examined += int64(len(ids))
	missed, err := d.missed(ctx, j, ids)
	if err != nil {
		return "", err
	}
	stored, err := d.Events.GetMany(ctx, missed)
	if err != nil {
		return "", err
	}
	var writes []write
	for _, e := range stored {
		if e == nil || !sub.Wants(e.Type) || e.AcceptedAt.Before(sub.CreatedAt) {
			continue
		}
		r := ref{Ref: events.Ref{Company: j.CompanyUUID, ID: e.ID}, Subscriber: j.SubscriberUUID}
		base := newRecord(*e)
		next := restart(*base, ReasonRecover, d.Now())
		writes = append(writes, writeOf(r, base, &next))
	}
	return next, d.redeliver(ctx, j, writes)
}

// missed is the events that are dispatched and that the subscriber has no
// delivery of.
func (d *Dispatcher) missed(ctx context.Context, j *Job, ids []string) ([]events.Ref, error) {
	refs := make([]ref, len(ids))
	eventRefs := make([]events.Ref, len(ids))
	for i, id := range ids {
		eventRefs[i] = events.Ref{Company: j.CompanyUUID, ID: id}
		refs[i] = ref{Ref: eventRefs[i], Subscriber: j.SubscriberUUID}
	}
	recs, err := d.Store.get(ctx, refs)
	if err != nil {
		return nil, err
	}
	waiting, err := d.Store.undispatched(ctx, eventRefs)
	if err != nil {
		return nil, err
	}
	var out []events.Ref
	for i := range refs {
		if recs[i] == nil && !waiting[i] {
			out = append(out, eventRefs[i])
		}
	}
	return out, nil
}
