package auth

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"spendhook/internal/seal"
	"spendhook/internal/seal/sealtest"
)

func TestReplicasThatStartAtOnceMakeOneKey(t *testing.T) {
	t.Parallel()
	for name, open := range databases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newClock()
			store := open(t, c)
			replicas := make([]*Keys, 6)
			var wg sync.WaitGroup
			for i := range replicas {
				o := KeysOptions{Store: KeyTable{store}, Dir: t.TempDir(), Keyring: sealtest.Keyring(), Now: c.Now}
				wg.Go(func() {
					var err error
					if replicas[i], err = OpenKeys(t.Context(), o); err != nil {
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
}

// The keys of two replicas are rotated while both mint and verify all the time,
// each looking at the database at its own moments.
func TestRotationRefusesNoToken(t *testing.T) {
	t.Parallel()
	for name, open := range databases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newClock()
			store := open(t, c)
			one, other := newReplica(t, store, c), newReplica(t, store, c)
			// Nobody may ask the database out of turn: the published keys must do.
			one.keys.refresh.every, other.keys.refresh.every = 1e6*time.Hour, 1e6*time.Hour
			never := func(r *replica) { r.keys.refresh.last = c.Now() }
			never(one)
			never(other)
			var tokens []string
			signers := map[string]bool{}
			for second := range 4800 / 7 {
				c.add(7 * time.Second)
				switch second {
				case 10, 300:
					if err := one.keys.Rotate(t.Context(), false); err != nil {
						t.Fatal(err)
					}
				case 120, 121, 500:
					if err := other.keys.Rotate(t.Context(), true); err != nil {
						t.Fatal(err)
					}
				}
				// Each looks at least every 2*SyncInterval, which is late.
				if second%2 == 0 {
					one.sync()
				} else {
					other.sync()
				}
				tokens = append(tokens, one.mint(TokenTTL), other.mint(TokenTTL))
				for _, r := range []*replica{one, other} {
					signers[r.keys.known.Load().rows[signerAt(r.keys.known.Load().rows, c.Now())].ID] = true
					for _, at := range []int{len(tokens) - 1, len(tokens) - 2, len(tokens) / 2} {
						if age := len(tokens)/2 - at/2; age*7 < 3590 && !r.accepts(tokens[at]) {
							t.Fatalf("second %d: a token of %d s is refused", second*7, age*7)
						}
					}
				}
			}
			if len(signers) != 5 { // the second hurried one hastened the first
				t.Errorf("%d keys have signed, want 5", len(signers))
			}
		})
	}
}

func TestNextKeyIsPublishedBeforeItsFirstToken(t *testing.T) {
	t.Parallel()
	c := newClock()
	r := newReplica(t, sqlite(t, c), c)
	first := r.keys.List()[0].ID
	if err := r.keys.Rotate(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	if err := r.keys.Rotate(t.Context(), false); !errors.Is(err, errKeyWaiting) {
		t.Errorf("rotated twice: %v", err)
	}
	published := func() (ids []string) {
		for _, key := range r.keys.JWKS() {
			id, _ := key.KeyID()
			ids = append(ids, id)
		}
		return ids
	}
	if ids := published(); len(ids) != 2 || ids[0] != first {
		t.Fatalf("published %v", ids)
	}
	old := r.mint(TokenTTL)
	c.add(publishLead)
	if list := r.keys.List(); list[0].State != KeyRetired || list[1].State != KeySigning || !r.accepts(old) {
		t.Errorf("%+v", list)
	}
	if since := r.keys.signingSince(); !since.Equal(c.Now()) {
		t.Errorf("signs since %v", since)
	}
	c.add(TokenTTL + clockSlack + time.Second)
	if ids := published(); len(ids) != 1 || ids[0] == first {
		t.Errorf("published %v", ids)
	}
	c.add(pruneSlack)
	r.sync()
	if rows, err := (KeyTable{r.store}).TokenKeys(t.Context()); err != nil || len(rows) != 1 {
		t.Errorf("the database keeps %v, %v", rows, err)
	}
}

func TestKeyOutlivesItsLongestToken(t *testing.T) {
	t.Parallel()
	c := newClock()
	r := newReplica(t, sqlite(t, c), c)
	token := r.mint(100 * time.Hour)
	r.sync()
	if err := r.keys.Rotate(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	c.add(99 * time.Hour)
	r.sync()
	if !r.accepts(token) {
		t.Error("a token is refused before it expires: its key is gone")
	}
	c.add(time.Hour + time.Second)
	if r.accepts(token) || len(r.keys.JWKS()) != 1 {
		t.Error("the key stays for ever")
	}
}

// A key that leaked is ended: here at once, elsewhere by the next look, and for a
// replica that starts again too. What signs then is known everywhere at once.
func TestRevokedKeyIsRefused(t *testing.T) {
	t.Parallel()
	for name, open := range databases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newClock()
			store := open(t, c)
			one, other := newReplica(t, store, c), newReplica(t, store, c)
			long, short, leaked := one.mint(100*time.Hour), other.mint(TokenTTL), one.keys.List()[0].ID
			if !one.accepts(long) || !other.accepts(short) || !other.accepts(long) {
				t.Fatal("good tokens are refused")
			}
			if err := one.keys.Revoke(t.Context(), leaked); err != nil {
				t.Fatal(err)
			}
			if one.accepts(long) || one.accepts(short) {
				t.Error("here its tokens are still good")
			}
			late := other.mint(TokenTTL) // with a key that it does not know to be revoked
			c.add(SyncInterval)          // when each looks
			if !other.accepts(one.mint(TokenTTL)) {
				t.Error("the new key is not known elsewhere")
			}
			other.sync()
			for _, token := range []string{long, short, late} {
				if one.accepts(token) || other.accepts(token) {
					t.Error("a token of the revoked key is accepted")
				}
			}
			if !one.accepts(other.mint(TokenTTL)) {
				t.Error("what the other mints is refused")
			}
			again := openTestKeys(t, KeysOptions{Store: &away{KeyTable: KeyTable{store}}, Dir: other.keys.opts.Dir, Now: c.Now})
			for _, list := range [][]KeyInfo{one.keys.List(), other.keys.List(), again.List()} {
				if len(list) != 1 || list[0].ID == leaked || list[0].State != KeySigning {
					t.Errorf("keys %+v", list)
				}
			}
			if err := one.keys.Revoke(t.Context(), leaked); !errors.Is(err, errNoKey) {
				t.Errorf("twice: %v", err)
			}
		})
	}
}

