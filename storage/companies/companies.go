// Package companies has the names of companies, so that people need no UUIDs. Nothing is decided by a name: it need not be
// unique, and a company without one works like any other.
package companies

import (
	"context"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/uptrace/bun"

	"spendhook/internal/cursor"
	"spendhook/internal/fold"
	"spendhook/internal/invalid"
	"spendhook/storage"
)

// maxName is the length of the longest name, in characters.
const maxName = 200

// Company is a company with its name.
type Company struct {
	UUID uuid.UUID
	Name string
}

// row is a row of the table.
type row struct {
	bun.BaseModel `bun:"table:company_names"`

	UUID   storage.Key `bun:"uuid,pk"`
	Name   string      `bun:"name"`
	Folded string      `bun:"name_folded"`
}

func (r row) company() Company { return Company{uuid.UUID(r.UUID), r.Name} }

// Store keeps the names in the database. It is safe for concurrent use. Every method returns
// storage.ErrUnavailable, wrapped, when the database is unreachable or too slow.
type Store struct{ db *storage.DB }

// New returns the Store of a database.
func New(db *storage.DB) *Store { return &Store{db: db} }

// Get returns a company, or storage.ErrNotFound if it has no name.
func (s *Store) Get(ctx context.Context, id uuid.UUID) (Company, error) {
	var found row
	err := s.db.Query(ctx, "read company", func(ctx context.Context, db bun.IDB) error {
		return db.NewSelect().Model(&found).Where("uuid = ?", storage.Key(id)).Scan(ctx)
	})
	return found.company(), err
}

// Filter selects a page of a list.
type Filter struct {
	Search string // the beginnings of words of a name, or a UUID; case and accents do not matter. "" selects all.
	Cursor string // of the page before; "" selects the first page
	Size   int
}

// place is that of the last company of a page.
type place struct {
	Folded string    `json:"f"`
	UUID   uuid.UUID `json:"u"`
}

// List returns the companies that have a name, in the order of the names, and the cursor of the next page, which is "" on
// the last one. The error may be cursor.ErrBad.
func (s *Store) List(ctx context.Context, f Filter) (list []Company, next string, err error) {
	var after *place
	if err := cursor.Decode(f.Cursor, "companies", f.Search, &after); err != nil {
		return nil, "", err
	}
	var rows []row
	err = s.db.Query(ctx, "list companies", func(ctx context.Context, db bun.IDB) error {
		q := db.NewSelect().Model(&rows)
		if id, err := uuid.Parse(f.Search); err == nil {
			q = q.Where("uuid = ?", storage.Key(id))
		} else {
			for word := range strings.FieldsSeq(fold.Text(f.Search)) {
				start := storage.LikeText(word) + "%"
				q = q.Where("(name_folded LIKE ? ESCAPE '!' OR name_folded LIKE ? ESCAPE '!')", start, "% "+start)
			}
		}
		if after != nil {
			q = q.Where("(name_folded, uuid) > (?, ?)", after.Folded, storage.Key(after.UUID))
		}
		return q.OrderExpr("name_folded, uuid").Limit(int64(f.Size) + 1).Scan(ctx)
	})
	if len(rows) > f.Size {
		rows = rows[:f.Size]
		last := rows[f.Size-1]
		next = cursor.Encode("companies", f.Search, place{last.Folded, uuid.UUID(last.UUID)})
	}
	for _, r := range rows {
		list = append(list, r.company())
	}
	return list, next, err
}

// Put gives a company its name, in place of the one that it had. It reports whether it had none. The error may be an
// *invalid.Error.
func (s *Store) Put(ctx context.Context, c Company) (kept Company, added bool, err error) {
	c.Name = strings.TrimSpace(c.Name)
	var problems invalid.Error
	switch {
	case c.Name == "":
		problems.Add("name", "REQUIRED", "is required")
	case !invalid.IsName(c.Name) || strings.ContainsFunc(c.Name, unicode.IsControl):
		problems.Add("name", "INVALID", "must be text without control characters")
	case utf8.RuneCountInString(c.Name) > maxName:
		problems.Add("name", "TOO_LONG", "must have at most %d characters", maxName)
	}
	if err := problems.OrNil(); err != nil {
		return Company{}, false, err
	}
	err = s.db.Write(ctx, "name company", func(ctx context.Context, tx bun.Tx) error {
		known, err := tx.NewSelect().Model((*row)(nil)).Where("uuid = ?", storage.Key(c.UUID)).Exists(ctx)
		if err != nil {
			return err
		}
		added = !known
		return Import(ctx, tx, c)
	})
	return c, added, err
}

// Import gives companies their names within a transaction, without a check.
func Import(ctx context.Context, tx bun.Tx, list ...Company) error {
	rows := make([]row, 0, len(list))
	for _, c := range list {
		rows = append(rows, row{UUID: storage.Key(c.UUID), Name: c.Name, Folded: fold.Text(c.Name)})
	}
	_, err := tx.NewInsert().Model(&rows).On("CONFLICT (uuid) DO UPDATE").Set("name = excluded.name").Set("name_folded = excluded.name_folded").Exec(ctx)
	return err
}

// Remove removes the name of a company, if it has one.
func (s *Store) Remove(ctx context.Context, id uuid.UUID) error {
	return s.db.Write(ctx, "remove name of company", func(ctx context.Context, tx bun.Tx) error {
		_, err := tx.NewDelete().Model((*row)(nil)).Where("uuid = ?", storage.Key(id)).Exec(ctx)
		return err
	})
}
