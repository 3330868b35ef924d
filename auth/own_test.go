package auth

import (
	"errors"
	"testing"
	"time"

	"spendhook/auth/authtest"
	"spendhook/auth/keys"
	"spendhook/storage"
	"spendhook/storage/storagetest"
)

// The keys are rotated while two replicas mint and verify tokens. The replicas read the
// database at different times.
func TestRotationRefusesNoToken(t *testing.T) {
	t.Parallel()
	storagetest.OnBoth(t, func(t *testing.T, db *storage.DB) {
		t.Helper()
		c := authtest.NewClock()
		one, other := newReplica(t, db, c), newReplica(t, db, c)
		// An unknown key id does not trigger a read of the database. The published keys do.
		one.ownIssuer().every, other.ownIssuer().every = 1e6*time.Hour, 1e6*time.Hour
		never := func(r *replica) { r.ownIssuer().last = c.Now() }
		never(one)
		never(other)
		var tokens []string
		signers := map[string]bool{}
		for second := range 4800 / 7 {
			c.Add(7 * time.Second)
			switch second {
			case 10, 300:
				if err := one.keys.Rotate(t.Context()); err != nil {
					t.Fatal(err)
				}
			case 120, 500:
				if err := other.keys.Rotate(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			// Each looks at least every 2*keys.SyncInterval, which is late.
			if second%2 == 0 {
				one.sync()
			} else {
				other.sync()
			}
			tokens = append(tokens, one.mint(keys.TokenTTL), other.mint(keys.TokenTTL))
			for _, r := range []*replica{one, other} {
				for _, key := range r.keys.List() {
					if key.State == "signing" {
						signers[key.ID] = true
					}
				}
				for _, at := range []int{len(tokens) - 1, len(tokens) - 2, len(tokens) / 2} {
					if age := len(tokens)/2 - at/2; age*7 < 3590 && !r.accepts(tokens[at]) {
						t.Fatalf("second %d: a token of %d s is refused", second*7, age*7)
					}
				}
			}
		}
		if len(signers) != 5 {
			t.Errorf("%d keys have signed, want 5", len(signers))
		}
	})
}

func TestKeyOutlivesItsLongestToken(t *testing.T) {
	t.Parallel()
	c := authtest.NewClock()
	r := newReplica(t, storagetest.Open(t, storage.Options{}), c)
	token := r.mint(keys.MaxTTL)
	r.sync()
	if err := r.keys.Rotate(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.Add(keys.MaxTTL - time.Second)
	r.sync()
	if !r.accepts(token) {
		t.Error("a token is refused before it expires: its key is gone")
	}
	c.Add(time.Second)
	if r.accepts(token) {
		t.Error("an expired token is accepted")
	}
	c.Add(keys.ClockSlack + 11*time.Minute) // 10 minutes after the rotation, the next key began to sign
	if len(storagetest.Must(r.keys.JWKS())(t)) != 1 {
		t.Error("the key stays for ever")
	}
}

// What was granted to a client, such as a console session, ends with the client.
func TestADisabledClientIsNotAccepted(t *testing.T) {
	t.Parallel()
	r := newReplica(t, storagetest.Open(t, storage.Options{}), authtest.NewClock())
	v := newVerifier(t, VerifierOptions{Keys: r.keys, Now: r.clock.Now, Revoked: func(id string) bool { return id == "disabled" }})
	for client, want := range map[string]bool{"": true, "enabled": true, "disabled": false} {
		if got := v.Accepts(r.keys.Issuer(), r.keys.List()[0].ID, client); got != want {
			t.Errorf("client %q: %t", client, got)
		}
	}
}

// A revoked key is refused at once by this replica, by others after their next sync, and by
// a restarted replica. All replicas accept the tokens of the new key at once.
func TestRevokedKeyIsRefused(t *testing.T) {
	t.Parallel()
	storagetest.OnBoth(t, func(t *testing.T, db *storage.DB) {
		t.Helper()
		c := authtest.NewClock()
		one, other := newReplica(t, db, c), newReplica(t, db, c)
		long, short, leaked := one.mint(keys.MaxTTL), other.mint(keys.TokenTTL), one.keys.List()[0].ID
		if !one.accepts(long) || !other.accepts(short) || !other.accepts(long) {
			t.Fatal("good tokens are refused")
		}
		if err := one.keys.Revoke(t.Context(), leaked); err != nil {
			t.Fatal(err)
		}
		issuer, fresh := one.keys.Issuer(), one.keys.List()[0].ID
		if one.accepts(long) || one.accepts(short) || one.verifier.Accepts(issuer, leaked, "") {
			t.Error("here its tokens are still good")
		}
		if !one.verifier.Accepts(issuer, fresh, "") || one.verifier.Accepts("another", fresh, "") {
			t.Error("the new key is refused, or another issuer's is accepted")
		}
		late := other.mint(keys.TokenTTL) // with a key that it does not know to be revoked
		c.Add(keys.SyncInterval)          // when each looks
		if !other.accepts(one.mint(keys.TokenTTL)) {
			t.Error("the new key is not known elsewhere")
		}
		other.sync()
		for _, token := range []string{long, short, late} {
			if one.accepts(token) || other.accepts(token) {
				t.Error("a token of the revoked key is accepted")
			}
		}
		if !one.accepts(other.mint(keys.TokenTTL)) {
			t.Error("what the other mints is refused")
		}
		again := openKeys(t, keys.Options{Store: &switched{Store: other.store}, Dir: other.dir, Now: c.Now})
		for _, list := range [][]keys.Info{one.keys.List(), other.keys.List(), again.List()} {
			if len(list) != 1 || list[0].ID == leaked || list[0].State != "signing" {
				t.Errorf("keys %+v", list)
			}
		}
		if err := one.keys.Revoke(t.Context(), leaked); err == nil {
			t.Error("it is revoked twice")
		}
	})
}

func TestLookupsOfUnknownKeysAreThrottled(t *testing.T) {
	t.Parallel()
	c := authtest.NewClock()
	store := storagetest.Open(t, storage.Options{})
	one, other := newReplica(t, store, c), newReplica(t, store, c)
	if err := one.keys.Rotate(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.Add(11 * time.Minute)
	if token := one.mint(keys.TokenTTL); !other.accepts(token) {
		t.Error("a key that the database has is not found")
	}
	other.store.reads = 0
	for range 100 {
		if key, _ := other.ownIssuer().find(t.Context(), "made up"); key != nil {
			t.Error("found")
		}
	}
	if other.store.reads != 0 {
		t.Errorf("the database is asked %d times at once", other.store.reads)
	}
	c.Add(keys.SyncInterval)
	other.ownIssuer().find(t.Context(), "made up")
	if other.store.reads != 1 {
		t.Errorf("the database is asked %d times a while later", other.store.reads)
	}
}

func TestFirstStartWithoutTheDatabase(t *testing.T) {
	t.Parallel()
	c := authtest.NewClock()
	store, dir := &switched{Store: keys.Table(storagetest.Open(t, storage.Options{}))}, t.TempDir()
	signer := openKeys(t, keys.Options{Store: store, Dir: dir, Now: c.Now})
	grant := Grant{TTL: keys.TokenTTL}
	if _, err := Mint(signer, grant, c.Now()); !errors.Is(err, storage.ErrUnavailable) {
		t.Errorf("a token without a key: %v", err)
	}
	if _, err := signer.JWKS(); !errors.Is(err, storage.ErrUnavailable) {
		t.Errorf("the published keys: %v", err)
	}
	stranger := newReplica(t, storagetest.Open(t, storage.Options{}), c).mint(time.Hour)
	verifier := newVerifier(t, VerifierOptions{Keys: signer, Now: c.Now})
	if _, err := verifier.Verify(t.Context(), stranger); !errors.Is(err, ErrUnavailable) {
		t.Errorf("a key that the database may have: %v", err)
	}
	store.up = true
	if err := signer.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.Add(time.Minute)
	if _, err := verifier.Verify(t.Context(), stranger); !errors.Is(err, ErrInvalidToken) {
		t.Errorf("a key that the database does not have: %v", err)
	}
	// The database is unavailable again, and the daemon restarts.
	store.up = false
	if signer.Sync(t.Context()) == nil {
		t.Error("no error")
	}
	token := storagetest.Must(Mint(signer, grant, c.Now()))(t)
	restarted := openKeys(t, keys.Options{Store: store, Dir: dir, Now: c.Now})
	if _, err := newVerifier(t, VerifierOptions{Keys: restarted, Now: c.Now}).Verify(t.Context(), token); err != nil {
		t.Errorf("a token after a restart without the database: %v", err)
	}
}

func TestMintRefusesWhatNoTokenHas(t *testing.T) {
	t.Parallel()
	c := authtest.NewClock()
	signer := openKeys(t, keys.Options{Store: keys.Table(storagetest.Open(t, storage.Options{})), Now: c.Now})
	if _, err := Mint(signer, Grant{Scopes: []string{"evnts:read"}, TTL: time.Hour}, c.Now()); err == nil {
		t.Error("an unknown scope is minted")
	}
	if _, err := Mint(signer, Grant{TTL: 0}, c.Now()); err == nil {
		t.Error("a token of no life is minted")
	}
	if _, err := Mint(signer, Grant{TTL: keys.MaxTTL + time.Second}, c.Now()); err == nil {
		t.Error("a token that outlives its key is minted")
	}
}
