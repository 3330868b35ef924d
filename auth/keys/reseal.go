package keys

import (
	"context"
	"fmt"

	"spendhook/internal/seal"
	"spendhook/internal/seal/reseal"
)

// resealing is a change of the encryption key under which the keys are stored.
type resealing struct {
	store   Store
	keyring *seal.Keyring
}

// Reseal encrypts the stored keys with the current key of the keyring and counts them. It
// may be interrupted and repeated, also while daemons run.
func Reseal(ctx context.Context, store Store, keyring *seal.Keyring, count *reseal.Count) error {
	s := resealing{store, keyring}
	rows, err := store.Read(ctx)
	if err != nil {
		return err
	}
	for _, row := range rows {
		if err := count.Each(ctx, keyring, s.stored(row)); err != nil {
			return fmt.Errorf("token key %s: %w", row.ID, err)
		}
	}
	return nil
}

func (s resealing) stored(row Key) reseal.Stored {
	return reseal.Stored{
		Value: row.Sealed,
		Seals: func(value string) ([]string, error) { return []string{value}, nil },
		Anew: func(value string) (string, error) {
			der, err := s.keyring.Open(value, sealContext(row.ID))
			if err != nil {
				return value, nil //nolint:nilerr // it is counted as left under its key
			}
			return s.keyring.Seal(der, sealContext(row.ID))
		},
		Swap: func(ctx context.Context, old, fresh string) (swapped bool, err error) {
			_, err = s.store.Change(ctx, func(rows []Key) ([]Key, error) {
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
			rows, err := s.store.Read(ctx)
			for _, r := range rows {
				if r.ID == row.ID {
					return r.Sealed, nil
				}
			}
			return "", err
		},
	}
}
