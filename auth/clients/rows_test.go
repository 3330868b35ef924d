package clients

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"spendhook/storage"
	"spendhook/storage/storagetest"
)

var now = storagetest.Now

func oauthClient(id string, created time.Time) Client {
	return Client{
		ID: id, Name: "ledger", Company: (*storage.Key)(&storagetest.Acme), Scopes: []string{"events:read", "events:write"}, Certificates: []string{"x"},
		SecretHash: "hash", OldSecretHash: "old", OldSecretUntil: storage.At(now), CreatedAt: storage.At(created), UpdatedAt: storage.At(created),
	}
}

func TestClientsAreKept(t *testing.T) {
	t.Parallel()
	storagetest.OnBoth(t, func(t *testing.T, db *storage.DB) {
		t.Helper()
		s := NewStore(db, func() time.Time { return now })
		one, two := oauthClient("b", now), oauthClient("a", now.Add(time.Second))
		two.Company, two.Scopes, two.Certificates = nil, []string{}, []string{}
		for _, c := range []Client{two, one} {
			if err := s.insert(t.Context(), c); err != nil {
				t.Fatal(err)
			}
		}
		if s.insert(t.Context(), one) == nil {
			t.Error("an id is taken twice")
		}
		if diff := cmp.Diff(one, storagetest.Must(s.Get(t.Context(), "b"))(t)); diff != "" {
			t.Error(diff)
		}
		if diff := cmp.Diff([]Client{one, two}, storagetest.Must(s.listAfter(t.Context(), nil, 10))(t)); diff != "" {
			t.Error(diff)
		}
		if diff := cmp.Diff([]Client{two}, storagetest.Must(s.listAfter(t.Context(), &clientPlace{one.CreatedAt.UnixMilli(), one.ID}, 10))(t)); diff != "" {
			t.Error(diff)
		}
		one.Name = "till"
		got := storagetest.Must(s.change(t.Context(), "b", func(c *Client) error { c.Name = "till"; return nil }))(t)
		if diff := cmp.Diff(one, got); diff != "" {
			t.Error(diff)
		}
		_, err := s.change(t.Context(), "none", func(*Client) error { return nil })
		storagetest.WantError(t, err, storage.ErrNotFound)
	})
}

func TestRevokedClientsAreListedUntilTheirTokensExpire(t *testing.T) {
	t.Parallel()
	storagetest.OnBoth(t, func(t *testing.T, db *storage.DB) {
		t.Helper()
		s := NewStore(db, func() time.Time { return now })
		for _, id := range []string{"disabled", "enabled", "deleted", "long ago"} {
			c := oauthClient(id, now)
			if id == "long ago" {
				c.RevokedAt = new(storage.At(now.Add(-2 * time.Hour)))
			}
			if err := s.insert(t.Context(), c); err != nil {
				t.Fatal(err)
			}
		}
		storagetest.Must(s.change(t.Context(), "disabled", func(c *Client) error { c.RevokedAt = new(storage.At(now)); return nil }))(t)
		if err := s.Delete(t.Context(), "deleted"); err != nil {
			t.Fatal(err)
		}
		storagetest.WantError(t, s.Delete(t.Context(), "deleted"), storage.ErrNotFound)
		_, err := s.Get(t.Context(), "deleted")
		storagetest.WantError(t, err, storage.ErrNotFound)
		if list := storagetest.Must(s.listAfter(t.Context(), nil, 10))(t); len(list) != 3 {
			t.Errorf("listed: %v", list)
		}
		wantRevoked(t, s, now.Add(-time.Hour), "deleted", "disabled")
		if err := s.purge(t.Context(), now); err != nil {
			t.Fatal(err)
		}
		wantRevoked(t, s, now.Add(-3*time.Hour), "deleted", "disabled", "long ago")
		if err := s.purge(t.Context(), now.Add(time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		wantRevoked(t, s, now.Add(-time.Hour), "disabled")
	})
}

func wantRevoked(t *testing.T, s *Store, since time.Time, want ...string) {
	t.Helper()
	got := storagetest.Must(s.revokedSince(t.Context(), since))(t)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("revoked: %v, want %v", got, want)
	}
}
