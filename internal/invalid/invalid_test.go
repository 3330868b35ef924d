package invalid_test

import (
	"testing"

	"spendhook/internal/invalid"
)

func TestOrNilIsAnUntypedNilWhenNothingIsWrong(t *testing.T) {
	t.Parallel()
	var none *invalid.Error
	for _, e := range []*invalid.Error{none, {}} {
		if err := e.OrNil(); err != nil {
			t.Errorf("OrNil() = %v, want nil", err)
		}
	}
}

func TestErrorNamesEveryField(t *testing.T) {
	t.Parallel()
	var e invalid.Error
	e.Add("events[2]", "TOO_LONG", "at most %d bytes", 64)
	e.Add("", "INVALID", "the body is not an object")

	want := "events[2]: at most 64 bytes; the body is not an object"
	if got := e.OrNil().Error(); got != want {
		t.Errorf("Error() = %q, want %q", got, want)
	}
	if e.Fields[0].Code != "TOO_LONG" {
		t.Errorf("code = %q, want TOO_LONG", e.Fields[0].Code)
	}
}
