package spend

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/uptrace/bun"

	"spendhook/internal/invalid"
	"spendhook/storage"
)

// LocationStatuses are those of a location. The list is read-only.
var LocationStatuses = []string{"ACTIVE", "INACTIVE"}

// Location is a cost center, office, department or team: section 2.5 of the
// interface specification.
type Location struct {
	UUID        uuid.UUID
	CompanyUUID uuid.UUID
	Name, Code  string
	Status      string
	CreatedAt   time.Time
}

// LocationFilter narrows a list of locations; zero fields do not. A nil Company
// means all companies. Without a Page the list is read in parts of 1,000, each of
// which goes on After the last location of the one before.
type LocationFilter struct {
	Company *uuid.UUID
	Status  string
	Page    *storage.Page
	After   *Location
}

const locationPart = 1000

type locationRow struct {
	bun.BaseModel `bun:"table:locations,alias:l"`

	UUID        storage.Key `bun:"uuid,pk"`
	CompanyUUID storage.Key `bun:"company_uuid"`
	Name        string      `bun:"name"`
	Code        string      `bun:"code"`
	Status      string      `bun:"status"`
	CreatedAt   int64       `bun:"created_at"`
}

func (r *locationRow) location() Location {
	return Location{
		UUID: uuid.UUID(r.UUID), CompanyUUID: uuid.UUID(r.CompanyUUID), Name: r.Name, Code: r.Code,
		Status: r.Status, CreatedAt: time.UnixMilli(r.CreatedAt).UTC(),
	}
}

// Location reads one location of the company, or returns storage.ErrNotFound.
func (s *Store) Location(ctx context.Context, company, id uuid.UUID) (Location, error) {
	var row locationRow
	err := s.db.Query(ctx, "read location", func(ctx context.Context, db bun.IDB) error {
		return db.NewSelect().Model(&row).Where("uuid = ?", storage.Key(id)).Where("company_uuid = ?", storage.Key(company)).Scan(ctx)
	})
	return row.location(), err
}

// Locations lists locations, the first created first and then by uuid, with
// the number of all that pass the filter, but for After, with which they are not
// counted. The error may be an *invalid.Error.
func (s *Store) Locations(ctx context.Context, f LocationFilter) (list []Location, total int64, err error) {
	if err := f.check(); err != nil {
		return nil, 0, err
	}
	var rows []locationRow
	err = s.db.Snapshot(ctx, "list locations", func(ctx context.Context, db bun.IDB) error {
		q := storage.WhereEqual(storage.InCompany(db.NewSelect().Model(&rows), f.Company), "status", f.Status)
		if f.After != nil {
			q = q.Where("(created_at, uuid) > (?, ?)", f.After.CreatedAt.UnixMilli(), storage.Key(f.After.UUID))
		} else if total, err = q.Count(ctx); err != nil {
			return err
		}
		q = q.OrderExpr("created_at, uuid").Limit(locationPart)
		if f.Page != nil {
			q = f.Page.Apply(q)
		}
		return q.Scan(ctx)
	})
	if err != nil {
		return nil, 0, err
	}
	list = make([]Location, len(rows))
	for i := range rows {
		list[i] = rows[i].location()
	}
	return list, total, nil
}

func (f LocationFilter) check() error {
	var e invalid.Error
	if f.Page != nil {
		f.Page.Check(&e)
	}
	if f.Status != "" {
		e.OneOf("status", f.Status, LocationStatuses...)
	}
	return e.OrNil()
}
