package redelivery

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"

	"spendhook/dispatcher/delivery"
	"spendhook/dispatcher/delivery/store"
	"spendhook/events"
	"spendhook/events/publish"
	"spendhook/internal/cursor"
)

// JobKind is what a job does with deliveries.
type JobKind string

// The kinds of job.
const (
	JobRecover JobKind = "RECOVER" // send failed and missed deliveries again
	JobDrop    JobKind = "DROP"    // drop the deliveries that wait for a subscriber, then end its pause
	JobRetry   JobKind = "RETRY"   // send the deliveries that match a filter again
	JobCancel  JobKind = "CANCEL"  // cancel the waiting deliveries that match a filter
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
	UUID           uuid.UUID    `json:"uuid"`
	CompanyUUID    uuid.UUID    `json:"company"`
	SubscriberUUID uuid.UUID    `json:"subscriber,omitzero"` // zero: all of the company's
	Kind           JobKind      `json:"kind"`
	Status         JobStatus    `json:"status"`
	DryRun         bool         `json:"dryRun,omitzero"`
	Filter         store.Filter `json:"filter"`   // deliveries to examine; of a RECOVER also the span of missed events
	Examined       int64        `json:"examined"` // deliveries and events examined
	Changed        int64        `json:"changed"`  // deliveries changed (in a dry run: that would change); of an ERASE: payloads erased
	CreatedAt      time.Time    `json:"createdAt"`
	UpdatedAt      time.Time    `json:"updatedAt"` // when it was last started, stepped or ended; a step that must wait does not count
	FinishedAt     *time.Time   `json:"finishedAt,omitempty"`

	Phase  int    `json:"phase"`            // index into phases(Kind)
	Cursor string `json:"cursor,omitempty"` // where the phase continues

	text string // the stored text, as it was read

	Unknown jsontext.Value `json:",embed"` // fields that a newer release wrote
}

// Bulk reports whether a BulkRequest started the job.
func (j *Job) Bulk() bool { return j.Kind == JobRetry || j.Kind == JobCancel }

func (j *Job) finished() bool { return j.Status == JobCompleted || j.Status == JobCancelled }

func (j *Job) end(as JobStatus, now time.Time) {
	now = now.UTC()
	j.Status, j.UpdatedAt, j.FinishedAt = as, now, &now
}

// page selects the deliveries that the next step examines: up to size of the job in some statuses.
func (j *Job) page(statuses []delivery.Status, size int) store.Filter {
	f := j.Filter
	f.Company, f.Statuses, f.Cursor, f.Size = &j.CompanyUUID, statuses, j.Cursor, size
	return f
}

// reason is the reason of the deliveries that the job restarts.
func (j *Job) reason() string {
	if j.Kind == JobRecover {
		return delivery.ReasonRecover
	}
	return delivery.ReasonReplay
}

// countedAtOnce is how many steps of a bulk request's dry run the caller waits for. The job runs the others.
const countedAtOnce = 3

func (s *Service) startJob(ctx context.Context, j Job) (Job, error) {
	if j.makesDeliveries() {
		if err := s.checkMemory(j.CompanyUUID); err != nil {
			return Job{}, err
		}
	}
	now := s.Now().UTC()
	j.UUID, j.Status, j.CreatedAt, j.UpdatedAt = s.NewID(), JobQueued, now, now
	if j.SubscriberUUID != uuid.Nil {
		j.Filter.Subscriber = &j.SubscriberUUID
	}
	for i := 0; i < countedAtOnce && j.Bulk() && j.DryRun && !j.finished(); i++ {
		if err := s.step(ctx, &j); err != nil {
			return Job{}, err
		}
	}
	return j, s.save(ctx, &j)
}

const (
	// minWait and maxWait bound the delay of the next step of a job that must wait.
	minWait = time.Second
	maxWait = 10 * time.Second
	// A subscriber with more than crowdedAbove due deliveries makes its jobs wait, so that
	// restarted deliveries do not delay new ones for long.
	crowdedAbove = 1000
	// maxHeld is how long a job over several subscribers waits for a crowded one. Then the job
	// continues, so that one endpoint that is down does not block the others.
	maxHeld = 30 * time.Second
)

// errHeld says that a step must wait: for shorter retry sets, for memory, or for events to settle before the
// job erases them.
var errHeld = errors.New("the job must wait")

// Step runs one step of a job whose turn it is. It returns the delay of the next step;
// negative when the job is finished. A crash may repeat the step: its changes are compare-and-set.
func (s *Service) Step(ctx context.Context, company, id uuid.UUID) (again time.Duration, err error) {
	j, err := s.Job(ctx, company, id)
	switch {
	case errors.Is(err, errUnreadable), errors.Is(err, delivery.ErrNotFound):
		s.Logger.Error("job dropped", "company_uuid", company, "job_uuid", id, "exception.message", err)
		return -1, s.forget(ctx, company, id)
	case err != nil:
		return 0, err
	case j.finished():
		return -1, nil
	}
	err = s.step(ctx, &j)
	if errors.Is(err, errHeld) {
		again, err = j.wait(s.Now()), nil
	}
	if err == nil {
		err = s.save(ctx, &j)
	}
	if errors.Is(err, errChanged) {
		return s.overtaken(ctx, j)
	}
	if j.finished() {
		again = -1
	}
	return again, err
}

