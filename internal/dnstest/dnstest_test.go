package dnstest_test

import (
	"testing"

	"go.uber.org/goleak"

	"spendhook/internal/dnstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestAnswersComeInTurn(t *testing.T) {
	t.Parallel()
	r := dnstest.Resolver(t, "93.184.216.34", "::1", "127.0.0.1")
	for _, want := range []string{"93.184.216.34", "::1", "127.0.0.1", "127.0.0.1"} {
		got, err := r.LookupHost(t.Context(), "hooks.example.com.")
		if err != nil || len(got) != 1 || got[0] != want {
			t.Errorf("%v, %v, want %s", got, err, want)
		}
	}
	if got, err := dnstest.Resolver(t).LookupHost(t.Context(), "hooks.example.com."); err == nil {
		t.Errorf("%v without answers", got)
	}
}
