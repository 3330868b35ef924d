package auth

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/uptrace/bun"

	"spendhook/storage"
)

// TokenKey is a key that signs access tokens from SignsFrom until that of the
// next key. Times are kept to the millisecond.
type TokenKey struct {
	ID          string    `json:"id"`
	Sealed      string    `json:"sealed"` // the private key, encrypted
	CreatedAt   time.Time `json:"createdAt"`
	SignsFrom   time.Time `json:"signsFrom"`
	TokensUntil time.Time `json:"tokensUntil"` // when the last of its unusually long tokens expires
}

// KeyStore is where all replicas find the keys; it is a KeyTable.
type KeyStore interface {
	TokenKeys(ctx context.Context) ([]TokenKey, error)
	ChangeTokenKeys(ctx context.Context, decide func([]TokenKey) ([]TokenKey, error)) ([]TokenKey, error)
}

// KeyTable are the keys in the database. Its methods return
// storage.ErrUnavailable, wrapped, when the database is away or too slow.
type KeyTable struct{ DB *storage.DB }

type tokenKeyRow struct {
	bun.BaseModel `bun:"table:token_keys,alias:k"`

	ID          string `bun:"id,pk"`
	Sealed      string `bun:"sealed"`
	CreatedAt   int64  `bun:"created_at"`
	SignsFrom   int64  `bun:"signs_from"`
	TokensUntil int64  `bun:"tokens_until"`
}

func newTokenKeyRow(k TokenKey) tokenKeyRow {
	return tokenKeyRow{
		ID: k.ID, Sealed: k.Sealed, CreatedAt: k.CreatedAt.UnixMilli(),
		SignsFrom: k.SignsFrom.UnixMilli(), TokensUntil: k.TokensUntil.UnixMilli(),
	}
}

func (r tokenKeyRow) key() TokenKey {
	return TokenKey{
		ID: r.ID, Sealed: r.Sealed, CreatedAt: time.UnixMilli(r.CreatedAt).UTC(),
		SignsFrom: time.UnixMilli(r.SignsFrom).UTC(), TokensUntil: time.UnixMilli(r.TokensUntil).UTC(),
	}
}

// TokenKeys lists all keys in the order in which they sign.
func (t KeyTable) TokenKeys(ctx context.Context) ([]TokenKey, error) {
	var list []TokenKey
	err := t.DB.Query(ctx, "read token keys", func(ctx context.Context, db bun.IDB) (err error) {
		list, err = tokenKeys(ctx, db)
		return err
	})
	return list, err
}

func tokenKeys(ctx context.Context, db bun.IDB) ([]TokenKey, error) {
	var rows []tokenKeyRow
	if err := db.NewSelect().Model(&rows).Scan(ctx); err != nil {
		return nil, err
	}
	list := make([]TokenKey, len(rows))
	for i, r := range rows {
		list[i] = r.key()
	}
	slices.SortFunc(list, func(a, b TokenKey) int {
		return cmp.Or(a.SignsFrom.Compare(b.SignsFrom), cmp.Compare(a.ID, b.ID))
	})
	return list, nil
}

// ChangeTokenKeys replaces the keys by what decide makes of them, and returns
// the result. Nobody else changes them meanwhile; decide may be called again
// and must not modify the list that it is given.
func (t KeyTable) ChangeTokenKeys(ctx context.Context, decide func([]TokenKey) ([]TokenKey, error)) ([]TokenKey, error) {
	var list []TokenKey
	err := t.DB.Write(ctx, "change token keys", func(ctx context.Context, tx bun.Tx) error {
		if storage.IsPostgres(tx) { // SQLite admits one writing transaction at a time
			if _, err := tx.ExecContext(ctx, "LOCK TABLE token_keys IN SHARE ROW EXCLUSIVE MODE"); err != nil {
				return err
			}
		}
		before, err := tokenKeys(ctx, tx)
		if err != nil {
			return err
		}
		after, err := decide(slices.Clone(before))
		if err != nil {
			return err
		}
		if err := replaceTokenKeys(ctx, tx, before, after); err != nil {
			return err
		}
		list, err = tokenKeys(ctx, tx)
		return err
	})
	return list, err
}

func replaceTokenKeys(ctx context.Context, tx bun.Tx, before, after []TokenKey) error {
	had, have := tokenKeyRows(before), tokenKeyRows(after)
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

func tokenKeyRows(list []TokenKey) []tokenKeyRow {
	rows := make([]tokenKeyRow, len(list))
	for i, k := range list {
		rows[i] = newTokenKeyRow(k)
	}
	return rows
}