func TestUnknownKeyIsLookedUpOnceInAWhile(t *testing.T) {
	t.Parallel()
	c := newClock()
	store := sqlite(t, c)
	one, other := newReplica(t, store, c), newReplica(t, store, c)
	if err := one.keys.Rotate(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	c.add(hurriedLead)
	if token := one.mint(TokenTTL); !other.accepts(token) {
		t.Error("a key that the database has is not found")
	}
	reads := 0
	other.keys.opts.Store = counted{KeyTable{store}, &reads}
	for range 100 {
		if _, ok := other.keys.find(t.Context(), "made up"); ok {
			t.Error("found")
		}
	}
	if reads != 0 {
		t.Errorf("the database is asked %d times at once", reads)
	}
	c.add(SyncInterval)
	other.keys.find(t.Context(), "made up")
	if reads != 1 {
		t.Errorf("the database is asked %d times a while later", reads)
	}
}

type counted struct {
	KeyTable
	reads *int
}

func (c counted) TokenKeys(ctx context.Context) ([]TokenKey, error) {
	*c.reads++
	return c.KeyTable.TokenKeys(ctx)
}

func TestDatabaseAwayFromTheBeginning(t *testing.T) {
	t.Parallel()
	c := newClock()
	store, dir := &away{KeyTable: KeyTable{sqlite(t, c)}}, t.TempDir()
	first := openTestKeys(t, KeysOptions{Store: store, Dir: dir, Now: c.Now})
	token, err := first.Mint(t.Context(), Grant{TTL: 24 * time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	stranger := newReplica(t, sqlite(t, c), c).mint(time.Hour)
	judge := NewVerifier(VerifierOptions{Keys: first, Now: c.Now})
	if _, err := judge.Verify(t.Context(), stranger); !errors.Is(err, ErrUnavailable) {
		t.Errorf("a key that the database may have: %v", err)
	}
	// It is restarted, the database comes back and makes the key everybody's.
	second := openTestKeys(t, KeysOptions{Store: store, Dir: dir, Now: c.Now})
	store.back = true
	if err := second.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	replica := openTestKeys(t, KeysOptions{Store: store, Now: c.Now})
	if _, err := NewVerifier(VerifierOptions{Keys: replica, Now: c.Now}).Verify(t.Context(), token); err != nil {
		t.Errorf("a token from before the database was there: %v", err)
	}
	// And goes away again.
	store.back = false
	if second.Sync(t.Context()) == nil {
		t.Error("no error")
	}
	if token, err = second.Mint(t.Context(), Grant{TTL: TokenTTL}); err != nil {
		t.Error(err)
	}
	third := openTestKeys(t, KeysOptions{Store: store, Dir: dir, Now: c.Now})
	if _, err := NewVerifier(VerifierOptions{Keys: third, Now: c.Now}).Verify(t.Context(), token); err != nil {
		t.Errorf("a token after a restart without the database: %v", err)
	}
}

func TestPrivateKeysAreSealed(t *testing.T) {
	t.Parallel()
	c := newClock()
	store, dir := KeyTable{sqlite(t, c)}, t.TempDir()
	openTestKeys(t, KeysOptions{Store: store, Dir: dir, Now: c.Now})
	rows, err := store.TokenKeys(t.Context())
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
	_, err = OpenKeys(t.Context(), KeysOptions{Store: store, Dir: t.TempDir(), Keyring: sealtest.Ring("other"), Now: c.Now})
	if !errors.Is(err, seal.ErrUnknownKey) || !strings.Contains(err.Error(), rows[0].ID) {
		t.Errorf("with another encryption key: %v", err)
	}
}

func TestReseal(t *testing.T) {
	t.Parallel()
	c := newClock()
	store := KeyTable{sqlite(t, c)}
	before := openTestKeys(t, KeysOptions{Store: store, Now: c.Now})
	dir := t.TempDir()
	both := sealtest.Ring("new", "test")
	openTestKeys(t, KeysOptions{Store: store, Dir: dir, Keyring: both, Now: c.Now})
	for _, want := range []int64{1, 0} {
		count := &seal.Count{}
		if err := (SealedKeys{Store: store, Keyring: both}).Reseal(t.Context(), count); err != nil || count.Resealed != want || count.Seen != 1 {
			t.Errorf("%+v, %v, want %d resealed", count, err, want)
		}
	}
	count := &seal.Count{}
	if err := (SealedKeys{Store: store, Keyring: sealtest.Ring("other")}).Reseal(t.Context(), count); err != nil || count.Left["new"] != 1 {
		t.Errorf("%+v, %v: what does not open is left", count, err)
	}
	alone := sealtest.Ring("new")
	after := openTestKeys(t, KeysOptions{Store: store, Dir: dir, Keyring: alone, Now: c.Now})
	if after.List()[0].ID != before.List()[0].ID {
		t.Error("another key")
	}
	// One whose file is still under the old key does with the database.
	stale := t.TempDir()
	if err := writeKeysFile(stale, before.known.Load().rows); err != nil {
		t.Fatal(err)
	}
	openTestKeys(t, KeysOptions{Store: store, Dir: stale, Keyring: alone, Now: c.Now})
	if _, err := OpenKeys(t.Context(), KeysOptions{Store: &away{}, Dir: func() string {
		dir := t.TempDir()
		_ = writeKeysFile(dir, before.known.Load().rows)
		return dir
	}(), Keyring: alone, Now: c.Now}); !errors.Is(err, seal.ErrUnknownKey) {
		t.Errorf("without the database: %v", err)
	}
}

func TestBadKeyFilesAreErrors(t *testing.T) {
	t.Parallel()
	c := newClock()
	store := KeyTable{sqlite(t, c)}
	if _, err := OpenKeys(t.Context(), KeysOptions{Store: store, Dir: filepath.Join(t.TempDir(), "none"), Keyring: sealtest.Keyring()}); err == nil {
		t.Error("a missing directory is accepted")
	}
	damaged := t.TempDir() // of what the database has too, so it is only told
	if err := os.WriteFile(filepath.Join(damaged, keysFile), []byte("[{"), 0o600); err != nil {
		t.Fatal(err)
	}
	openTestKeys(t, KeysOptions{Store: store, Dir: damaged})
}

func TestMintRefusesWhatNoTokenHas(t *testing.T) {
	t.Parallel()
	c := newClock()
	keys := openTestKeys(t, KeysOptions{Store: KeyTable{sqlite(t, c)}, Now: c.Now})
	if _, err := keys.Mint(t.Context(), Grant{Scopes: []string{"evnts:read"}, TTL: time.Hour}); err == nil {
		t.Error("an unknown scope is minted")
	}
	if _, err := keys.Mint(t.Context(), Grant{TTL: 0}); err == nil {
		t.Error("a token of no life is minted")
	}
}
