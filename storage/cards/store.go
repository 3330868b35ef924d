package cards

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/uptrace/bun"

	"spendhook/internal/clock"
	"spendhook/internal/money"
	"spendhook/storage"
)

// Store reads and changes the cards of a database, and the jobs that create cards. It is safe for
// concurrent use. Every method returns storage.ErrUnavailable, wrapped, when the database is
// unreachable or too slow.
type Store struct {
	db     *storage.DB
	now    func() time.Time
	served atomic.Pointer[storage.Key] // the company of the last item of a job that this Store processed
}

// New returns the Store of a database. A nil now is the real clock.
func New(db *storage.DB, now func() time.Time) *Store { return &Store{db: db, now: clock.Or(now)} }

// order is a Request in the form of the database: Type is one of Types, Threshold is in minor units,
// Periodicity is in upper case.
type order struct {
	HolderUUID  storage.Key `bun:"holder_uuid"`
	Type        string      `bun:"type"`
	Name        string      `bun:"name"`
	Threshold   *int64      `bun:"threshold"`
	Periodicity string      `bun:"periodicity"`
}

// cardRow is a row of the table of cards, with the currency of the company.
type cardRow struct {
	bun.BaseModel `bun:"table:cards,alias:c"`

	order

	UUID        storage.Key  `bun:"uuid,pk"`
	CompanyUUID storage.Key  `bun:"company_uuid"`
	LastFour    string       `bun:"last_four"`
	Status      Status       `bun:"status"`
	IssuedAt    storage.Time `bun:"issued_at"`
	Currency    string       `bun:"currency,scanonly"`
}

func (r *cardRow) card() Card {
	card := Card{
		UUID: uuid.UUID(r.UUID), CompanyUUID: uuid.UUID(r.CompanyUUID), HolderUUID: uuid.UUID(r.HolderUUID),
		LastFour: r.LastFour, Type: r.Type, Status: r.Status, Name: r.Name,
		Currency: r.Currency, Periodicity: r.Periodicity, IssuedAt: r.IssuedAt.Time,
	}
	if r.Threshold != nil {
		card.Threshold = new(money.FromMinor(*r.Threshold, r.Currency))
	}
	return card
}

// Card reads one card of the company, or returns storage.ErrNotFound.
func (s *Store) Card(ctx context.Context, company, id uuid.UUID) (Card, error) {
	var row cardRow
	err := s.db.Query(ctx, "read card", func(ctx context.Context, db bun.IDB) error {
		return selectCard(db, &row, company, id).Scan(ctx)
	})
	return row.card(), err
}

func selectCard(db bun.IDB, row *cardRow, company, id uuid.UUID) *bun.SelectQuery {
	return db.NewSelect().Model(row).ColumnExpr("c.*").
		ColumnExpr("(SELECT currency FROM companies WHERE uuid = c.company_uuid) AS currency").
		Where("c.uuid = ?", storage.Key(id)).Where("c.company_uuid = ?", storage.Key(company))
}

// Cards lists cards, the latest issued first and then by uuid, and the number of all cards that
// pass the filter. The error may be an *invalid.Error.
func (s *Store) Cards(ctx context.Context, f Filter) (list []Card, total int64, err error) {
	if err := f.check(); err != nil {
		return nil, 0, err
	}
	var rows []cardRow
	err = s.db.Snapshot(ctx, "list cards", func(ctx context.Context, db bun.IDB) error {
		total, err = narrow(f, db.NewSelect().Table("cards")).Count(ctx)
		if err != nil || total <= f.Page.Offset() {
			return err
		}
		return page(f, db, &rows).Scan(ctx)
	})
	if err != nil {
		return nil, 0, err
	}
	list = make([]Card, len(rows))
	for i := range rows {
		list[i] = rows[i].card()
	}
	return list, total, nil
}

// page finds the page by the uuids of its rows, so that the rows before it can be skipped in an index.
func page(f Filter, db bun.IDB, rows *[]cardRow) *bun.SelectQuery {
	ids := f.Page.Apply(narrow(f, db.NewSelect().Table("cards").Column("uuid")).OrderExpr("issued_at DESC, uuid"))
	return db.NewSelect().Model(rows).ColumnExpr("c.*, k.currency").
		Join("JOIN companies AS k ON k.uuid = c.company_uuid").
		Where("c.uuid IN (?)", ids).OrderExpr("c.issued_at DESC, c.uuid")
}

// narrow restricts q to the cards that pass the filter.
func narrow(f Filter, q *bun.SelectQuery) *bun.SelectQuery {
	q = storage.InCompany(q, f.Company)
	if f.UserUUID != nil {
		q = q.Where("holder_uuid = ?", storage.Key(*f.UserUUID))
	}
	if f.UserERPID != "" {
		q = q.Where("holder_uuid IN (?)", users(f, q).Where("erp_id = ?", f.UserERPID))
	}
	if f.Username != "" {
		q = q.Where("holder_uuid IN (?)", users(f, q).Where("username = ?", f.Username))
	}
	q = storage.WhereEqual(q, "status", f.Status)
	q = storage.WhereEqual(q, "type", f.Type)
	return storage.WhereEqual(q, "periodicity", f.Periodicity)
}

func users(f Filter, q *bun.SelectQuery) *bun.SelectQuery {
	return storage.InCompany(q.NewSelect().Table("users").Column("uuid"), f.Company)
}
