package console

import (
	"context"
	"errors"
	"strconv"

	"github.com/google/uuid"

	"spendhook/dispatcher/delivery"
	"spendhook/dispatcher/redelivery"
	"spendhook/storage/cards"
	"spendhook/subscribers"
)

// jobRow is a job with its subscriber. The subscriber is nil if the job has none or it was deleted.
type jobRow struct {
	redelivery.Job

	Subscriber *subscribers.Subscriber
}

type jobsPage struct {
	Rows []jobRow
	Next string
}

var (
	jobKinds = []string{
		string(redelivery.JobRetry), string(redelivery.JobCancel), string(redelivery.JobRecover), string(redelivery.JobDrop), string(redelivery.JobErase),
	}
	jobStatuses = []string{
		string(redelivery.JobQueued), string(redelivery.JobRunning), string(redelivery.JobCompleted), string(redelivery.JobCancelled),
	}
)

// jobs lists the jobs of a company. There is no list of the jobs of all companies.
func (s *server) jobs(ctx context.Context, v *visit, company *uuid.UUID) (err error) {
	if company == nil {
		v.show("jobs", "Jobs", jobsPage{})
		return nil
	}
	f := redelivery.JobFilter{Company: *company, Cursor: v.Query("cursor"), Size: listSize}
	if kind := v.choice("kind", jobKinds...); kind != "" {
		f.Kinds = []redelivery.JobKind{redelivery.JobKind(kind)}
	}
	if status := v.choice("status", jobStatuses...); status != "" {
		f.Statuses = []redelivery.JobStatus{redelivery.JobStatus(status)}
	}
	if f.Subscriber, err = v.subscriberFilter(company); err != nil {
		return err
	}
	found, err := s.opts.Redelivery.Jobs(ctx, f)
	if err != nil {
		return err
	}
	page := jobsPage{Next: v.next(found.Next)}
	if page.Rows, err = s.jobRows(ctx, found.Items); err != nil {
		return err
	}
	v.show("jobs", "Jobs", page)
	return nil
}

// jobRows adds the subscribers to jobs.
func (s *server) jobRows(ctx context.Context, items []redelivery.Job) (rows []jobRow, err error) {
	subscriberOf := s.subscriberLookup(ctx)
	for _, job := range items {
		row := jobRow{Job: job}
		if job.SubscriberUUID != uuid.Nil {
			if row.Subscriber, err = subscriberOf(job.CompanyUUID, job.SubscriberUUID); err != nil {
				return nil, err
			}
		}
		rows = append(rows, row)
	}
	return rows, nil
}

type jobPage struct {
	Job   *redelivery.Job
	Cards *cards.Job
	Again bool // the job is running, so the page reloads
	Of    int  // deliveries that the dry run before the job counted; 0: unknown
}

// Cancellable reports whether the job can be cancelled.
func (p jobPage) Cancellable() bool {
	return p.Job != nil && p.Job.FinishedAt == nil && p.Job.Kind != redelivery.JobErase
}

// job shows a job of deliveries or of cards. It tries both, because the id does not contain the
// kind.
func (s *server) job(ctx context.Context, v *visit, company, id uuid.UUID) error {
	if v.May(readSubscribers) || v.May(readDeliveries) {
		job, err := s.opts.Redelivery.Job(ctx, company, id)
		if err == nil {
			v.show("job", jobTitle(job), jobPage{Job: &job, Again: job.FinishedAt == nil, Of: v.number("of")})
			return nil
		}
		if !errors.Is(err, delivery.ErrNotFound) {
			return err
		}
	}
	if !v.May(readCards) {
		return delivery.ErrNotFound
	}
	job, err := s.opts.CardJobs.CardJob(ctx, company, id)
	if err != nil {
		return err
	}
	v.show("job", "Create cards", jobPage{Cards: &job, Again: job.FinishedAt == nil})
	return nil
}

// cancelJob cancels a job.
func (s *server) cancelJob(ctx context.Context, v *visit, company, id uuid.UUID) error {
	v.setAuditEntry("job.cancel", "", &company, "job", id.String())
	if _, err := s.opts.Redelivery.Cancel(ctx, company, id); err != nil {
		return err
	}
	return v.done("/console/jobs/"+id.String(), "cancelled")
}

// countMatching starts a dry run that counts the deliveries that match the filter of a list.
// The page of the job then offers to change them. A filter without a status is refused, since a
// retry would also send delivered events again.
func (s *server) countMatching(ctx context.Context, v *visit, company uuid.UUID) error {
	f, err := v.deliveryFilter(&company)
	if err != nil {
		return err
	}
	kind, status := v.choice("kind", string(redelivery.JobRetry), string(redelivery.JobCancel)), v.choice("status", deliveryStatuses...)
	if kind == "" || status == "" {
		return errForm
	}
	f.Statuses = []delivery.Status{delivery.Status(status)}
	return s.bulk(ctx, v, redelivery.BulkRequest{Kind: redelivery.JobKind(kind), Company: company, Filter: f, DryRun: true})
}

// changeCounted retries or cancels the deliveries that a dry run has counted.
func (s *server) changeCounted(ctx context.Context, v *visit, company, id uuid.UUID) error {
	counted, err := s.opts.Redelivery.Job(ctx, company, id)
	if err != nil {
		return err
	}
	if !counted.Bulk() || !counted.DryRun {
		return errForm
	}
	r := redelivery.BulkRequest{Kind: counted.Kind, Company: company, Filter: counted.Filter}
	return s.bulk(ctx, v, r, "of", strconv.FormatInt(counted.Changed, 10))
}

func (s *server) bulk(ctx context.Context, v *visit, r redelivery.BulkRequest, query ...string) error {
	action := "delivery.retry-all"
	if r.Kind == redelivery.JobCancel {
		action = "delivery.cancel-all"
	}
	job, err := s.opts.Redelivery.Bulk(ctx, r)
	if errors.Is(err, redelivery.ErrNotWaiting) {
		return errForm
	}
	v.setAuditEntry(action, r.Detail(), &r.Company, "job", job.UUID.String())
	if err != nil {
		return err
	}
	return v.done("/console/jobs/"+job.UUID.String(), "started", query...)
}

// jobTitle returns the title of a job's page.
func jobTitle(j redelivery.Job) string {
	switch {
	case j.Kind == redelivery.JobRecover && j.DryRun:
		return "Count recoverable deliveries"
	case j.Kind == redelivery.JobRetry && j.DryRun:
		return "Count retryable deliveries"
	case j.Kind == redelivery.JobCancel && j.DryRun:
		return "Count waiting deliveries"
	}
	return jobKindTitle(string(j.Kind))
}

func jobKindTitle(kind string) string {
	switch redelivery.JobKind(kind) {
	case redelivery.JobRecover:
		return "Recover missed events"
	case redelivery.JobDrop:
		return "Cancel waiting deliveries, and resume"
	case redelivery.JobRetry:
		return "Attempt deliveries again"
	case redelivery.JobCancel:
		return "Cancel deliveries"
	case redelivery.JobErase:
		return "Erase the company"
	}
	return kind
}
