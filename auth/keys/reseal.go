package keys

import (
	"context"
	"fmt"
	"slices"

	"spendhook/internal/seal"
	"spendhook/internal/seal/reseal"
)

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
		value.Read = func(ctx context.Context) (string, error) {
			rows, err := store.Read(ctx)
			if i := slices.IndexFunc(rows, func(r Key) bool { return r.ID == row.ID }); i >= 0 {
				return rows[i].Sealed, nil
			}
			return "", err
		}
		if err := count.Each(ctx, keyring, value); err != nil {
			return fmt.Errorf("token key %s: %w", row.ID, err)
		}
	}
	return nil
}
