// Package reseal seals stored secrets again under the current encryption key, and counts them.
package reseal

import (
	"context"
	"errors"
	"fmt"

	"spendhook/internal/seal"
)

// maxRounds bounds the retries of Reseal for a value that changes concurrently.
const maxRounds = 20

// Count has the counts of a reseal. A value is one record with all its secrets. It is not safe
// for concurrent use.
type Count struct {
	Seen     int64          // values
	Resealed int64          // values that were written again
	Left     map[string]int // secrets still under another key, by key id; "" for those that are damaged
	DryRun   bool           // count only
	Progress func(*Count)   // called after each value; may be nil
}

// Stored is one value of a store.
type Stored struct {
	Value string
	// Secrets returns the sealed secrets in a value.
	Secrets func(value string) ([]string, error)
	// Reseal returns the value with its secrets sealed under the current key. Secrets that do not
	// open are unchanged.
	Reseal func(value string) (string, error)
	// Swap writes fresh if the value still is old, and reports whether it was.
	Swap func(ctx context.Context, old, fresh string) (bool, error)
	// Read returns the value as it is now; "" when it is gone.
	Read func(ctx context.Context) (string, error)
}

// Text is a Stored of a value that is one sealed text, without Swap and Read.
func Text(ring *seal.Keyring, value, place string) Stored {
	return Stored{
		Value:   value,
		Secrets: func(value string) ([]string, error) { return []string{value}, nil },
		Reseal: func(value string) (string, error) {
			plain, err := ring.Open(value, place)
			if err != nil {
				return value, nil //nolint:nilerr // it is counted as left under its key
			}
			return ring.Seal(plain, place)
		},
	}
}

// Reseal writes one value again if a secret in it is sealed under another key than the current one,
// and counts the value.
func (c *Count) Reseal(ctx context.Context, ring *seal.Keyring, s Stored) error {
	value := s.Value
	for range maxRounds {
		stale, err := s.stale(ring, value)
		if err != nil {
			return err
		}
		if len(stale) == 0 || c.DryRun {
			c.done(stale)
			return nil
		}
		fresh, err := s.Reseal(value)
		if err != nil {
			return err
		}
		left, err := s.stale(ring, fresh)
		if err != nil {
			return err
		}
		if len(left) == len(stale) { // none of its secrets opens
			c.done(left)
			return nil
		}
		swapped, err := s.Swap(ctx, value, fresh)
		if err != nil {
			return fmt.Errorf("write a resealed value: %w", err)
		}
		if swapped {
			c.Resealed++
			c.done(left)
			return nil
		}
		if value, err = s.Read(ctx); err != nil {
			return err
		}
		if value == "" {
			c.done(nil)
			return nil
		}
	}
	return errors.New("a value keeps changing: run the command again")
}

func (s Stored) stale(ring *seal.Keyring, value string) ([]string, error) {
	all, err := s.Secrets(value)
	if err != nil {
		return nil, err
	}
	var stale []string
	for _, secret := range all {
		if seal.KeyID(secret) != ring.CurrentID() {
			stale = append(stale, secret)
		}
	}
	return stale, nil
}

func (c *Count) done(left []string) {
	c.Seen++
	if c.Left == nil {
		c.Left = map[string]int{}
	}
	for _, secret := range left {
		c.Left[seal.KeyID(secret)]++
	}
	if c.Progress != nil {
		c.Progress(c)
	}
}
