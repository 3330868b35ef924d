package storage

import (
	"database/sql/driver"
	"fmt"

	"github.com/google/uuid"
)

// key is a UUID as the database holds it: 16 raw bytes.
type key uuid.UUID

// Value is what is written.
func (k key) Value() (driver.Value, error) { return k[:], nil }

// Scan takes what was read.
func (k *key) Scan(src any) error {
	b, ok := src.([]byte)
	if !ok || len(b) != len(k) {
		return fmt.Errorf("a uuid is stored as %T", src)
	}
	copy(k[:], b)
	return nil
}

func keys(ids []uuid.UUID) []key {
	out := make([]key, len(ids))
	for i, id := range ids {
		out[i] = key(id)
	}
	return out
}

func (k *key) uuid() *uuid.UUID {
	if k == nil {
		return nil
	}
	id := uuid.UUID(*k)
	return &id
}
