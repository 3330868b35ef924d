// Package locations reads the locations of companies.
package locations

import (
	"context"

	"github.com/google/uuid"
	"github.com/uptrace/bun"

	"spendhook/storage"
)

// Statuses are the statuses of a location. The list is read-only.
var Statuses = []string{"ACTIVE", "INACTIVE"}

// Location is a cost center, office, department or team: section 2.5 of the
// interface specification.
type Location struct {
	bun.BaseModel `bun:"table:locations,alias:l"`

	UUID        uuid.UUID    `bun:"uuid,pk"`
	CompanyUUID uuid.UUID    `bun:"company_uuid"`
	Name        string       `bun:"name"`
	Code        string       `bun:"code"`
	Status      string       `bun:"status"`
	CreatedAt   storage.Time `bun:"created_at"`
}

// Filter restricts a list of locations; zero fields restrict nothing. A nil Company means all
// companies. Without a Page, a call reads at most 1,000 locations.
// The next call continues After the last location of this one.
type Filter struct {
	Company *uuid.UUID
	Status  string
	Page    *storage.Page
	After   *Location
}

const maxUnpaged = 1000 // locations that a call without a Page reads

// Store reads the locations of a database. It is safe for concurrent use. Every method
// returns storage.ErrUnavailable, wrapped, when the database is unreachable or too slow.
type Store struct{ db *storage.DB }

// New returns the Store of a database.
func New(db *storage.DB) *Store { return &Store{db: db} }

// Get reads one location of the company, or returns storage.ErrNotFound.
func (s *Store) Get(ctx context.Context, company, id uuid.UUID) (l Location, err error) {
	err = s.db.Query(ctx, "read location", func(ctx context.Context, db bun.IDB) error {
		return db.NewSelect().Model(&l).Where("uuid = ?", storage.Key(id)).Where("company_uuid = ?", storage.Key(company)).Scan(ctx)
	})
	return l, err
}

// List reads locations in the order of their creation and then by uuid, with the number of all
// locations that pass the filter. With After, this number is 0.
func (s *Store) List(ctx context.Context, f Filter) (list []Location, total int64, err error) {
	err = s.db.Snapshot(ctx, "list locations", func(ctx context.Context, db bun.IDB) error {
		q := storage.WhereEqual(storage.InCompany(db.NewSelect().Model(&list), f.Company), "status", f.Status)
		if f.After != nil {
			q = q.Where("(created_at, uuid) > (?, ?)", f.After.CreatedAt, storage.Key(f.After.UUID))
		} else if total, err = q.Count(ctx); err != nil {
			return err
		}
		q = q.OrderExpr("created_at, uuid").Limit(maxUnpaged)
		if f.Page != nil {
			q = f.Page.Apply(q)
		}
		return q.Scan(ctx)
	})
	return list, total, err
}
