package clients

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"

	"spendhook/storage"
	"spendhook/storage/storagetest"
)

// A secret that is sent is hashed once, however many a client has: none, one, or two
// while they overlap. A client with more costs no more CPU, nor does it tell itself apart.
func TestASecretIsHashedOnce(t *testing.T) { // not parallel: it counts allocations
	secret, current := newSecret()
	_, old := newSecret()
	hash := hashSecret(secret)
	for name, c := range map[string]Client{
		"none": {}, "one": {SecretHash: current}, "two": {SecretHash: current, OldSecretHash: old}, "the old one": {SecretHash: old, OldSecretHash: current},
	} {
		right := false
		if made := testing.AllocsPerRun(10, func() { right = c.hasSecret(hash, true) }); made > 0 {
			t.Errorf("%s: %.0f allocations, as hashing makes", name, made)
		}
		if right != (name != "none") {
			t.Errorf("%s: %v", name, right)
		}
	}
}

// Of one address one client is looked up at a time.
func TestClientsTakeTurns(t *testing.T) {
	t.Parallel()
	s, home := NewStore(storagetest.Open(t, storage.Options{}), time.Now), netip.MustParseAddr("192.0.2.1")
	end, err := s.turns.Take(t.Context(), home)
	if err != nil {
		t.Fatal(err)
	}
	gone, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := s.Authenticate(gone, "shc_1", "x", "", home); !errors.Is(err, ErrBusy) {
		t.Errorf("looked up beside another: %v", err)
	}
	end()
	if _, err := s.Authenticate(t.Context(), "shc_1", "x", "", home); !errors.Is(err, ErrRefused) {
		t.Error(err)
	}
}
