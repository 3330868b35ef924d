package api

import (
	"crypto/ecdsa"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"maps"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/google/uuid"
)

// forge makes JWTs by hand, including invalid ones.
type forge struct {
	t      *testing.T
	header map[string]any
	claims map[string]any
}

// signature makes what follows the second dot.
type signature func(signed string) []byte

// with is the forge with other members; nil leaves one out.
func (f forge) with(header, claims map[string]any) forge {
	f.header, f.claims = merged(f.header, header), merged(f.claims, claims)
	return f
}

func merged(members, changes map[string]any) map[string]any {
	members = maps.Clone(members)
	maps.Copy(members, changes)
	maps.DeleteFunc(members, func(_ string, value any) bool { return value == nil })
	return members
}

func (f forge) token(sign signature) string {
	f.t.Helper()
	header, err := json.Marshal(f.header)
	if err != nil {
		f.t.Fatal(err)
	}
	claims, err := json.Marshal(f.claims)
	if err != nil {
		f.t.Fatal(err)
	}
	signed := base64.RawURLEncoding.EncodeToString(header) + "." + base64.RawURLEncoding.EncodeToString(claims)
	return signed + "." + base64.RawURLEncoding.EncodeToString(sign(signed))
}

// es256 is RFC 7518 section 3.4: the two numbers, 32 bytes each.
func es256(t *testing.T, key *ecdsa.PrivateKey) signature {
	t.Helper()
	return func(signed string) []byte {
		sum := sha256.Sum256([]byte(signed))
		r, s, err := ecdsa.Sign(rand.Reader, key, sum[:])
		if err != nil {
			t.Fatal(err)
		}
		return append(r.FillBytes(make([]byte, 32)), s.FillBytes(make([]byte, 32))...)
	}
}

func hs256(secret []byte) signature {
	return func(signed string) []byte {
		mac := hmac.New(sha256.New, secret)
		_, _ = mac.Write([]byte(signed))
		return mac.Sum(nil)
	}
}

func unsigned(string) []byte { return nil }

// genuine makes valid tokens of acme with all scopes, like those that the daemon signs.
func (w *twoCompanies) genuine() forge {
	w.t.Helper()
	jwks := as[struct {
		Keys []struct{ Kid string }
	}](w.call("GET", "/.well-known/jwks.json", "", noToken).want(http.StatusOK))
	return forge{
		t: w.t, header: map[string]any{"alg": "ES256", "typ": "JWT", "kid": jwks.Keys[0].Kid},
		claims: map[string]any{
			"iss": "https://spendhook.test", "aud": "spendhook", "sub": "forged", "jti": uuid.NewString(),
			"iat": time.Now().Unix(), "exp": time.Now().Add(time.Hour).Unix(),
			"scope": allScopes + " platform operator", "company_uuid": w.acme.company,
		},
	}
}

// forged returns tokens by name. Each differs from a valid token in what its name says.
func (w *twoCompanies) forged() map[string]string {
	w.t.Helper()
	good, own, stranger := w.genuine(), es256(w.t, w.signer), newSigner(w.t)
	der, err := x509.MarshalPKIXPublicKey(&w.signer.PublicKey)
	if err != nil {
		w.t.Fatal(err)
	}
	hour := func(sign int) int64 { return time.Now().Add(time.Duration(sign) * time.Hour).Unix() }
	claim := func(name string, value any) string { return good.with(nil, map[string]any{name: value}).token(own) }
	alg := func(name string, sign signature) string {
		return good.with(map[string]any{"alg": name}, nil).token(sign)
	}
	whole := good.token(own)
	if w.call("GET", "/api/v1/event-types", "", bearer(whole)).Code != http.StatusOK {
		w.t.Fatal("the valid token is refused, so refused forgeries prove nothing")
	}
	return map[string]string{
		"garbage":                       "garbage",
		"an empty token":                "",
		"half a token":                  whole[:len(whole)/2],
		"a signature one byte short":    whole[:len(whole)-2],
		"more than a token":             whole + "." + whole,
		"more than any token":           strings.Repeat("x", 9000),
		"an expired token":              claim("exp", hour(-1)),
		"a token without an end":        claim("exp", nil),
		"a token of the future":         claim("nbf", hour(1)),
		"another issuer":                claim("iss", "https://evil.test"),
		"no issuer":                     claim("iss", nil),
		"another audience":              claim("aud", "other"),
		"no audience":                   claim("aud", nil),
		"a company that is none":        claim("company_uuid", "acme"),
		"a list of scopes":              claim("scope", []string{"subscribers:read"}),
		"alg none":                      alg("none", unsigned),
		"alg nOnE":                      alg("nOnE", unsigned),
		"no signature":                  good.token(unsigned),
		"a signature of zeros":          good.token(func(string) []byte { return make([]byte, 64) }),
		"HS256 with the public DER":     alg("HS256", hs256(der)),
		"HS256 with the public PEM":     alg("HS256", hs256(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))),
		"HS256 with nothing":            alg("HS256", hs256(nil)),
		"ES384 in name":                 alg("ES384", own),
		"a critical header":             good.with(map[string]any{"crit": []string{"x"}, "x": 1}, nil).token(own),
		"another's key with the kid":    good.token(es256(w.t, stranger)),
		"another's key, another kid":    good.with(map[string]any{"kid": "mine"}, nil).token(es256(w.t, stranger)),
		"another's key without a kid":   good.with(map[string]any{"kid": nil}, nil).token(es256(w.t, stranger)),
		"another's key that it carries": good.with(map[string]any{"kid": nil, "jwk": publicJWK(stranger)}, nil).token(es256(w.t, stranger)),
	}
}

func publicJWK(key *ecdsa.PrivateKey) map[string]any {
	part := func(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }
	return map[string]any{
		"kty": "EC", "crv": "P-256", "alg": "ES256",
		"x": part(key.X.FillBytes(make([]byte, 32))), "y": part(key.Y.FillBytes(make([]byte, 32))),
	}
}
