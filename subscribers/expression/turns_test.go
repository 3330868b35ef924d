package expression

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/uuid"
)

// A company has one turn at a time, and leaves the others to other companies.
func TestACompanyHasOneTurn(t *testing.T) {
	t.Parallel()
	turns := newTurns(2)
	a, b := uuid.New(), uuid.New()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	enter := func(company uuid.UUID) {
		t.Helper()
		if err := turns.enter(t.Context(), company); err != nil {
			t.Fatal(err)
		}
	}
	enter(a)
	if err := turns.enter(ended, a); !errors.Is(err, context.Canceled) {
		t.Errorf("a second turn: %v", err)
	}
	enter(b)
	third := make(chan error)
	go func() { third <- turns.enter(t.Context(), a) }()
	turns.leave(a)
	if err := <-third; err != nil {
		t.Error(err)
	}
	if err := turns.enter(ended, uuid.New()); !errors.Is(err, context.Canceled) {
		t.Errorf("a third company: %v", err)
	}
	turns.leave(a)
	turns.leave(b)
	if n := len(turns.companies); n > 0 {
		t.Errorf("%d companies are kept", n)
	}
}

// Large metadata are decoded, and large results encoded, in a turn; what an expression does not read is not decoded.
func TestLargeEventsTakeTurns(t *testing.T) { // not parallel: it takes all turns
	for range cap(heavy.all) {
		heavy.all <- struct{}{}
	}
	defer func() {
		for range cap(heavy.all) {
			<-heavy.all
		}
	}()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	items := `{"l":[` + strings.Repeat("1,", 1000) + `1]}`
	for _, tc := range []struct {
		text, metadata string
		waits          bool
	}{
		{`{"a": id}`, `{"s":"` + strings.Repeat("x", lightBytes) + `"}`, false},
		{`{"a": size(metadata)}`, `{"s":"` + strings.Repeat("x", lightBytes) + `"}`, true},
		{`{"a": size(metadata)}`, items, false},
		{`{"a": metadata.l}`, items, true},
	} {
		x, err := Compile(t.Context(), Transform, tc.text)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := x.Object(ctx, event(tc.metadata)); errors.Is(err, context.Canceled) != tc.waits {
			t.Errorf("%s of %d bytes: %v, waits: %v", tc.text, len(tc.metadata), err, tc.waits)
		}
	}
}
