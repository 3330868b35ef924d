package syntax_test

import (
	"strings"
	"testing"

	"spendhook/internal/syntax"
)

func TestEventTypesAndPatterns(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", syntax.MaxEventType)
	for _, name := range []string{"PAYMENT_PAID", "payment.paid", "a", "0", "A:b-C_d.e", long} {
		if !syntax.EventType(name) || !syntax.EventPattern(name) {
			t.Errorf("%q is refused", name)
		}
	}
	for _, name := range []string{"", "_A", ".a", "a b", "a*b", "ä", "a/b", "A\n", long + "x"} {
		if syntax.EventType(name) || syntax.EventPattern(name) {
			t.Errorf("%q is accepted", name)
		}
	}
	for _, pattern := range []string{"*", "PAYMENT_*", "payment.*", long[1:] + "*"} {
		if syntax.EventType(pattern) || !syntax.EventPattern(pattern) {
			t.Errorf("%q is not a pattern", pattern)
		}
	}
	for _, pattern := range []string{"**", "*a", "a**", ".*", long + "*"} {
		if syntax.EventPattern(pattern) {
			t.Errorf("%q is a pattern", pattern)
		}
	}
}

func TestMatchesEvent(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		pattern, name string
		want          bool
	}{
		{"payment.paid", "payment.paid", true},
		{"payment.paid", "payment.Paid", false},
		{"payment.paid", "payment.paid.late", false},
		{"payment.*", "payment.paid.late", true},
		{"payment.*", "payment.", true},
		{"payment.*", "payment", false},
		{"*", "payment", true},
	} {
		if got := syntax.MatchesEvent(tc.pattern, tc.name); got != tc.want {
			t.Errorf("%s matches %s: %v", tc.pattern, tc.name, got)
		}
	}
	if !syntax.MatchesAnyEvent(nil, "a") || syntax.MatchesAnyEvent([]string{"b", "c*"}, "a") || !syntax.MatchesAnyEvent([]string{"b", "a*"}, "a") {
		t.Error("MatchesAnyEvent is wrong")
	}
}
