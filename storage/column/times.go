package column

import (
	"database/sql/driver"
	"fmt"
	"time"
)

// Time is a time as the database holds it: milliseconds since 1970, in UTC.
type Time struct{ time.Time }

// At is t, to the millisecond.
func At(t time.Time) Time { return Time{time.UnixMilli(t.UnixMilli()).UTC()} }

// Value returns the number that the database stores.
func (t Time) Value() (driver.Value, error) { return t.UnixMilli(), nil }

// Scan reads a value of the database.
func (t *Time) Scan(src any) error {
	ms, ok := src.(int64)
	if !ok {
		return fmt.Errorf("a time is stored as %T", src)
	}
	*t = At(time.UnixMilli(ms))
	return nil
}

// Pointer is the time that a column keeps, nil for none.
func (t *Time) Pointer() *time.Time {
	if t == nil {
		return nil
	}
	return &t.Time
}
