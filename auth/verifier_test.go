package auth

import (
	"context"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/lestrrat-go/jwx/v3/jwa"
	"github.com/lestrrat-go/jwx/v3/jwk"
	"github.com/lestrrat-go/jwx/v3/jws"
	"github.com/lestrrat-go/jwx/v3/jwt"

	"spendhook/auth/authtest"
	"spendhook/internal/peer"
	"spendhook/storage"
	"spendhook/storage/storagetest"
)

// sign makes a token that Mint would not.
func sign(t *testing.T, now time.Time, edit func(jwt.Token) error, alg jwa.SignatureAlgorithm, key any) string {
	t.Helper()
	token, err := jwt.NewBuilder().Issuer(authtest.Issuer).Audience([]string{audience}).Subject("x").
		Expiration(now.Add(time.Hour)).Claim(scopeClaim, allScopes).Build()
	if err := errors.Join(err, edit(token)); err != nil {
		t.Fatal(err)
	}
	signed, err := jwt.Sign(token, jwt.WithKey(alg, key))
	if err != nil {
		t.Fatal(err)
	}
	return string(signed)
}

func nothing(jwt.Token) error { return nil }

func set(name string, value any) func(jwt.Token) error {
	return func(token jwt.Token) error { return token.Set(name, value) }
}

func TestForgedTokensAreRefused(t *testing.T) {
	t.Parallel()
	c := authtest.NewClock()
	r := newReplica(t, storagetest.Open(t, storage.Options{}), c)
	now, kid := c.Now(), r.keyID()
	own := r.private()
	es256 := jwa.ES256()
	if !r.accepts(sign(t, now, nothing, es256, own)) {
		t.Fatal("a good token is refused")
	}
	stranger := newReplica(t, storagetest.Open(t, storage.Options{}), c)
	foreign, err := stranger.private().Clone()
	if err := errors.Join(err, foreign.Set(jwk.KeyIDKey, kid)); err != nil {
		t.Fatal(err)
	}
	part := base64.RawURLEncoding.EncodeToString
	none := part([]byte(`{"alg":"none","kid":"`+kid+`"}`)) + "." +
		part(fmt.Appendf(nil, `{"iss":%q,"aud":["spendhook"],"exp":%d}`, authtest.Issuer, now.Unix()+60)) + "."
	flat, err := jws.Sign([]byte(`{}`), jws.WithKey(es256, own), jws.WithJSON())
	if err != nil {
		t.Fatal(err)
	}
	headers := jws.NewHeaders()
	if err := errors.Join(headers.Set("crit", []string{"x"}), headers.Set("x", 1)); err != nil {
		t.Fatal(err)
	}
	payload, _ := json.Marshal(map[string]any{"iss": authtest.Issuer, "aud": "spendhook", "exp": now.Unix() + 60})
	crit, err := jws.Sign(payload, jws.WithKey(es256, own, jws.WithProtectedHeaders(headers)))
	if err != nil {
		t.Fatal(err)
	}
	for name, token := range map[string]string{
		"alg none":             none,
		"another's key":        sign(t, now, nothing, es256, foreign),
		"HS256 by public key":  sign(t, now, nothing, jwa.HS256(), hmacKey(t, own, kid)),
		"issuer":               sign(t, now, set("iss", "https://evil.test"), es256, own),
		"no issuer":            sign(t, now, func(token jwt.Token) error { return token.Remove("iss") }, es256, own),
		"audience":             sign(t, now, set("aud", "other"), es256, own),
		"expired":              sign(t, now, set("exp", now.Add(-time.Second)), es256, own),
		"no expiry":            sign(t, now, func(token jwt.Token) error { return token.Remove("exp") }, es256, own),
		"not yet valid":        sign(t, now, set("nbf", now.Add(time.Hour)), es256, own),
		"company":              sign(t, now, set(companyClaim, "x"), es256, own),
		"company no text":      sign(t, now, set(companyClaim, 7), es256, own),
		"scope no text":        sign(t, now, set(scopeClaim, []int{1}), es256, own),
		"client no text":       sign(t, now, set(clientClaim, 7), es256, own),
		"bound to a key":       sign(t, now, set(confirmation, map[string]any{"jkt": "x"}), es256, own),
		"bound to a key also":  sign(t, now, set(confirmation, map[string]any{"jkt": "x", thumbprint: "tp"}), es256, own),
		"bound to nothing":     sign(t, now, set(confirmation, map[string]any{thumbprint: ""}), es256, own),
		"bound, but no object": sign(t, now, set(confirmation, "x"), es256, own),
		"not compact":          string(flat),
		"a critical extension": string(crit),
		"too long":             strings.Repeat("x", maxToken+1),
		"empty":                "",
	} {
		if r.accepts(token) {
			t.Errorf("%s: accepted", name)
		}
	}
}

