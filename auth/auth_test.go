package auth

import (
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lestrrat-go/jwx/v3/jwa"
	"github.com/lestrrat-go/jwx/v3/jwk"
	"github.com/lestrrat-go/jwx/v3/jwt"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const allScopes = "events:read events:write"

// sign makes a token that no KeyStore would.
func sign(t *testing.T, edit func(jwt.Token) error, alg jwa.SignatureAlgorithm, key any) string {
	t.Helper()
	token, err := jwt.NewBuilder().Issuer("https://spendhook.test").Audience([]string{audience}).
		Expiration(time.Now().Add(time.Hour)).Claim(scopeClaim, allScopes).Build()
	if err := errors.Join(err, edit(token)); err != nil {
		t.Fatal(err)
	}
	signed, err := jwt.Sign(token, jwt.WithKey(alg, key))
	if err != nil {
		t.Fatal(err)
	}
	return string(signed)
}

func TestForgedTokensAreRefused(t *testing.T) {
	t.Parallel()
	keys, err := OpenKeys(t.TempDir(), "https://spendhook.test")
	if err != nil {
		t.Fatal(err)
	}
	v := NewVerifier(keys, nil)
	es256 := jwa.ES256()
	nothing := func(jwt.Token) error { return nil }
	set := func(name string, value any) func(jwt.Token) error {
		return func(token jwt.Token) error { return token.Set(name, value) }
	}
	if _, err := v.Verify(sign(t, nothing, es256, keys.private)); err != nil {
		t.Fatalf("a good token is refused: %v", err)
	}
	stranger, err := OpenKeys(t.TempDir(), "https://spendhook.test")
	if err != nil {
		t.Fatal(err)
	}
	foreign, err := stranger.private.Clone()
	kid, _ := keys.private.KeyID()
	if err := errors.Join(err, foreign.Set(jwk.KeyIDKey, kid)); err != nil {
		t.Fatal(err)
	}
	none := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"none","kid":"`+kid+`"}`)) + "." +
		base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, `{"iss":"https://spendhook.test","aud":["spendhook"],"exp":%d}`, time.Now().Unix()+60)) + "."
	for name, token := range map[string]string{
		"alg none":            none,
		"another's key":       sign(t, nothing, es256, foreign),
		"HS256 by public key": sign(t, nothing, jwa.HS256(), hmacKey(t, keys, kid)),
		"issuer":              sign(t, set("iss", "https://evil.test"), es256, keys.private),
		"audience":            sign(t, set("aud", "other"), es256, keys.private),
		"expired":             sign(t, set("exp", time.Now().Add(-time.Second)), es256, keys.private),
		"no expiry":           sign(t, func(token jwt.Token) error { return token.Remove("exp") }, es256, keys.private),
		"not yet valid":       sign(t, set("nbf", time.Now().Add(time.Hour)), es256, keys.private),
		"company":             sign(t, set(companyClaim, "x"), es256, keys.private),
		"company no text":     sign(t, set(companyClaim, 7), es256, keys.private),
		"scope no text":       sign(t, set(scopeClaim, []int{1}), es256, keys.private),
	} {
		if c, err := v.Verify(token); err == nil {
			t.Errorf("%s: accepted as %+v", name, c)
		}
	}
}

// hmacKey is the public key taken for an HMAC secret, the classic confusion.
func hmacKey(t *testing.T, keys *KeyStore, kid string) jwk.Key {
	t.Helper()
	var public any
	if err := jwk.Export(keys.public, &public); err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	key, err := jwk.Import(der)
	if err := errors.Join(err, key.Set(jwk.KeyIDKey, kid)); err != nil {
		t.Fatal(err)
	}
	return key
}

func TestCachedTokenExpires(t *testing.T) {
	t.Parallel()
	keys, err := OpenKeys(t.TempDir(), "x")
	if err != nil {
		t.Fatal(err)
	}
	clock := time.Now()
	v := NewVerifier(keys, func() time.Time { return clock })
	token, err := keys.Mint(Grant{TTL: time.Minute}, clock)
	if err != nil {
		t.Fatal(err)
	}
	first, err := v.Verify(token)
	if err != nil {
		t.Fatal(err)
	}
	if again, _ := v.Verify(token); again != first {
		t.Error("the token was verified anew")
	}
	clock = clock.Add(time.Minute)
	if _, err := v.Verify(token); err == nil {
		t.Error("an expired token is accepted from the cache")
	}
}

func TestKeyStoreKeepsItsKey(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ids := make([]string, 8)
	var wg sync.WaitGroup
	for i := range ids {
		wg.Go(func() {
			keys, err := OpenKeys(dir, "x")
			if err != nil {
				t.Error(err)
				return
			}
			ids[i], _ = keys.public.KeyID()
		})
	}
	wg.Wait()
	for _, id := range ids {
		if id == "" || id != ids[0] {
			t.Fatalf("different keys: %v", ids)
		}
	}
	path := filepath.Join(dir, keyFile)
	info, err := os.Stat(path)
	if err != nil || info.Mode() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if left, _ := fs.Glob(os.DirFS(dir), ".token-key-*"); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenKeys(dir, "x"); err == nil {
		t.Error("a key that everyone can read is accepted")
	}
}

func TestDamagedKeyIsAnError(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"empty": "", "not PEM": "hunter2", "not PKCS 8": "-----BEGIN PRIVATE KEY-----\naHVudGVyMg==\n-----END PRIVATE KEY-----\n",
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, keyFile), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := OpenKeys(dir, "x"); err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := OpenKeys(filepath.Join(t.TempDir(), "none"), "x"); err == nil {
		t.Error("a missing directory is accepted")
	}
}

func TestMintRefusesWhatNoTokenHas(t *testing.T) {
	t.Parallel()
	keys, err := OpenKeys(t.TempDir(), "x")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := keys.Mint(Grant{Scopes: []string{"evnts:read"}, TTL: time.Hour}, time.Now()); err == nil {
		t.Error("an unknown scope is minted")
	}
	if _, err := keys.Mint(Grant{TTL: 0}, time.Now()); err == nil {
		t.Error("a token of no life is minted")
	}
}
