package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"

	"spendhook/api/gen"
	"spendhook/internal/invalid"
	"spendhook/storage/cards"
	"spendhook/storage/cards/bulk"
)

// maxBulk is the number of items that are read; storage has the same bound.
const maxBulk = 500

// CreateCards is POST /api/v3/cards/bulk-create.
func (s *server) CreateCards(w http.ResponseWriter, r *http.Request, p gen.CreateCardsParams) {
	s.once(w, r, func(ctx context.Context, c *caller) (reply, error) {
		in, err := decode[gen.CardBulkCreate](r)
		if err != nil {
			return reply{}, err
		}
		items, err := bulkItems(in.CardsRequests)
		if err != nil {
			return reply{}, err
		}
		company, err := bulkCompany(c, items, p.CompanyUUID, in.CompanyUUID)
		if err != nil {
			return reply{}, err
		}
		requests, err := bulkRequests(items)
		if err != nil {
			return reply{}, err
		}
		if err := s.throttle.charge(ctx, w.Header(), c, 1, len(requests)); err != nil {
			return reply{}, err
		}
		c.auditDetail(strconv.Itoa(len(requests)) + " items")
		job, err := s.opts.CardJobs.Submit(ctx, company, requests, creationKey(r))
		if err == nil {
			c.auditTarget(&company, "card_job", job.UUID.String())
		}
		accepted := reply{status: http.StatusAccepted, content: shownCardJob(job)}
		return accepted.with("Location", r.URL.Path+"/"+job.UUID.String()), err
	})
}

// bulkItems decodes the items. The error has the problems of all items.
func bulkItems(texts []jsontext.Value) ([]gen.CardCreate, error) {
	if len(texts) > maxBulk {
		return nil, fieldProblem("cardsRequests", "TOO_MANY", "must have at most %d items", maxBulk)
	}
	var all invalid.Error
	items := make([]gen.CardCreate, len(texts))
	for i, text := range texts {
		if text.Kind() != jsontext.KindBeginObject {
			all.Add(itemField(i, ""), "INVALID", "must be an object")
			continue
		}
		if err := gather(&all, i, decodeJSON(text, &items[i])); err != nil {
			return nil, err
		}
	}
	return items, all.OrNil()
}

func bulkRequests(items []gen.CardCreate) ([]cards.Request, error) {
	var all invalid.Error
	requests := make([]cards.Request, len(items))
	for i, item := range items {
		var err error
		requests[i], err = cardRequest(item)
		if err := gather(&all, i, err); err != nil {
			return nil, err
		}
	}
	return requests, all.OrNil()
}

// bulkCompany is the company that the request and its items agree on.
func bulkCompany(c *caller, items []gen.CardCreate, named ...*uuid.UUID) (uuid.UUID, error) {
	for _, item := range items {
		named = append(named, item.CompanyUUID)
	}
	return c.companyFor(named...)
}

// gather adds the field problems of an item to all. It returns any other error.
func gather(all *invalid.Error, item int, err error) error {
	e, isInvalid := errors.AsType[*invalid.Error](err)
	if !isInvalid {
		return err
	}
	for _, f := range e.Fields {
		all.Add(itemField(item, f.Field), f.Code, "%s", f.Message)
	}
	return nil
}

// itemField is the JSON pointer to a field of an item.
func itemField(item int, field string) string {
	return fmt.Sprintf("/cardsRequests/%d", item) + pointer(field)
}

// GetCardJob is GET /api/v3/cards/bulk-create/{jobUuid}.
func (s *server) GetCardJob(w http.ResponseWriter, r *http.Request, id gen.CardJobPath, p gen.GetCardJobParams) {
	s.doFor(w, r, p.CompanyUUID, func(ctx context.Context, company uuid.UUID) (reply, error) {
		job, err := s.opts.BulkJobs.CardJob(ctx, company, id)
		return ok(shownCardJob(job)), err
	})
}

func shownCardJob(job bulk.Job) gen.CardJob {
	shown := gen.CardJob{
		UUID: job.UUID, Status: gen.CardJobStatus(job.Status), Total: job.Total, Succeeded: job.Succeeded,
		Failed: job.Failed, CreatedAt: job.CreatedAt, FinishedAt: job.FinishedAt, Items: make([]gen.CardJobItem, len(job.Items)),
	}
	for i, item := range job.Items {
		shown.Items[i] = gen.CardJobItem{
			Index: item.Index, RequestUUID: item.RequestUUID, Status: gen.CardJobItemStatus(item.Status),
			CardUUID: item.CardUUID, ErrorCode: item.ErrorCode, ErrorMessage: item.ErrorMessage,
		}
	}
	return shown
}
