// Package calendar has dates: days without a time or a zone.
package calendar

import (
	"fmt"
	"time"
)

const (
	dateLayout    = "2006-01-02"
	secondsPerDay = 24 * 60 * 60
)

// Date is a calendar day, counted from 1970-01-01. Its text, in JSON too, is
// yyyy-MM-dd.
type Date int32

// ParseDate reads yyyy-MM-dd and nothing else.
func ParseDate(text string) (Date, error) {
	t, err := time.Parse(dateLayout, text)
	if err != nil || len(text) != len(dateLayout) {
		return 0, fmt.Errorf("%q is not a date of the form yyyy-MM-dd", text)
	}
	return DateOf(t), nil
}

// DateOf is the day of a time, in UTC.
func DateOf(t time.Time) Date { return Date(t.Unix() / secondsPerDay) } //nolint:gosec // years of four digits

// String is yyyy-MM-dd.
func (d Date) String() string { return time.Unix(int64(d)*secondsPerDay, 0).UTC().Format(dateLayout) }

// MarshalText implements encoding.TextMarshaler.
func (d Date) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Date) UnmarshalText(text []byte) error {
	parsed, err := ParseDate(string(text))
	if err == nil {
		*d = parsed
	}
	return err
}
