package storage

import (
	"database/sql/driver"
	"fmt"
	"time"

	"github.com/google/uuid"
)

// Key is a UUID in the form of the database: 16 raw bytes.
type Key uuid.UUID

// Value returns the bytes that the database stores.
func (k Key) Value() (driver.Value, error) { return k[:], nil }

// Scan reads a value of the database.
func (k *Key) Scan(src any) error {
	b, ok := src.([]byte)
	if !ok || len(b) != len(k) {
		return fmt.Errorf("read a uuid: want 16 bytes, got a %T of %d bytes", src, len(b))
	}
	copy(k[:], b)
	return nil
}

// Keys converts UUIDs to the form of the database.
func Keys(ids []uuid.UUID) []Key {
	out := make([]Key, len(ids))
	for i, id := range ids {
		out[i] = Key(id)
	}
	return out
}

// Time is a time in the form of the database: milliseconds since 1970, in UTC.
type Time struct{ time.Time }

// At returns t in UTC, truncated to milliseconds.
func At(t time.Time) Time { return Time{time.UnixMilli(t.UnixMilli()).UTC()} }

// Value returns the number that the database stores.
func (t Time) Value() (driver.Value, error) { return t.UnixMilli(), nil }

// Scan reads a value of the database.
func (t *Time) Scan(src any) error {
	ms, ok := src.(int64)
	if !ok {
		return fmt.Errorf("read a time: want an integer, got %T", src)
	}
	*t = At(time.UnixMilli(ms))
	return nil
}

// Pointer returns the time of a column, or nil for NULL.
func (t *Time) Pointer() *time.Time {
	if t == nil {
		return nil
	}
	return &t.Time
}
