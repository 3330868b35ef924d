package api

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"

	"spendhook/api/gen"
	"spendhook/internal/invalid"
	"spendhook/storage/cards"
)

// maxBulk bounds the items of a request; package cards has the same bound.
const maxBulk = 500

// CreateCards is POST /api/v3/cards/bulk-create.
func (s *server) CreateCards(ctx context.Context, q *request, in gen.CardBulkCreate) (reply, error) {
	requests, companies, err := bulkRequests(in.CardsRequests)
	if err != nil {
		return reply{}, err
	}
	company, err := companyFor(q.Company, append(companies, q.named, in.CompanyUUID)...)
	if err != nil {
		return reply{}, err
	}
	if err := s.charge(ctx, q, 1, len(requests)); err != nil {
		return reply{}, err
	}
	q.auditTarget(&company, "card_job")
	q.auditDetail(strconv.Itoa(len(requests)) + " items")
	job, err := s.opts.CardJobs.Submit(ctx, company, requests, q.creationKey())
	if err != nil {
		return reply{}, err
	}
	q.auditTarget(&company, "card_job", job.UUID.String())
	return accepted(shownCardJob(job)).with("Location", q.sent.URL.Path+"/"+job.UUID.String()), nil
}

// bulkRequests decodes the items. It also returns the companies that they name. The error has the problems
// of all items.
func bulkRequests(texts []jsontext.Value) ([]cards.Request, []*uuid.UUID, error) {
	if len(texts) > maxBulk {
		return nil, nil, fieldProblem("cardsRequests", "TOO_MANY", "must have at most %d items", maxBulk)
	}
	var all invalid.Error
	requests, companies := make([]cards.Request, len(texts)), make([]*uuid.UUID, len(texts))
	for i, text := range texts {
		if text.Kind() != jsontext.KindBeginObject {
			all.Add(itemField(i, ""), "INVALID", "must be an object")
			continue
		}
		var item gen.CardCreate
		err := decodeJSON(text, &item)
		if err == nil {
			companies[i] = item.CompanyUUID
			requests[i], err = cardRequest(item)
		}
		if err := gather(&all, i, err); err != nil {
			return nil, nil, err
		}
	}
	return requests, companies, all.OrNil()
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
func (s *server) GetCardJob(ctx context.Context, q *request, id gen.CardJobPath) (reply, error) {
	job, err := s.opts.Cards.CardJob(ctx, q.company, id)
	return ok(shownCardJob(job)), err
}

func shownCardJob(job cards.Job) gen.CardJob {
	return gen.CardJob{
		UUID: job.UUID, Status: gen.CardJobStatus(job.Status), Total: job.Total, Succeeded: job.Succeeded,
		Failed: job.Failed, CreatedAt: job.CreatedAt, FinishedAt: job.FinishedAt, Items: convertAll(job.Items, shownCardJobItem),
	}
}

func shownCardJobItem(item cards.Item) gen.CardJobItem {
	return gen.CardJobItem{
		Index: item.Index, RequestUUID: item.RequestUUID, Status: gen.CardJobItemStatus(item.Status),
		CardUUID: item.CardUUID, ErrorCode: item.ErrorCode, ErrorMessage: item.ErrorMessage,
	}
}
