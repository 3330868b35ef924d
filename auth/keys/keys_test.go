package keys

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"spendhook/auth/authtest"
	"spendhook/internal/seal"
	"spendhook/internal/seal/reseal"
	"spendhook/internal/seal/sealtest"
	"spendhook/storage"
	"spendhook/storage/storagetest"
)

func TestReplicasThatStartAtOnceMakeOneKey(t *testing.T) {
	t.Parallel()
	storagetest.OnBoth(t, func(t *testing.T, db *storage.DB) {
		t.Helper()
		c := authtest.NewClock()
		replicas := make([]*Signer, 6)
		var wg sync.WaitGroup
		for i := range replicas {
			o := Options{Store: Table(db), Dir: t.TempDir(), Keyring: sealtest.Keyring(), Now: c.Now}
			wg.Go(func() {
				var err error
				if replicas[i], err = Open(t.Context(), o); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		for _, k := range replicas {
			if list := k.List(); len(list) != 1 || list[0].ID != replicas[0].List()[0].ID {
				t.Errorf("keys %v and %v", list, replicas[0].List())
			}
		}
	})
}

func TestNextKeyIsPublishedBeforeItsFirstToken(t *testing.T) {
	t.Parallel()
	c := authtest.NewClock()
	store := Table(storagetest.Open(t, storage.Options{}))
	signer := openTest(t, Options{Store: store, Now: c.Now})
	first := signer.List()[0].ID
	if err := signer.Rotate(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := signer.Rotate(t.Context()); !errors.Is(err, errKeyWaiting) {
		t.Errorf("rotated twice: %v", err)
	}
	published := func() (ids []string) {
		for _, key := range storagetest.Must(signer.JWKS())(t) {
			id, _ := key.KeyID()
			ids = append(ids, id)
		}
		return ids
	}
	if ids := published(); len(ids) != 2 || ids[0] != first {
		t.Fatalf("published %v", ids)
	}
	c.Add(publishLead)
	if old, _ := signer.Lookup(first); old == nil {
		t.Error("a key with valid tokens is not found")
	}
	if list := signer.List(); list[0].State != "retired" || list[1].State != "signing" {
		t.Errorf("%+v", list)
	}
	if since := signer.signingSince(); !since.Equal(c.Now()) {
		t.Errorf("signs since %v", since)
	}
	c.Add(MaxTTL + ClockSlack + time.Second)
	if old, _ := signer.Lookup(first); old != nil {
		t.Error("a key that is gone is found")
	}
	if ids := published(); len(ids) != 1 || ids[0] == first {
		t.Errorf("published %v", ids)
	}
	c.Add(pruneSlack)
	if err := signer.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	if rows, err := store.Read(t.Context()); err != nil || len(rows) != 1 {
		t.Errorf("the database keeps %v, %v", rows, err)
	}
}

func TestPrivateKeysAreSealed(t *testing.T) {
	t.Parallel()
	c := authtest.NewClock()
	store, dir := Table(storagetest.Open(t, storage.Options{})), t.TempDir()
	openTest(t, Options{Store: store, Dir: dir, Now: c.Now})
	rows, err := store.Read(t.Context())
	if err != nil || !seal.IsSealed(rows[0].Sealed) {
		t.Fatalf("%v, %v", rows, err)
	}
	path := filepath.Join(dir, keysFile)
	text, err := os.ReadFile(path)
	if err != nil || !strings.Contains(string(text), rows[0].Sealed) {
		t.Errorf("%s has %s, %v", path, text, err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, ".*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	_, err = Open(t.Context(), Options{Store: store, Dir: t.TempDir(), Keyring: sealtest.Ring("other"), Now: c.Now})
	if !errors.Is(err, seal.ErrUnknownKey) || !strings.Contains(err.Error(), rows[0].ID) {
		t.Errorf("with another encryption key: %v", err)
	}
}

func TestReseal(t *testing.T) {
	t.Parallel()
	c := authtest.NewClock()
	store := Table(storagetest.Open(t, storage.Options{}))
	before := openTest(t, Options{Store: store, Now: c.Now})
	dir := t.TempDir()
	both := sealtest.Ring("new", "test")
	openTest(t, Options{Store: store, Dir: dir, Keyring: both, Now: c.Now})
	for _, want := range []int64{1, 0} {
		count := &reseal.Count{}
		if err := Reseal(t.Context(), store, both, count); err != nil || count.Resealed != want || count.Seen != 1 {
			t.Errorf("%+v, %v, want %d resealed", count, err, want)
		}
	}
	count := &reseal.Count{}
	if err := Reseal(t.Context(), store, sealtest.Ring("other"), count); err != nil || count.Left["new"] != 1 {
		t.Errorf("%+v, %v: what cannot be decrypted is left", count, err)
	}
	alone := sealtest.Ring("new")
	after := openTest(t, Options{Store: store, Dir: dir, Keyring: alone, Now: c.Now})
	if after.List()[0].ID != before.List()[0].ID {
		t.Error("another key")
	}
	// A Signer whose file is encrypted with the old key reads the database instead.
	stale := t.TempDir()
	if err := writeKeysFile(stale, before.known.Load().rows); err != nil {
		t.Fatal(err)
	}
	openTest(t, Options{Store: store, Dir: stale, Keyring: alone, Now: c.Now})
	if _, err := Open(t.Context(), Options{Store: down{}, Dir: func() string {
		dir := t.TempDir()
		_ = writeKeysFile(dir, before.known.Load().rows)
		return dir
	}(), Keyring: alone, Now: c.Now}); !errors.Is(err, seal.ErrUnknownKey) {
		t.Errorf("without the database: %v", err)
	}
}

func TestBadKeyFilesAreErrors(t *testing.T) {
	t.Parallel()
	store := Table(storagetest.Open(t, storage.Options{}))
	if _, err := Open(t.Context(), Options{Store: store, Dir: filepath.Join(t.TempDir(), "none"), Keyring: sealtest.Keyring()}); err == nil {
		t.Error("a missing directory is accepted")
	}
	damaged := t.TempDir() // the database has the keys, so the damage is only logged
	if err := os.WriteFile(filepath.Join(damaged, keysFile), []byte("[{"), 0o600); err != nil {
		t.Fatal(err)
	}
	openTest(t, Options{Store: store, Dir: damaged})
}
