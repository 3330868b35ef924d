package keycheck_test

import (
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"spendhook/internal/keycheck"
	"spendhook/internal/redistest"
	"spendhook/internal/seal/sealtest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

func TestAWrongKeyIsFoundAndNamed(t *testing.T) {
	t.Parallel()
	client := redistest.New(t)
	for range 2 {
		if err := keycheck.Verify(t.Context(), client, sealtest.Ring("first")); err != nil {
			t.Fatal(err)
		}
	}
	err := keycheck.Verify(t.Context(), client, sealtest.Ring("second"))
	if !errors.Is(err, keycheck.ErrMissing) || !strings.Contains(err.Error(), "key first") {
		t.Errorf("%v, want ErrMissing that names the key first", err)
	}
	if err := keycheck.Verify(t.Context(), client, sealtest.Ring("first")); err != nil {
		t.Errorf("the refused one left a trace: %v", err)
	}
}

func TestAnOldKeyIsNeededUntilItIsForgotten(t *testing.T) {
	t.Parallel()
	client := redistest.New(t)
	both := sealtest.Ring("second", "first")
	for _, ring := range []string{"first", "both"} {
		keys := sealtest.Ring("first")
		if ring == "both" {
			keys = both
		}
		if err := keycheck.Verify(t.Context(), client, keys); err != nil {
			t.Fatal(err)
		}
	}
	if err := keycheck.Verify(t.Context(), client, sealtest.Ring("second")); !errors.Is(err, keycheck.ErrMissing) {
		t.Errorf("without the old key: %v, want ErrMissing", err)
	}
	dropped, err := keycheck.Forget(t.Context(), client, "first", "unknown")
	if err != nil || len(dropped) != 1 || dropped[0] != "first" {
		t.Errorf("forgot %v, %v", dropped, err)
	}
	if err := keycheck.Verify(t.Context(), client, sealtest.Ring("second")); err != nil {
		t.Errorf("without the forgotten key: %v", err)
	}
}

// Of concurrent replicas with different keys, only one may start.
func TestConcurrentDifferentKeysOnlyOneIsAccepted(t *testing.T) {
	t.Parallel()
	client := redistest.New(t)
	var through atomic.Int64
	var wg sync.WaitGroup
	for _, id := range []string{"a", "b", "c", "d", "e", "f"} {
		wg.Go(func() {
			if keycheck.Verify(t.Context(), client, sealtest.Ring(id)) == nil {
				through.Add(1)
			}
		})
	}
	wg.Wait()
	if n := through.Load(); n != 1 {
		t.Errorf("%d were accepted, want 1", n)
	}
}
