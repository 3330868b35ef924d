package auth

import (
	"context"
	"fmt"

	"spendhook/internal/seal"
)

// SealedKeys are the signing keys as the database has them, for a change of the
// encryption key.
type SealedKeys struct {
	Store   KeyStore
	Keyring *seal.Keyring
}

// Reseal seals the keys that are not under the keyring's current key, and
// counts them. It may be broken off and done again, beside running daemons.
func (s SealedKeys) Reseal(ctx context.Context, count *seal.Count) error {
	rows, err := s.Store.TokenKeys(ctx)
	if err != nil {
		return err
	}
	for _, row := range rows {
		if err := count.Each(ctx, s.Keyring, s.stored(row)); err != nil {
			return fmt.Errorf("token key %s: %w", row.ID, err)
		}
	}
	return nil
}

func (s SealedKeys) stored(row TokenKey) seal.Stored {
	return seal.Stored{
		Value: row.Sealed,
		Seals: func(value string) ([]string, error) { return []string{value}, nil },
		Anew: func(value string) (string, error) {
			der, err := s.Keyring.Open(value, sealContext(row.ID))
			if err != nil {
				return value, nil //nolint:nilerr // it is counted as left under its key
			}
			return s.Keyring.Seal(der, sealContext(row.ID))
		},
		Swap: func(ctx context.Context, old, fresh string) (swapped bool, err error) {
			_, err = s.Store.ChangeTokenKeys(ctx, func(rows []TokenKey) ([]TokenKey, error) {
				swapped = false
				for i := range rows {
					if rows[i].ID == row.ID && rows[i].Sealed == old {
						rows[i].Sealed, swapped = fresh, true
					}
				}
				return rows, nil
			})
			return swapped, err
		},
		Read: func(ctx context.Context) (string, error) {
			rows, err := s.Store.TokenKeys(ctx)
			for _, r := range rows {
				if r.ID == row.ID {
					return r.Sealed, nil
				}
			}
			return "", err
		},
	}
}
