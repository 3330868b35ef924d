package calendar_test

import (
	"testing"

	"spendhook/internal/calendar"
)

func TestDates(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"2026-02-28", "1969-12-31", "2000-02-29"} {
		if d, err := calendar.ParseDate(text); err != nil || d.String() != text {
			t.Errorf("%s: %s, %v", text, d, err)
		}
	}
	for _, text := range []string{"", "2026-2-1", "2026-13-01", "2026-02-29", "2026-01-01T00:00:00Z", " 2026-01-01"} {
		if _, err := calendar.ParseDate(text); err == nil {
			t.Errorf("%q is taken for a date", text)
		}
	}
}
