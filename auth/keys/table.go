package keys

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/uptrace/bun"

	"spendhook/storage"
)

// Key is a key that signs access tokens from SignsFrom until that of the
// next key. Times are kept to the millisecond.
type Key struct {
	ID          string    `json:"id"`
	Sealed      string    `json:"sealed"` // the private key, encrypted
	CreatedAt   time.Time `json:"createdAt"`
	SignsFrom   time.Time `json:"signsFrom"`
	TokensUntil time.Time `json:"tokensUntil"` // when the last of its unusually long tokens expires
}

// Store is where all replicas find the keys. Its methods return
// storage.ErrUnavailable, wrapped, when it cannot be reached or is too slow.
type Store interface {
	// Read lists all keys in the order in which they sign.
	Read(ctx context.Context) ([]Key, error)
	// Change reads and locks the keys, calls decide, and stores and returns the result.
	// decide may be called more than once and must not modify its argument.
	Change(ctx context.Context, decide func([]Key) ([]Key, error)) ([]Key, error)
}

// Table is the Store in the database.
func Table(db *storage.DB) Store { return table{db} }

type table struct{ db *storage.DB }

type keyRow struct {
	bun.BaseModel `bun:"table:token_keys,alias:k"`

	ID          string `bun:"id,pk"`
	Sealed      string `bun:"sealed"`
	CreatedAt   int64  `bun:"created_at"`
	SignsFrom   int64  `bun:"signs_from"`
	TokensUntil int64  `bun:"tokens_until"`
}

func newKeyRow(k Key) keyRow {
	return keyRow{
		ID: k.ID, Sealed: k.Sealed, CreatedAt: k.CreatedAt.UnixMilli(),
		SignsFrom: k.SignsFrom.UnixMilli(), TokensUntil: k.TokensUntil.UnixMilli(),
	}
}

func (r keyRow) key() Key {
	return Key{
		ID: r.ID, Sealed: r.Sealed, CreatedAt: time.UnixMilli(r.CreatedAt).UTC(),
		SignsFrom: time.UnixMilli(r.SignsFrom).UTC(), TokensUntil: time.UnixMilli(r.TokensUntil).UTC(),
	}
}

func (t table) Read(ctx context.Context) ([]Key, error) {
	var list []Key
	err := t.db.Query(ctx, "read token keys", func(ctx context.Context, db bun.IDB) (err error) {
		list, err = readKeys(ctx, db)
		return err
	})
	return list, err
}

func readKeys(ctx context.Context, db bun.IDB) ([]Key, error) {
	var rows []keyRow
	if err := db.NewSelect().Model(&rows).Scan(ctx); err != nil {
		return nil, err
	}
	list := make([]Key, len(rows))
	for i, r := range rows {
		list[i] = r.key()
	}
	slices.SortFunc(list, func(a, b Key) int {
		return cmp.Or(a.SignsFrom.Compare(b.SignsFrom), cmp.Compare(a.ID, b.ID))
	})
	return list, nil
}

func (t table) Change(ctx context.Context, decide func([]Key) ([]Key, error)) ([]Key, error) {
	var list []Key
	err := t.db.Write(ctx, "change token keys", func(ctx context.Context, tx bun.Tx) error {
		if storage.IsPostgres(tx) { // SQLite admits one writing transaction at a time
			if _, err := tx.ExecContext(ctx, "LOCK TABLE token_keys IN SHARE ROW EXCLUSIVE MODE"); err != nil {
				return err
			}
		}
		before, err := readKeys(ctx, tx)
		if err != nil {
			return err
		}
		after, err := decide(slices.Clone(before))
		if err != nil {
			return err
		}
		if err := replaceKeys(ctx, tx, before, after); err != nil {
			return err
		}
		list, err = readKeys(ctx, tx)
		return err
	})
	return list, err
}

func replaceKeys(ctx context.Context, tx bun.Tx, before, after []Key) error {
	had, have := keyRows(before), keyRows(after)
	for _, row := range had {
		if slices.Contains(have, row) {
			continue
		}
		if _, err := tx.NewDelete().Model(&row).WherePK().Exec(ctx); err != nil {
			return err
		}
	}
	for _, row := range have {
		if slices.Contains(had, row) {
			continue
		}
		if _, err := tx.NewInsert().Model(&row).Exec(ctx); err != nil {
			return err
		}
	}
	return nil
}

func keyRows(list []Key) []keyRow {
	rows := make([]keyRow, len(list))
	for i, k := range list {
		rows[i] = newKeyRow(k)
	}
	return rows
}
