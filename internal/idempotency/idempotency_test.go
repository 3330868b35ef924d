package idempotency_test

import (
	"crypto/sha256"
	"errors"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"

	"spendhook/internal/idempotency"
	"spendhook/internal/redistest"
	"spendhook/internal/seal/sealtest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

var (
	one    = sha256.Sum256([]byte("POST /a"))
	other  = sha256.Sum256([]byte("POST /b"))
	answer = idempotency.Response{
		Status: http.StatusCreated,
		Header: http.Header{"Location": {"/a/1"}},
		Body:   []byte("{\"bytes\":\"\x00\xff\"}"),
	}
)

func TestAnAnsweredRequestIsRepeated(t *testing.T) {
	t.Parallel()
	s, c := setup(t)
	claim(t, s, one)
	if err := s.Finish(t.Context(), "s", "k", one, answer); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		got, err := s.Begin(t.Context(), "s", "k", one)
		if err != nil || !cmp.Equal(got, &answer) {
			t.Errorf("Begin again: %v, %s", err, cmp.Diff(&answer, got))
		}
	}
	if _, err := s.Begin(t.Context(), "s", "k", other); !errors.Is(err, idempotency.ErrReused) {
		t.Errorf("another request: %v, want ErrReused", err)
	}
	for _, ttl := range ttls(t, c) {
		if ttl < 23*time.Hour || ttl > 24*time.Hour {
			t.Errorf("the answer is kept %v, want 24 h", ttl)
		}
	}
}

func TestARunningRequestHoldsItsKeyForAShortTime(t *testing.T) {
	t.Parallel()
	s, c := setup(t)
	claim(t, s, one)
	if _, err := s.Begin(t.Context(), "s", "k", one); !errors.Is(err, idempotency.ErrInProgress) {
		t.Errorf("Begin while it runs: %v, want ErrInProgress", err)
	}
	if _, err := s.Begin(t.Context(), "s", "k", other); !errors.Is(err, idempotency.ErrReused) {
		t.Errorf("another request while it runs: %v, want ErrReused", err)
	}
	for _, ttl := range ttls(t, c) {
		if ttl <= 0 || ttl > time.Minute {
			t.Errorf("a crashed request would block its key for %v", ttl)
		}
	}
}

func TestAnAbortedKeyIsFree(t *testing.T) {
	t.Parallel()
	s, c := setup(t)
	claim(t, s, one)
	if err := s.Abort(t.Context(), "s", "k", one); err != nil {
		t.Fatal(err)
	}
	if n := len(ttls(t, c)); n != 0 {
		t.Errorf("%d keys are left after Abort", n)
	}
	claim(t, s, other)
}

func TestALateRequestDoesNotDisturbTheNextOne(t *testing.T) {
	t.Parallel()
	s, c := setup(t)
	claim(t, s, one)
	c.FlushDB(t.Context()) // the claim ran out
	claim(t, s, other)
	if err := s.Finish(t.Context(), "s", "k", one, answer); err != nil {
		t.Fatal(err)
	}
	if err := s.Abort(t.Context(), "s", "k", one); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Begin(t.Context(), "s", "k", other); !errors.Is(err, idempotency.ErrInProgress) {
		t.Errorf("the second request's claim: %v, want ErrInProgress", err)
	}
}

func TestTheFirstAnswerStays(t *testing.T) {
	t.Parallel()
	s, _ := setup(t)
	claim(t, s, one)
	for _, status := range []int{http.StatusCreated, http.StatusTeapot} {
		if err := s.Finish(t.Context(), "s", "k", one, idempotency.Response{Status: status}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Abort(t.Context(), "s", "k", one); err != nil {
		t.Fatal(err)
	}
	got, err := s.Begin(t.Context(), "s", "k", one)
	if err != nil || got == nil || got.Status != http.StatusCreated {
		t.Errorf("Begin = %v, %v, want the first answer", got, err)
	}
}

func TestOneOfManyConcurrentRequestsRuns(t *testing.T) {
	t.Parallel()
	s, _ := setup(t)
	var claimed atomic.Int64
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			saved, err := s.Begin(t.Context(), "s", "k", one)
			if err == nil && saved == nil {
				claimed.Add(1)
			} else if !errors.Is(err, idempotency.ErrInProgress) {
				t.Errorf("Begin: %v, want ErrInProgress", err)
			}
		})
	}
	wg.Wait()
	if n := claimed.Load(); n != 1 {
		t.Errorf("%d requests run, want 1", n)
	}
}

func TestScopesAreIndependent(t *testing.T) {
	t.Parallel()
	s, _ := setup(t)
	claim(t, s, one)
	if saved, err := s.Begin(t.Context(), "another", "k", other); saved != nil || err != nil {
		t.Errorf("the same key in another scope: %v, %v", saved, err)
	}
}

func setup(t *testing.T) (*idempotency.Store, redis.UniversalClient) {
	t.Helper()
	c := redistest.New(t)
	return idempotency.New(c, sealtest.Keyring()), c
}

func claim(t *testing.T, s *idempotency.Store, fingerprint [32]byte) {
	t.Helper()
	saved, err := s.Begin(t.Context(), "s", "k", fingerprint)
	if saved != nil || err != nil {
		t.Fatalf("Begin: %v, %v, want a claim", saved, err)
	}
}

// ttls are the times to live of all keys in the database.
func ttls(t *testing.T, c redis.UniversalClient) []time.Duration {
	t.Helper()
	var all []time.Duration
	for _, key := range c.Keys(t.Context(), "*").Val() {
		all = append(all, c.PTTL(t.Context(), key).Val())
	}
	return all
}
