package timestamp_test

import (
	"errors"
	"testing"
	"time"

	"spendhook/internal/timestamp"
)

func TestParse(t *testing.T) {
	t.Parallel()
	want := time.Date(2026, 11, 20, 19, 0, 0, 5e8, time.UTC)
	for _, text := range []string{"2026-11-20T19:00:00.5Z", "2026-11-20t19:00:00.500z", "2026-11-20T20:00:00.5+01:00"} {
		if got, err := timestamp.Parse(text); err != nil || !got.Equal(want) {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{
		"", "2026-11-20", "2026-11-20T19:00:00", "2026-11-20 19:00:00Z", "2026-11-20T19:00:00,5Z", "2026-11-20T9:00:00Z",
		"2026-11-20T24:00:00Z", "2026-02-30T00:00:00Z", "2026-11-20T19:00:00+24:00", "0000-01-01T00:00:00+01:00", "1795201200000", " 2026-11-20T19:00:00Z",
	} {
		if got, err := timestamp.Parse(text); !errors.Is(err, timestamp.Err) {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
}

func TestParseMillis(t *testing.T) {
	t.Parallel()
	if got, err := timestamp.ParseMillis("1795201200123"); err != nil || !got.Equal(time.UnixMilli(1795201200123)) {
		t.Errorf("%v, %v", got, err)
	}
	for _, text := range []string{"", "-1", "+1", "1.0", "1e3", "253402300800000", "1795201200", "946684799999", "0", "0x1", "1_000"} {
		if got, err := timestamp.ParseMillis(text); !errors.Is(err, timestamp.Err) {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
}
