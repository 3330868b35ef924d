//go:build faults

package main

import (
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// TestGuessingHoldsNobodyUp sends 10,000 wrong secrets to the token endpoint as
// fast as they go. No more of them may be compared than docs/tokens.md says, and
// both other requests and the client itself go on. How fast they do is for the
// bench to say (its scenario "guess"): here guessers, daemon and the race
// detector share the cores.
func TestGuessingHoldsNobodyUp(t *testing.T) {
	const guesses, guessers = 10_000, 8
	const atOnce, every = 10, 5 * time.Second
	h := newInstallation(t, sharedRedis(t), quickRetries)
	d := h.startChild(t)
	made := h.auth(t, "client", "create", "--name", "victim", "--company", developerCompany.String(), "--scope", "events:read", "--json")
	made.want(t, exitOK, "shc_", "")
	client := unmarshal[shownClient](t, made.stdout)
	if code, body := d.ask(t, client.ID, client.Secret, ""); code != http.StatusOK {
		t.Fatalf("%d %s", code, body)
	}

	var next, compared, limited, others atomic.Int64
	var group sync.WaitGroup
	began := time.Now()
	for range guessers {
		group.Go(func() {
			for n := next.Add(1); n <= guesses; n = next.Add(1) {
				switch code, _ := d.ask(t, client.ID, "shs_"+strconv.FormatInt(n, 10), ""); code {
				case http.StatusUnauthorized:
					compared.Add(1)
				case http.StatusTooManyRequests:
					limited.Add(1)
				default:
					others.Add(1)
				}
			}
		})
	}
	served := 0
	for ; next.Load() <= guesses && !t.Failed(); served++ {
		if status, _, body := d.do(t, http.MethodGet, "/api/v1/subscribers", ""); status != http.StatusOK {
			t.Errorf("another request: %d %s", status, body)
		}
		if code, body := d.ask(t, client.ID, client.Secret, ""); code != http.StatusOK {
			t.Errorf("the client itself: %d %s", code, body)
		}
	}
	group.Wait()
	took := time.Since(began)
	t.Logf("%d wrong secrets in %v: %d compared, %d limited, %d others; %d other requests, and as many tokens, meanwhile",
		guesses, took.Round(time.Millisecond), compared.Load(), limited.Load(), others.Load(), served)
	if most := atOnce + int64(took/every) + 1; compared.Load() > most {
		t.Errorf("%d were compared, want at most %d", compared.Load(), most)
	}
	if compared.Load() < atOnce || others.Load() > 0 {
		t.Error("guesses are neither compared nor limited")
	}
	if code, body := d.ask(t, client.ID, client.Secret, ""); code != http.StatusOK {
		t.Errorf("the client itself afterwards: %d %s", code, body)
	}
}
