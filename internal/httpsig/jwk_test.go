package httpsig

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"strings"
	"testing"
)

// RFC 8037 appendix A.3, with the key of A.2.
func TestTheRFCsThumbprintReproduces(t *testing.T) {
	t.Parallel()
	public, err := JWK{Kty: "OKP", Crv: "Ed25519", X: "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}.Public()
	if err != nil {
		t.Fatal(err)
	}
	jwk, err := PublicJWK(public)
	if err != nil || jwk.Kid != "kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k" {
		t.Errorf("kid = %s, %v", jwk.Kid, err)
	}
}

func TestAKeyAndItsJWK(t *testing.T) {
	t.Parallel()
	for key, want := range map[Key]string{
		ed25519KeyOf(t, 1): `{"kty":"OKP","crv":"Ed25519","x":"iojj3XQJ8ZX9UtstPLpdcspnCb8dlBIb83SIAbQPb1w","kid":"ID","use":"sig","alg":"EdDSA"}`,
		es256Key1(t):       `{"kty":"EC","crv":"P-256","x":"X","y":"Y","kid":"ID","use":"sig","alg":"ES256"}`,
	} {
		jwk := jwkOf(t, key)
		text, err := json.Marshal(jwk)
		if err != nil {
			t.Fatal(err)
		}
		want = strings.NewReplacer(`"X"`, `"`+jwk.X+`"`, `"Y"`, `"`+jwk.Y+`"`, "ID", key.ID()).Replace(want)
		if string(text) != want {
			t.Errorf("JWK = %s, want %s", text, want)
		}
		var back JWK
		if err := json.Unmarshal(text, &back); err != nil || back != jwk {
			t.Errorf("read back %+v, %v", back, err)
		}
		public, err := back.Public()
		if err != nil {
			t.Fatal(err)
		}
		base := []byte("base")
		signature, err := key.Sign(base)
		if err != nil || !valid(public, base, signature) || algorithmOf(public) != key.Algorithm() {
			t.Errorf("%s: its signature is not valid: %v", key.Algorithm(), err)
		}
		for _, other := range [][]byte{nil, signature[:40], append(signature[:64:64], 0)} {
			if valid(public, base, other) {
				t.Errorf("%s: a signature of %d bytes is valid", key.Algorithm(), len(other))
			}
		}
	}
}

func TestOtherKeysAreRefused(t *testing.T) {
	t.Parallel()
	p384, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for _, public := range []any{nil, &p384.PublicKey, &ecdsa.PublicKey{}, ed25519.PublicKey("short"), &rsa.PublicKey{}, "key"} {
		if jwk, err := PublicJWK(public); err == nil {
			t.Errorf("the JWK of %T: %+v", public, jwk)
		}
	}
	if _, err := NewKey(p384); err == nil {
		t.Error("a key of P-384 signs")
	}
	if _, err := NewKey(&rsa.PrivateKey{}); err == nil {
		t.Error("an RSA key signs")
	}
	good := jwkOf(t, es256Key1(t))
	for name, change := range map[string]func(*JWK){
		"no type":           func(k *JWK) { k.Kty = "" },
		"another curve":     func(k *JWK) { k.Crv = "P-384" },
		"OKP with P-256":    func(k *JWK) { k.Kty = "OKP" },
		"OKP, alg of EC":    func(k *JWK) { k.Kty, k.Crv = "OKP", "Ed25519" },
		"for encryption":    func(k *JWK) { k.Use = "enc" },
		"another alg":       func(k *JWK) { k.Alg = "ES384" },
		"no x":              func(k *JWK) { k.X = "" },
		"no y":              func(k *JWK) { k.Y = "" },
		"short x":           func(k *JWK) { k.X = k.X[4:] },
		"long y":            func(k *JWK) { k.Y += "AAAA" },
		"padded":            func(k *JWK) { k.X += "=" },
		"a line break":      func(k *JWK) { k.X = k.X[:5] + "\n" + k.X[5:] },
		"stray bits":        func(k *JWK) { *k = jwkOf(t, ed25519KeyOf(t, 1)); k.X = strings.TrimSuffix(k.X, "w") + "x" },
		"not on the curve":  func(k *JWK) { k.Y = k.X },
		"point at infinity": func(k *JWK) { k.X, k.Y = strings.Repeat("A", 43), strings.Repeat("A", 43) },
	} {
		k := good
		change(&k)
		if _, err := k.Public(); err == nil {
			t.Errorf("%s: %+v is a key", name, k)
		}
	}
}

func FuzzJWK(f *testing.F) {
	for _, key := range []Key{ed25519KeyOf(f, 1), es256Key1(f)} {
		k := jwkOf(f, key)
		f.Add(k.Kty, k.Crv, k.X, k.Y, k.Use, k.Alg)
	}
	f.Fuzz(func(t *testing.T, kty, crv, x, y, use, alg string) {
		k := JWK{Kty: kty, Crv: crv, X: x, Y: y, Use: use, Alg: alg}
		public, err := k.Public()
		if err != nil {
			return
		}
		same, err := PublicJWK(public)
		if err != nil || same.X != x || (kty == ktyEC && same.Y != y) {
			t.Fatalf("%+v is the key of %+v, %v", k, same, err)
		}
		if valid(public, []byte("base"), make([]byte, signatureSize)) && kty == ktyEC {
			t.Fatalf("%+v verifies anything", k)
		}
	})
}
