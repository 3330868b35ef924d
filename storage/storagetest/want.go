package storagetest

import (
	"errors"
	"testing"

	"spendhook/internal/invalid"
)

// WantError expects an error that is, or wraps, want.
func WantError(t *testing.T, got, want error) {
	t.Helper()
	if !errors.Is(got, want) {
		t.Errorf("error = %v, want %v", got, want)
	}
}

// WantInvalid expects exactly one field to be at fault.
func WantInvalid(t *testing.T, err error, field string) {
	t.Helper()
	var e *invalid.Error
	if !errors.As(err, &e) || len(e.Fields) != 1 || e.Fields[0].Field != field {
		t.Errorf("error = %v, want one about %s", err, field)
	}
}

// Must returns a function that returns the value and fails the test on err.
func Must[T any](value T, err error) func(testing.TB) T {
	return func(tb testing.TB) T {
		tb.Helper()
		if err != nil {
			tb.Fatal(err)
		}
		return value
	}
}
