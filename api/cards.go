package api

import (
	"context"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"
	"github.com/shopspring/decimal"

	"spendhook/api/gen"
	"spendhook/internal/invalid"
	"spendhook/storage/cards"
)

// ListCards is GET /api/v3/cards.
func (s *server) ListCards(ctx context.Context, q *request, p gen.ListCardsParams) (reply, error) {
	f := cards.Filter{
		Company: q.companies, Page: pageOf(p.Page, p.Size), UserUUID: p.UserUUID, UserERPID: textOf(p.UserErpID), Username: textOf(p.Username),
		Status: textOf(p.Status), Type: textOf(p.Type), Periodicity: textOf(p.Periodicity),
	}
	list, total, err := s.opts.Cards.Cards(ctx, f)
	return inArray(q, f.Page, list, total, listedCard), err
}

// CreateCard is POST /api/v3/cards.
func (s *server) CreateCard(ctx context.Context, q *request, in gen.CardCreate) (reply, error) {
	wanted, err := cardRequest(in)
	if err != nil {
		return reply{}, err
	}
	card, err := s.opts.Cards.CreateCard(ctx, q.company, wanted, q.creationKey())
	if err != nil {
		return reply{}, err
	}
	q.auditTarget(&q.company, "card", card.UUID.String())
	return created(changedCard(card), q.sent.URL.Path+"/"+card.UUID.String()), nil
}

// GetCard is GET /api/v3/cards/{uuid}.
func (s *server) GetCard(ctx context.Context, q *request, id gen.CardPath) (reply, error) {
	card, err := s.opts.Cards.Card(ctx, q.company, id)
	return ok(shownCard(card)), err
}

// SetCardThreshold is PATCH /api/v3/cards/{uuid}/threshold.
func (s *server) SetCardThreshold(ctx context.Context, q *request, id gen.CardPath, in gen.CardThreshold) (reply, error) {
	var e invalid.Error
	threshold := number(&e, "threshold", in.Threshold)
	if threshold == nil && len(e.Fields) == 0 {
		e.Add("threshold", "REQUIRED", "is required")
	}
	if err := e.OrNil(); err != nil {
		return reply{}, err
	}
	card, err := s.opts.Cards.SetCardThreshold(ctx, q.company, id, *threshold)
	return ok(changedCard(card)), err
}

// LockCard is PATCH /api/v3/cards/{uuid}/lock.
func (s *server) LockCard(ctx context.Context, q *request, id gen.CardPath, in gen.CardLock) (reply, error) {
	if in.Lock == nil {
		return reply{}, fieldProblem("lock", "REQUIRED", "is required")
	}
	if !*in.Lock && q.entry != nil {
		q.entry.Action = "card.unlock"
	}
	card, err := s.opts.Cards.LockCard(ctx, q.company, id, *in.Lock)
	return ok(changedCard(card)), err
}

// CancelCard is DELETE /api/v3/cards/{uuid}.
func (s *server) CancelCard(ctx context.Context, q *request, id gen.CardPath) (reply, error) {
	return noContent(), s.opts.Cards.CancelCard(ctx, q.company, id)
}

// CancelCards is POST /api/v3/cards/delete.
func (s *server) CancelCards(ctx context.Context, q *request, in gen.CardsCancel) (reply, error) {
	q.auditTarget(&q.company, "card", convertAll(in.Uuids, uuid.UUID.String)...)
	found, err := s.opts.Cards.CancelCards(ctx, q.company, in.Uuids)
	if err != nil {
		return reply{}, err
	}
	var cancelled []string
	results := make([]gen.CardCancelResult, len(in.Uuids))
	for i, id := range in.Uuids {
		results[i] = gen.CardCancelResult{UUID: id, Status: gen.CardCancelResultStatusNOTFOUND}
		if found[id] {
			results[i].Status = gen.CardCancelResultStatusCANCELLED
			cancelled = append(cancelled, id.String())
		}
	}
	q.auditTarget(&q.company, "card", cancelled...)
	if len(cancelled) == 0 {
		q.entry = nil // nothing was changed
	}
	return ok(gen.CardsCancelled{Results: results}), nil
}

func listedCard(c cards.Card) gen.CardItem {
	return gen.CardItem{
		UUID: c.UUID, LastFour: c.LastFour, Type: gen.CardType(c.Type), Status: gen.CardStatus(c.Status),
		Name: c.Name, HolderUUID: c.HolderUUID,
	}
}

func shownCard(c cards.Card) gen.Card {
	return gen.Card{
		UUID: c.UUID, LastFour: c.LastFour, Type: gen.CardType(c.Type), Status: gen.CardStatus(c.Status),
		Name: c.Name, IssuedAt: c.IssuedAt,
	}
}

// changedCard is the published form of a card in the answer to a change.
func changedCard(c cards.Card) gen.CardWithLimits {
	shown := gen.CardWithLimits{
		UUID: c.UUID, LastFour: c.LastFour, Type: gen.CardType(c.Type), Status: gen.CardStatus(c.Status),
		Name: c.Name, IssuedAt: c.IssuedAt, HolderUUID: c.HolderUUID,
		Periodicity: gen.Periodicity(c.Periodicity),
	}
	if c.Threshold != nil {
		shown.Threshold = money(*c.Threshold)
	}
	return shown
}

// money is an exact JSON number.
func money(amount decimal.Decimal) jsontext.Value { return jsontext.Value(amount.String()) }

// longestNumber bounds the characters of an amount.
const longestNumber = 64

// cardRequest converts the input of both create operations. Package cards checks required
// fields and the values of enums.
func cardRequest(in gen.CardCreate) (cards.Request, error) {
	var e invalid.Error
	request := cards.Request{
		Type: in.Type, Alias: in.Alias,
		Threshold:    number(&e, "threshold", in.Threshold),
		BusinessType: notEmpty(&e, "businessType", in.BusinessType),
	}
	if user := oneSpelling(&e, "userUuid", "userUUID", in.UserUUID, in.UserUUIDUpper, func(a, b uuid.UUID) bool { return a == b }); user != nil {
		request.UserUUID = *user
	}
	periodicity := oneSpelling(&e, "periodicity", "periodicityType", in.Periodicity, in.PeriodicityType, strings.EqualFold)
	request.Periodicity = notEmpty(&e, "periodicity", periodicity)
	return request, e.OrNil()
}

// oneSpelling returns the value of a field that has two names. Different values are a problem.
func oneSpelling[T any](e *invalid.Error, name, other string, value, otherValue *T, same func(a, b T) bool) *T {
	if value == nil {
		return otherValue
	}
	if otherValue != nil && !same(*value, *otherValue) {
		e.Add(other, "INVALID", "is not the same as %s", name)
	}
	return value
}

// notEmpty returns an optional text. An empty text is a problem, an absent one is not.
func notEmpty(e *invalid.Error, field string, value *string) string {
	if value != nil && *value == "" {
		e.Add(field, "INVALID", "must not be empty")
	}
	return textOf(value)
}

// number reads an exact number; nil when there is none.
func number(e *invalid.Error, field string, value jsontext.Value) *decimal.Decimal {
	if len(value) == 0 || value.Kind() == jsontext.KindNull {
		return nil
	}
	if len(value) <= longestNumber { // other JSON values do not parse as a number
		if exact, err := decimal.NewFromString(string(value)); err == nil {
			return &exact
		}
	}
	e.Add(field, "INVALID", "must be a number of at most %d characters", longestNumber)
	return nil
}
