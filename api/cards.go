package api

import (
	"context"
	"fmt"
	"net/http"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"
	"github.com/shopspring/decimal"

	"spendhook/api/gen"
	"spendhook/storage/cards"
)

// ListCards is GET /api/v3/cards.
func (s *server) ListCards(w http.ResponseWriter, r *http.Request, p gen.ListCardsParams) {
	s.do(w, r, func(ctx context.Context, c *caller) (reply, error) {
		filter, err := cardFilter(c, p)
		if err != nil {
			return reply{}, err
		}
		cards, total, err := s.opts.Cards.Cards(ctx, filter)
		return inArray(r, filter.Page, cards, total, listedCard), err
	})
}

func cardFilter(c *caller, p gen.ListCardsParams) (f cards.Filter, err error) {
	f.Page, f.UserUUID, f.UserERPID, f.Username = pageOf(p.Page, p.Size), p.UserUUID, text(p.UserErpID), text(p.Username)
	f.Status, f.Type, f.Periodicity = text(p.Status), text(p.Type), text(p.Periodicity)
	f.Company, err = c.companyOfList(p.CompanyUUID)
	return f, err
}

// CreateCard is POST /api/v3/cards.
func (s *server) CreateCard(w http.ResponseWriter, r *http.Request, p gen.CreateCardParams) {
	withBody(s.once, w, r, p.CompanyUUID, func(ctx context.Context, c *caller, company uuid.UUID, in gen.CardCreate) (reply, error) {
		request, err := cardRequest(in)
		if err != nil {
			return reply{}, err
		}
		card, err := s.opts.Cards.CreateCard(ctx, company, request, onceFor(r))
		if err == nil {
			c.changes(&company, "card", card.UUID.String())
		}
		created := reply{status: http.StatusCreated, content: changedCard(card)}
		return created.with("Location", r.URL.Path+"/"+card.UUID.String()), err
	})
}

// GetCard is GET /api/v3/cards/{uuid}.
func (s *server) GetCard(w http.ResponseWriter, r *http.Request, id gen.CardPath, p gen.GetCardParams) {
	s.doFor(w, r, p.CompanyUUID, func(ctx context.Context, company uuid.UUID) (reply, error) {
		card, err := s.opts.Cards.Card(ctx, company, id)
		return ok(shownCard(card)), err
	})
}

// SetCardThreshold is PATCH /api/v3/cards/{uuid}/threshold.
func (s *server) SetCardThreshold(w http.ResponseWriter, r *http.Request, id gen.CardPath, p gen.SetCardThresholdParams) {
	withBody(s.do, w, r, p.CompanyUUID, func(ctx context.Context, c *caller, company uuid.UUID, in gen.CardThreshold) (reply, error) {
		threshold, err := requiredNumber("threshold", in.Threshold)
		if err != nil {
			return reply{}, err
		}
		c.changes(&company, "card", id.String())
		card, err := s.opts.Cards.SetCardThreshold(ctx, company, id, threshold)
		return ok(changedCard(card)), err
	})
}

// LockCard is PATCH /api/v3/cards/{uuid}/lock.
func (s *server) LockCard(w http.ResponseWriter, r *http.Request, id gen.CardPath, p gen.LockCardParams) {
	withBody(s.do, w, r, p.CompanyUUID, func(ctx context.Context, c *caller, company uuid.UUID, in gen.CardLock) (reply, error) {
		if in.Lock == nil {
			return reply{}, fieldProblem("lock", "REQUIRED", "is required")
		}
		c.changes(&company, "card", id.String())
		if !*in.Lock {
			c.setAction("card.unlock")
		}
		card, err := s.opts.Cards.LockCard(ctx, company, id, *in.Lock)
		return ok(changedCard(card)), err
	})
}

// CancelCard is DELETE /api/v3/cards/{uuid}.
func (s *server) CancelCard(w http.ResponseWriter, r *http.Request, id gen.CardPath, p gen.CancelCardParams) {
	s.doFor(w, r, p.CompanyUUID, func(ctx context.Context, company uuid.UUID) (reply, error) {
		callerOf(r).changes(&company, "card", id.String())
		return noContent(), s.opts.Cards.CancelCard(ctx, company, id)
	})
}

// CancelCards is POST /api/v3/cards/delete.
func (s *server) CancelCards(w http.ResponseWriter, r *http.Request, p gen.CancelCardsParams) {
	withBody(s.once, w, r, p.CompanyUUID, func(ctx context.Context, c *caller, company uuid.UUID, in gen.CardsCancel) (reply, error) {
		if err := checkUUIDs("uuids", in.Uuids); err != nil {
			return reply{}, err
		}
		c.changes(&company, "card", showAll(in.Uuids, uuid.UUID.String)...)
		results, err := s.opts.Cards.CancelCards(ctx, company, in.Uuids)
		if err == nil {
			c.changedSome(company, cancelledIDs(results))
		}
		return ok(cancelledCards(results)), err
	})
}

func cancelledIDs(results []cards.CancelResult) (ids []uuid.UUID) {
	for _, r := range results {
		if r.Found {
			ids = append(ids, r.UUID)
		}
	}
	return ids
}

// checkUUIDs refuses null, which decodes as a UUID of zeros.
func checkUUIDs(field string, ids []uuid.UUID) error {
	for i, id := range ids {
		if id == uuid.Nil {
			return fieldProblem(fmt.Sprintf("/%s/%d", field, i), "INVALID", "must be a UUID")
		}
	}
	return nil
}

func cancelledCards(results []cards.CancelResult) gen.CardsCancelled {
	shown := make([]gen.CardCancelResult, len(results))
	for i, r := range results {
		shown[i] = gen.CardCancelResult{UUID: r.UUID, Status: gen.CardCancelResultStatusCANCELLED}
		if !r.Found {
			shown[i].Status = gen.CardCancelResultStatusNOTFOUND
		}
	}
	return gen.CardsCancelled{Results: shown}
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

// changedCard is what the changes of a card answer.
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
