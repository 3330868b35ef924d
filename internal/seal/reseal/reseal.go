// Package reseal seals stored secrets again under the current encryption key, and counts them.
package reseal

import (
	"context"
	"fmt"

	"spendhook/internal/seal"
)

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
}

// Text is a Stored of a value that is one sealed text, without Swap.
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

// Reseal writes one value again if a secret in it is sealed under another key than the current
// one, and counts the value. A value that changes at the same time is counted as left, because its
// writer may not have the current key: reseal it again.
func (c *Count) Reseal(ctx context.Context, ring *seal.Keyring, s Stored) error {
	left, err := s.stale(ring, s.Value)
	if err != nil {
		return err
	}
	if len(left) > 0 && !c.DryRun {
		fresh, err := s.Reseal(s.Value)
		if err != nil {
			return err
		}
		still, err := s.stale(ring, fresh)
		if err != nil {
			return err
		}
		if len(still) < len(left) { // else none of its secrets opens
			swapped, err := s.Swap(ctx, s.Value, fresh)
			if err != nil {
				return fmt.Errorf("write a resealed value: %w", err)
			}
			if swapped {
				c.Resealed++
				left = still
			}
		}
	}
	c.add(left)
	return nil
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

func (c *Count) add(left []string) {
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
