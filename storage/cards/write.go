package cards

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/shopspring/decimal"
	"github.com/uptrace/bun"

	"spendhook/internal/invalid"
	"spendhook/storage"
)

// policy is the currency of a company, and its credit limit in minor units.
type policy struct {
	Currency    string `bun:"currency"`
	CreditLimit int64  `bun:"credit_limit"`
}

// findPolicy returns a zero policy for an unknown company, which has no users and so no cards.
func findPolicy(ctx context.Context, db bun.IDB, company uuid.UUID) (policy, error) {
	var p policy
	err := db.NewSelect().Table("companies").Column("currency", "credit_limit").
		Where("uuid = ?", storage.Key(company)).Scan(ctx, &p)
	if errors.Is(err, sql.ErrNoRows) {
		err = nil
	}
	return p, err
}

// CreateCard creates a card for an active user of the company. A second call with the same once
// returns the card as the first call created it. After an error nothing has changed. The error may
// be an *invalid.Error, ErrUserNotFound, ErrThresholdExceedsLimit or ErrKeyReused.
func (s *Store) CreateCard(ctx context.Context, company uuid.UUID, r Request, once Once) (Card, error) {
	var row cardRow
	err := s.db.Write(ctx, "create card", func(ctx context.Context, tx bun.Tx) error {
		p, err := findPolicy(ctx, tx, company)
		if err != nil {
			return err
		}
		var e invalid.Error
		if r.check(&e, "", p.Currency); e.OrNil() != nil {
			return &e
		}
		created, again, err := s.claim(ctx, tx, once)
		if err != nil {
			return err
		}
		row = newRow(created.UUID, storage.Key(company), r.order(p.Currency), p, created.CreatedAt)
		if again {
			return nil
		}
		return insert(ctx, tx, p, &row)
	})
	if err != nil {
		return Card{}, err
	}
	return row.card(), nil
}

func newRow(id, company storage.Key, o order, p policy, at storage.Time) cardRow {
	return cardRow{
		order: o, UUID: id, CompanyUUID: company, LastFour: lastFour(uuid.UUID(id)), Status: Active, IssuedAt: at, Currency: p.Currency,
	}
}

// insert applies the business rules to a new card and writes the card. If it returns ErrUserNotFound or
// ErrThresholdExceedsLimit, it has changed nothing.
func insert(ctx context.Context, tx bun.Tx, p policy, card *cardRow) error {
	active, err := tx.NewSelect().Table("users").Where("uuid = ?", card.HolderUUID).
		Where("company_uuid = ?", card.CompanyUUID).Where("active").Exists(ctx)
	if err != nil {
		return err
	}
	if !active {
		return ErrUserNotFound
	}
	if card.Threshold != nil && *card.Threshold > p.CreditLimit {
		return ErrThresholdExceedsLimit
	}
	_, err = tx.NewInsert().Model(card).Exec(ctx)
	return err
}

// SetCardThreshold changes the threshold of an ACTIVE card. It returns
// *invalid.Error, storage.ErrNotFound, ErrNotActive or
// ErrThresholdExceedsLimit.
func (s *Store) SetCardThreshold(ctx context.Context, company, id uuid.UUID, threshold decimal.Decimal) (Card, error) {
	return s.changeCard(ctx, "set card threshold", company, id, func(ctx context.Context, tx bun.Tx, row *cardRow) error {
		var e invalid.Error
		minor := checkThreshold(&e, "threshold", threshold, row.Currency)
		if e.OrNil() != nil {
			return &e
		}
		if row.Status != Active {
			return ErrNotActive
		}
		p, err := findPolicy(ctx, tx, company)
		if err != nil {
			return err
		}
		if row.Threshold = &minor; minor > p.CreditLimit {
			return ErrThresholdExceedsLimit
		}
		return nil
	})
}

// LockCard blocks the card or makes it active again; a repeated call changes nothing. It returns
// storage.ErrNotFound, or ErrNotActive for a card that is CANCELLED or EXPIRED.
func (s *Store) LockCard(ctx context.Context, company, id uuid.UUID, lock bool) (Card, error) {
	return s.changeCard(ctx, "lock card", company, id, func(_ context.Context, _ bun.Tx, row *cardRow) (err error) {
		row.Status, err = row.Status.locked(lock)
		return err
	})
}

// changeCard locks a card, calls decide to change it, and stores the result.
func (s *Store) changeCard(ctx context.Context, op string, company, id uuid.UUID,
	decide func(context.Context, bun.Tx, *cardRow) error,
) (Card, error) {
	var row cardRow
	err := s.db.Write(ctx, op, func(ctx context.Context, tx bun.Tx) error {
		row = cardRow{}
		if err := storage.Locked(selectCard(tx, &row, company, id), "").Scan(ctx); err != nil {
			return err
		}
		if err := decide(ctx, tx, &row); err != nil {
			return err
		}
		_, err := tx.NewUpdate().Model(&row).Column("status", "threshold").WherePK().Exec(ctx)
		return err
	})
	if err != nil {
		return Card{}, err
	}
	return row.card(), nil
}

// CancelCard cancels a card permanently; cancelling the card again changes nothing. It
// returns storage.ErrNotFound for a card that the company does not have.
func (s *Store) CancelCard(ctx context.Context, company, id uuid.UUID) error {
	found, err := s.cancel(ctx, "cancel card", company, []uuid.UUID{id})
	if err == nil && !found[id] {
		err = fmt.Errorf("cancel card: %w", storage.ErrNotFound)
	}
	return err
}

const maxCancel = 100 // cards in a call of CancelCards

// CancelCards cancels 1 to 100 cards at once, all or none, and returns those of the company,
// which are now cancelled. The error may be an *invalid.Error.
func (s *Store) CancelCards(ctx context.Context, company uuid.UUID, ids []uuid.UUID) (found map[uuid.UUID]bool, err error) {
	var e invalid.Error
	if len(ids) == 0 {
		e.Add("uuids", "REQUIRED", "must name at least one card")
	}
	if len(ids) > maxCancel {
		e.Add("uuids", "TOO_MANY", "must name at most %d cards", maxCancel)
	}
	if err := e.OrNil(); err != nil {
		return nil, err
	}
	return s.cancel(ctx, "cancel cards", company, ids)
}

func (s *Store) cancel(ctx context.Context, op string, company uuid.UUID, ids []uuid.UUID) (map[uuid.UUID]bool, error) {
	var rows []cardRow
	err := s.db.Write(ctx, op, func(ctx context.Context, tx bun.Tx) error {
		rows = nil
		q := tx.NewSelect().Model(&rows).Column("uuid").Where("company_uuid = ?", storage.Key(company)).
			Where("uuid IN ?", bun.Tuple(storage.Keys(ids))).OrderExpr("uuid")
		if err := storage.Locked(q, "").Scan(ctx); err != nil || len(rows) == 0 {
			return err
		}
		_, err := tx.NewUpdate().Table("cards").Set("status = ?", Cancelled).Where("company_uuid = ?", storage.Key(company)).
			Where("uuid IN ?", bun.Tuple(storage.Keys(ids))).Exec(ctx)
		return err
	})
	found := make(map[uuid.UUID]bool, len(rows))
	for i := range rows {
		found[uuid.UUID(rows[i].UUID)] = true
	}
	return found, err
}