// hmacKey is the public key used as an HMAC secret (algorithm confusion).
func hmacKey(t *testing.T, private jwk.Key, kid string) jwk.Key {
	t.Helper()
	key, err := private.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	var public any
	if err := jwk.Export(key, &public); err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	key, err = jwk.Import(der)
	if err := errors.Join(err, key.Set(jwk.KeyIDKey, kid)); err != nil {
		t.Fatal(err)
	}
	return key
}

func TestMintedTokenSaysWhatWasGranted(t *testing.T) {
	t.Parallel()
	c := authtest.NewClock()
	r := newReplica(t, storagetest.Open(t, storage.Options{}), c)
	company := uuid.New()
	token, err := Mint(r.keys, Grant{
		Subject: "s", ClientID: "shc_1", Company: &company, Scopes: []string{"events:read", "platform"}, Thumbprint: "tp", TTL: time.Hour,
	}, c.Now())
	if err != nil {
		t.Fatal(err)
	}
	got, err := r.verifier.Verify(t.Context(), token)
	if err != nil {
		t.Fatal(err)
	}
	if got.Issuer != authtest.Issuer || got.Subject != "s" || got.ClientID != "shc_1" || *got.Company != company ||
		!got.May("platform") || got.May("events:write") || got.Thumbprint != "tp" || !got.Expires.Equal(c.Now().Add(time.Hour)) {
		t.Errorf("%+v", got)
	}
}

func TestCachedTokenExpires(t *testing.T) {
	t.Parallel()
	c := authtest.NewClock()
	r := newReplica(t, storagetest.Open(t, storage.Options{}), c)
	token := r.mint(time.Minute)
	first, err := r.verifier.Verify(t.Context(), token)
	if err != nil {
		t.Fatal(err)
	}
	if again, _ := r.verifier.Verify(t.Context(), token); again != first {
		t.Error("the token was verified again")
	}
	c.Add(time.Minute)
	if r.accepts(token) {
		t.Error("an expired token is accepted from the cache")
	}
	token = r.mint(time.Hour)
	if !r.accepts(token) {
		t.Fatal("refused")
	}
	if err := r.keys.Revoke(t.Context(), r.keyID()); err != nil {
		t.Fatal(err)
	}
	if r.accepts(token) {
		t.Error("a token is accepted from the cache although its key is gone")
	}
}

// Of many requests with a new token one verifies it. The others would else wait for their turns, and be refused.
func TestATokenIsVerifiedOnce(t *testing.T) {
	t.Parallel()
	r := newReplica(t, storagetest.Open(t, storage.Options{}), authtest.NewClock())
	token := r.mint(time.Hour)
	callers := make([]*Caller, 50)
	var all sync.WaitGroup
	for i := range callers {
		all.Go(func() { callers[i], _ = r.verifier.Verify(t.Context(), token) })
	}
	all.Wait()
	for i, caller := range callers {
		if caller == nil || caller != callers[0] {
			t.Fatalf("request %d has %v, the first one %v", i, caller, callers[0])
		}
	}
}

// Of one address one token is verified at a time, so that bad ones take little CPU. Those
// that were verified before need no turn.
func TestVerificationsTakeTurns(t *testing.T) {
	t.Parallel()
	r := newReplica(t, storagetest.Open(t, storage.Options{}), authtest.NewClock())
	known, unknown := r.mint(time.Hour), r.mint(2*time.Hour)
	if !r.accepts(known) {
		t.Fatal("refused")
	}
	end, err := r.verifier.turns.Take(t.Context(), peer.Address(t.Context()))
	if err != nil {
		t.Fatal(err)
	}
	if !r.accepts(known) {
		t.Error("what is known waits for a turn")
	}
	gone, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := r.verifier.Verify(gone, unknown); !errors.Is(err, ErrUnavailable) {
		t.Errorf("verified beside another: %v", err)
	}
	end()
	if !r.accepts(unknown) {
		t.Error("refused in its turn")
	}
}
