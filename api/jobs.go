package api

import (
	"context"
	"net/http"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"spendhook/api/gen"
	"spendhook/dispatcher/delivery"
	"spendhook/dispatcher/delivery/store"
	"spendhook/dispatcher/redelivery"
	"spendhook/internal/invalid"
)

// RetryDeliveries is POST /api/v1/deliveries/retry.
func (s *server) RetryDeliveries(ctx context.Context, q *request, in gen.BulkRequest) (reply, error) {
	return s.bulk(ctx, q, redelivery.JobRetry, in)
}

// CancelDeliveries is POST /api/v1/deliveries/cancel.
func (s *server) CancelDeliveries(ctx context.Context, q *request, in gen.BulkRequest) (reply, error) {
	return s.bulk(ctx, q, redelivery.JobCancel, in)
}

func (s *server) bulk(ctx context.Context, q *request, kind redelivery.JobKind, in gen.BulkRequest) (reply, error) {
	filter, err := s.bulkFilter(in, q.company)
	if err != nil {
		return reply{}, err
	}
	wanted := redelivery.BulkRequest{Kind: kind, Company: q.company, Filter: filter, DryRun: or(in.DryRun, false)}
	matching, err := wanted.Matching()
	if err != nil {
		return reply{}, fieldProblem("status", "INVALID", "must be PENDING or RETRYING")
	}
	q.auditDetail(wanted.Detail())
	if err := s.chargeBulk(ctx, q, matching); err != nil {
		return reply{}, err
	}
	job, err := s.opts.Dispatcher.Redelivery.Bulk(ctx, wanted)
	q.auditTarget(&q.company, "job", job.UUID.String())
	return startedJob(job), err
}

// bulkFilter checks the filters as those of the list of deliveries.
func (s *server) bulkFilter(in gen.BulkRequest, company uuid.UUID) (f store.Filter, err error) {
	list, problems := s.routes["/api/v1/deliveries"][http.MethodGet].query, &invalid.Error{}
	values := func(name string, given []string) []string {
		if given == nil {
			return nil
		}
		if len(given) == 0 {
			problems.Add(name, "REQUIRED", "must have a value; leave the field out for any")
			return nil
		}
		return strings.Split(list[name].read(problems, name, given), ",")
	}
	number := func(name string, given *int) int {
		if given == nil {
			return 0
		}
		n, _ := strconv.Atoi(list[name].read(problems, name, []string{strconv.Itoa(*given)})) // an error is in problems
		return n
	}
	f = store.Filter{
		Subscriber: in.SubscriberUUID, EventTypes: values("event", in.Event),
		CodeFrom: number("statusCodeFrom", in.StatusCodeFrom), CodeTo: number("statusCodeTo", in.StatusCodeTo),
		From: in.From, To: in.To, ErrorClasses: values("errorClass", valuesOf[string](&in.ErrorClass)),
	}
	for _, status := range values("status", valuesOf[string](&in.Status)) {
		f.Statuses = append(f.Statuses, delivery.Status(status))
	}
	if len(problems.Fields) > 0 {
		return f, problems
	}
	return f, checkDeliveries(f, &company)
}

// bulkPage is how many deliveries of a bulk request are charged at most: those of the first
// step of its job. The job paces the others.
const bulkPage = 500

// chargeBulk charges the caller for the deliveries of the first page. It takes as much as the page may have before it reads
// it, or a caller above its limit could have pages read for nothing.
func (s *server) chargeBulk(ctx context.Context, q *request, f store.Filter) error {
	if err := s.charge(ctx, q, 1, bulkPage); err != nil {
		return err
	}
	f.Size = bulkPage
	page, err := s.opts.Dispatcher.Deliveries.List(ctx, f)
	_ = s.charge(ctx, q, bulkPage, max(1, len(page.Items))) // it takes less, or as much
	return err
}

// ListJobs is GET /api/v1/jobs.
func (s *server) ListJobs(ctx context.Context, q *request, p gen.ListJobsParams) (reply, error) {
	f := redelivery.JobFilter{
		Company: q.company, Subscriber: p.SubscriberUUID, Kinds: valuesOf[redelivery.JobKind](p.Kind), Statuses: valuesOf[redelivery.JobStatus](p.Status),
		Cursor: textOf(p.Cursor), Size: or(p.Size, defaultSize),
	}
	page, err := s.opts.Dispatcher.Redelivery.Jobs(ctx, f)
	return byCursor(f.Size, page.Items, page.Next, shownJob), err
}

// GetJob is GET /api/v1/jobs/{jobUuid}.
func (s *server) GetJob(ctx context.Context, q *request, id gen.JobPath) (reply, error) {
	job, err := s.opts.Dispatcher.Redelivery.Job(ctx, q.company, id)
	return ok(shownJob(job)), err
}

// CancelJob is POST /api/v1/jobs/{jobUuid}/cancel.
func (s *server) CancelJob(ctx context.Context, q *request, id gen.JobPath, _ gen.CompanyScope) (reply, error) {
	job, err := s.opts.Dispatcher.Redelivery.Cancel(ctx, q.company, id)
	return ok(shownJob(job)), err
}

// EraseCompany is DELETE /api/v1/companies/{uuid}.
func (s *server) EraseCompany(ctx context.Context, q *request, company gen.CompanyPath) (reply, error) {
	q.auditTarget(&company, "company", company.String())
	job, err := s.opts.Dispatcher.Redelivery.Erase(ctx, company)
	return startedJob(job), err
}

// startedJob answers with a job: 202, or 200 when it is finished already.
func startedJob(job redelivery.Job) reply {
	rep := accepted(shownJob(job))
	if job.FinishedAt != nil {
		rep.status = http.StatusOK
	}
	return rep.withLocation("/api/v1/jobs/"+job.UUID.String(), job.CompanyUUID)
}

func shownJob(job redelivery.Job) gen.Job {
	shown := gen.Job{
		UUID: job.UUID, CompanyUUID: job.CompanyUUID, SubscriberUUID: optional(job.SubscriberUUID),
		Kind: gen.JobKind(job.Kind), Status: gen.JobStatus(job.Status), DryRun: job.DryRun,
		Examined: job.Examined, Changed: job.Changed, Since: job.Filter.From, Until: job.Filter.To,
		CreatedAt: job.CreatedAt, UpdatedAt: job.UpdatedAt, FinishedAt: job.FinishedAt,
	}
	if job.Bulk() {
		shown.Filter, shown.Since, shown.Until = shownFilter(&job.Filter), nil, nil
	}
	return shown
}

func shownFilter(f *store.Filter) *gen.BulkRequest {
	return &gen.BulkRequest{
		SubscriberUUID: f.Subscriber, From: f.From, To: f.To, Event: f.EventTypes,
		Status: valuesOf[gen.DeliveryStatus](&f.Statuses), ErrorClass: valuesOf[gen.ErrorClass](&f.ErrorClasses),
		StatusCodeFrom: optional(f.CodeFrom), StatusCodeTo: optional(f.CodeTo),
	}
}
