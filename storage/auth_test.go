package storage_test

import (
	"errors"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"spendhook/storage"
)

func tokenKey(id string, from time.Time) storage.TokenKey {
	return storage.TokenKey{ID: id, Sealed: "sealed-" + id, CreatedAt: now, SignsFrom: from, TokensUntil: now}
}

func TestTokenKeysAreChangedAsOne(t *testing.T) {
	t.Parallel()
	for name, setup := range databases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := setup(t)
			if got := must(s.TokenKeys(t.Context()))(t); len(got) != 0 {
				t.Errorf("an empty database has %v", got)
			}
			later, sooner := tokenKey("a", now.Add(time.Hour)), tokenKey("b", now)
			got := must(s.ChangeTokenKeys(t.Context(), func([]storage.TokenKey) ([]storage.TokenKey, error) {
				return []storage.TokenKey{later, sooner}, nil
			}))(t)
			if diff := cmp.Diff([]storage.TokenKey{sooner, later}, got); diff != "" {
				t.Error(diff)
			}
			later.SignsFrom = now.Add(-time.Hour)
			got = must(s.ChangeTokenKeys(t.Context(), func(list []storage.TokenKey) ([]storage.TokenKey, error) {
				list[1].SignsFrom = later.SignsFrom
				return append(list[1:], tokenKey("c", now)), nil
			}))(t)
			if diff := cmp.Diff([]storage.TokenKey{later, tokenKey("c", now)}, got); diff != "" {
				t.Error(diff)
			}
			refusal := errors.New("no")
			_, err := s.ChangeTokenKeys(t.Context(), func([]storage.TokenKey) ([]storage.TokenKey, error) { return nil, refusal })
			wantError(t, err, refusal)
			if again := must(s.TokenKeys(t.Context()))(t); !cmp.Equal(again, got) {
				t.Errorf("a refused change left %v", again)
			}
		})
	}
}

// Each of many that change the keys at once sees what the ones before it did.
func TestTokenKeysChangedAtOnce(t *testing.T) {
	t.Parallel()
	for name, setup := range databases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := setup(t)
			var wg sync.WaitGroup
			for range 8 {
				wg.Go(func() {
					_, err := s.ChangeTokenKeys(t.Context(), func(list []storage.TokenKey) ([]storage.TokenKey, error) {
						return append(list, tokenKey(strconv.Itoa(len(list)), now)), nil
					})
					if err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			if got := must(s.TokenKeys(t.Context()))(t); len(got) != 8 {
				t.Errorf("%d keys of 8", len(got))
			}
		})
	}
}

func oauthClient(id string, created time.Time) storage.Client {
	return storage.Client{
		ID: id, Name: "ledger", Company: &acme, Scopes: []string{"events:read", "events:write"}, Certificates: []string{"x"},
		SecretHash: "hash", OldSecretHash: "old", OldSecretUntil: now, CreatedAt: created, UpdatedAt: created,
	}
}

func TestClientsAreKept(t *testing.T) {
	t.Parallel()
	for name, setup := range databases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := setup(t)
			one, two := oauthClient("b", now), oauthClient("a", now.Add(time.Second))
			two.Company, two.Scopes, two.Certificates = nil, []string{}, []string{}
			for _, c := range []storage.Client{two, one} {
				if err := s.CreateClient(t.Context(), c); err != nil {
					t.Fatal(err)
				}
			}
			if s.CreateClient(t.Context(), one) == nil {
				t.Error("an id is taken twice")
			}
			if diff := cmp.Diff(one, must(s.Client(t.Context(), "b"))(t)); diff != "" {
				t.Error(diff)
			}
			if diff := cmp.Diff([]storage.Client{one, two}, must(s.Clients(t.Context(), nil, 10))(t)); diff != "" {
				t.Error(diff)
			}
			if diff := cmp.Diff([]storage.Client{two}, must(s.Clients(t.Context(), &one, 10))(t)); diff != "" {
				t.Error(diff)
			}
			used := now.Add(time.Hour)
			for _, at := range []time.Time{used, now} { // the earlier one changes nothing
				if err := s.TouchClients(t.Context(), map[string]time.Time{"b": at, "none": at}); err != nil {
					t.Fatal(err)
				}
			}
			one.LastUsedAt, one.Name = &used, "till"
			got := must(s.ChangeClient(t.Context(), "b", func(c *storage.Client) error { c.Name = "till"; return nil }))(t)
			if diff := cmp.Diff(one, got); diff != "" {
				t.Error(diff)
			}
			_, err := s.ChangeClient(t.Context(), "none", func(*storage.Client) error { return nil })
			wantError(t, err, storage.ErrNotFound)
		})
	}
}

func TestRevokedClientsAreKnownUntilTheirTokensAreGone(t *testing.T) {
	t.Parallel()
	for name, setup := range databases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := setup(t)
			for _, id := range []string{"disabled", "enabled", "deleted", "long ago"} {
				c := oauthClient(id, now)
				if id == "long ago" {
					c.RevokedAt = new(now.Add(-2 * time.Hour))
				}
				if err := s.CreateClient(t.Context(), c); err != nil {
					t.Fatal(err)
				}
			}
			must(s.ChangeClient(t.Context(), "disabled", func(c *storage.Client) error { c.RevokedAt = &now; return nil }))(t)
			if err := s.DeleteClient(t.Context(), "deleted"); err != nil {
				t.Fatal(err)
			}
			wantError(t, s.DeleteClient(t.Context(), "deleted"), storage.ErrNotFound)
			_, err := s.Client(t.Context(), "deleted")
			wantError(t, err, storage.ErrNotFound)
			if list := must(s.Clients(t.Context(), nil, 10))(t); len(list) != 3 {
				t.Errorf("listed: %v", list)
			}
			wantRevoked(t, s, now.Add(-time.Hour), "deleted", "disabled")
			if err := s.PurgeClients(t.Context(), now); err != nil {
				t.Fatal(err)
			}
			wantRevoked(t, s, now.Add(-3*time.Hour), "deleted", "disabled", "long ago")
			if err := s.PurgeClients(t.Context(), now.Add(time.Millisecond)); err != nil {
				t.Fatal(err)
			}
			wantRevoked(t, s, now.Add(-time.Hour), "disabled")
		})
	}
}

func wantRevoked(t *testing.T, s *storage.Store, since time.Time, want ...string) {
	t.Helper()
	got := must(s.RevokedClients(t.Context(), since))(t)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("revoked: %v, want %v", got, want)
	}
}