// wait returns the delay of the next step of a job that must wait: as long as the job has waited already,
// within minWait and maxWait.
func (j *Job) wait(now time.Time) time.Duration {
	return min(max(now.Sub(j.UpdatedAt), minWait), maxWait)
}

// overtaken handles a job that was changed during a step. A cancelled job gets the counts of the
// step. A job whose step another replica has run continues with its next step.
func (s *Service) overtaken(ctx context.Context, j Job) (again time.Duration, err error) {
	now, err := s.Job(ctx, j.CompanyUUID, j.UUID)
	if err != nil || !now.finished() {
		return 0, err
	}
	now.Examined, now.Changed = j.Examined, j.Changed
	return -1, s.save(ctx, &now)
}

// phase processes one page and returns where the next begins, "" after the last.
type phase func(context.Context, *Job) (next string, err error)

func (s *Service) phases(j *Job) []phase {
	dead := func(ctx context.Context, j *Job) (string, error) { return s.walk(ctx, j, true) }
	others := func(ctx context.Context, j *Job) (string, error) { return s.walk(ctx, j, false) }
	if j.Kind == JobCancel && j.DryRun {
		return []phase{others}
	}
	return map[JobKind][]phase{
		JobRecover: {others, dead, s.recoverMissed}, // dead after others, which would restart a restarted dead letter again
		JobRetry:   {others, dead},
		JobCancel:  {s.cancelAll, others, s.awaitAttempts, others}, // first what was recorded behind cancelAll, then what has failed meanwhile
		JobDrop:    {others, s.resume},
		JobErase:   {s.cancelOthers, s.eraseOld, s.eraseSubscribers, s.eraseQuarantine, s.eraseEvents, s.eraseDead, s.eraseHistory, s.eraseName},
	}[j.Kind]
}

// step processes one page of a job.
func (s *Service) step(ctx context.Context, j *Job) error {
	phases := s.phases(j)
	if phases == nil { // a newer release knows the kind
		return errHeld
	}
	j.Status = JobRunning
	if j.Phase < len(phases) {
		next, err := phases[j.Phase](ctx, j)
		if err != nil && !errors.Is(err, cursor.ErrBad) { // another release may have written the cursor: the phase begins again
			return err
		}
		j.Cursor = next
		if next == "" && err == nil {
			j.Phase++
		}
	}
	j.UpdatedAt = s.Now().UTC()
	if j.Phase >= len(phases) {
		j.end(JobCompleted, s.Now())
	}
	return nil
}

// redeliver sends the writes of a step to Redis and counts them, with n examined deliveries or events.
// A dry run only counts them.
func (s *Service) redeliver(ctx context.Context, j *Job, n int, writes []store.Write) error {
	if !j.DryRun && len(writes) > 0 {
		if j.makesDeliveries() {
			if err := s.hold(ctx, j, writes); err != nil {
				return err
			}
			refs := make([]events.Ref, len(writes))
			for i, w := range writes {
				refs[i] = w.Event
			}
			err := s.Deliveries.Restore(ctx, refs, s.Free(j.CompanyUUID)/2) // the rest is for new events
			if errors.Is(err, publish.ErrStorageFull) {
				err = errHeld
			}
			if err != nil {
				return err
			}
		}
		found, err := s.write(ctx, writes...)
		if err != nil {
			return err
		}
		for _, f := range found {
			if f != nil {
				j.Changed--
			}
		}
	}
	j.Examined += int64(n)
	j.Changed += int64(len(writes))
	return nil
}

// makesDeliveries reports whether the job makes deliveries due.
func (j *Job) makesDeliveries() bool {
	return !j.DryRun && (j.Kind == JobRetry || j.Kind == JobRecover)
}

// hold returns errHeld when one of the subscribers has many deliveries due, or while Redis is above its
// high-water mark.
func (s *Service) hold(ctx context.Context, j *Job, writes []store.Write) error {
	if s.checkMemory(j.CompanyUUID) != nil {
		return errHeld
	}
	subs := map[uuid.UUID]bool{}
	for _, w := range writes {
		subs[w.Changes[0].Ref.Subscriber] = true
	}
	all, err := s.Deliveries.Stats(ctx, j.CompanyUUID, slices.Collect(maps.Keys(subs))...)
	crowded := slices.ContainsFunc(all, func(stats store.Stats) bool { return stats.Waiting > crowdedAbove })
	if crowded && (j.SubscriberUUID != uuid.Nil || s.Now().Sub(j.UpdatedAt) < maxHeld) {
		return errHeld
	}
	return err
}
