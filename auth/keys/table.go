package keys

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"

	"github.com/go-json-experiment/json"
	"github.com/uptrace/bun"

	"spendhook/internal/datadir"
	"spendhook/internal/seal"
	"spendhook/internal/seal/reseal"
	"spendhook/storage"
)

// Key is a key that signs access tokens from its SignsFrom until the SignsFrom of the next key.
type Key struct {
	bun.BaseModel `bun:"table:token_keys,alias:k" json:"-"`

	ID        string       `bun:"id,pk" json:"id"`
	Sealed    string       `bun:"sealed" json:"sealed"` // the private key, encrypted
	CreatedAt storage.Time `bun:"created_at" json:"createdAt"`
	SignsFrom storage.Time `bun:"signs_from" json:"signsFrom"`
}

// Store keeps the keys that all replicas share. Its methods return storage.ErrUnavailable, wrapped,
// when the store is unreachable or too slow.
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

func (t table) Read(ctx context.Context) ([]Key, error) {
	var list []Key
	err := t.db.Query(ctx, "read token keys", func(ctx context.Context, db bun.IDB) (err error) {
		list, err = readKeys(ctx, db)
		return err
	})
	return list, err
}

func readKeys(ctx context.Context, db bun.IDB) (list []Key, err error) {
	err = db.NewSelect().Model(&list).OrderExpr("signs_from, id").Scan(ctx)
	return list, err
}

func (t table) Change(ctx context.Context, decide func([]Key) ([]Key, error)) ([]Key, error) {
	var list []Key
	err := t.db.Write(ctx, "change token keys", func(ctx context.Context, tx bun.Tx) error {
		if storage.IsPostgres(tx) { // not needed in SQLite, which admits one writing transaction at a time
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
	for _, key := range before {
		if slices.Contains(after, key) {
			continue
		}
		if _, err := tx.NewDelete().Model(&key).WherePK().Exec(ctx); err != nil {
			return err
		}
	}
	for _, key := range after {
		if slices.Contains(before, key) {
			continue
		}
		if _, err := tx.NewInsert().Model(&key).Exec(ctx); err != nil {
			return err
		}
	}
	return nil
}

// keysFile has the last known keys, encrypted as in the database. A daemon reads it when it
// starts while the database is unreachable.
const keysFile = "token-keys.json"

func readKeysFile(dir string) ([]Key, error) {
	text, err := datadir.Read(filepath.Join(dir, keysFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var rows []Key
	if err == nil {
		err = json.Unmarshal(text, &rows)
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", filepath.Join(dir, keysFile), err)
	}
	return rows, nil
}

func writeKeysFile(dir string, rows []Key) error {
	text, err := json.Marshal(rows)
	if err != nil {
		return err
	}
	return datadir.Replace(filepath.Join(dir, keysFile), text)
}

// Reseal encrypts the stored keys with the current key of the keyring and counts them. It
// may be interrupted and repeated, also while daemons run.
func Reseal(ctx context.Context, store Store, keyring *seal.Keyring, count *reseal.Count) error {
	rows, err := store.Read(ctx)
	if err != nil {
		return err
	}
	for _, row := range rows {
		value := reseal.Text(keyring, row.Sealed, sealContext(row.ID))
		value.Swap = func(ctx context.Context, old, fresh string) (swapped bool, err error) {
			_, err = store.Change(ctx, func(rows []Key) ([]Key, error) {
				i := slices.IndexFunc(rows, func(r Key) bool { return r.ID == row.ID && r.Sealed == old })
				if swapped = i >= 0; swapped {
					rows[i].Sealed = fresh
				}
				return rows, nil
			})
			return swapped, err
		}
		if err := count.Reseal(ctx, keyring, value); err != nil {
			return fmt.Errorf("token key %s: %w", row.ID, err)
		}
	}
	return nil
}
