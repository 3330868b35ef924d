package api

import (
	"crypto"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"strings"
	"testing"

	"github.com/lestrrat-go/jwx/v3/jwk"

	"spendhook/api/gen"
)

// The published set is a JWK Set that another library reads, with the same keys as the list, and each kid is the
// key's thumbprint.
func TestWebhookKeysAreAJWKSet(t *testing.T) {
	t.Parallel()
	w := setupTwo(t)
	a := w.call("GET", "/.well-known/webhook-keys/"+w.acme.company.String(), "", noToken).want(http.StatusOK)
	if a.Header().Get("Cache-Control") != "public, max-age=300" {
		t.Errorf("Cache-Control %q", a.Header().Get("Cache-Control"))
	}
	set, err := jwk.Parse(a.Body.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	listed := as[gen.CompanyKeys](w.callAs(w.acme, "GET", "/api/v1/webhook-keys", "").want(http.StatusOK)).Keys
	published := as[gen.WebhookKeys](a).Keys
	if set.Len() != len(listed) || len(published) != 4 {
		t.Fatalf("%d parsed, %d listed, %d published", set.Len(), len(listed), len(published))
	}
	for i, k := range published {
		key, _ := set.Key(i)
		sum, err := key.Thumbprint(crypto.SHA256)
		if err != nil {
			t.Fatal(err)
		}
		if id := base64.RawURLEncoding.EncodeToString(sum); k.Kid != id || listed[i].Kid != id || len(sum) != sha256.Size {
			t.Errorf("%s %s published, %s listed, thumbprint %s", k.Kty, k.Kid, listed[i].Kid, id)
		}
		var raw ed25519.PublicKey
		if k.Algorithm == gen.KeyAlgorithmEd25519 {
			if err := jwk.Export(key, &raw); err != nil || "whpk_"+base64.StdEncoding.EncodeToString(raw) != textOf(k.PublicKey) {
				t.Errorf("%v: publicKey %s is not x %s", err, textOf(k.PublicKey), k.X)
			}
		} else if k.PublicKey != nil {
			t.Errorf("%s has a publicKey", k.Kid)
		}
	}
}

// A rotation and a revocation over the API: states, the second rotation within ten minutes, and what is published.
func TestWebhookKeysRotateAndAreRevoked(t *testing.T) {
	t.Parallel()
	w := setupTwo(t)
	states := func(keys []gen.CompanyKey) string {
		var out []string
		for _, k := range keys {
			if k.Algorithm == gen.KeyAlgorithmEd25519 {
				out = append(out, string(k.State))
			}
			if (k.RetiresAt != nil) != (k.State == gen.CompanyKeyStateRETIRED) {
				t.Errorf("%s: retiresAt %v", k.State, k.RetiresAt)
			}
		}
		return strings.Join(out, " ")
	}
	keys := as[gen.CompanyKeys](w.callAs(w.acme, "POST", "/api/v1/webhook-keys/rotate", "").want(http.StatusOK)).Keys
	if got := states(keys); got != "RETIRED SIGNING NEXT" {
		t.Errorf("after a rotation: %s", got)
	}
	w.callAs(w.acme, "POST", "/api/v1/webhook-keys/rotate", "").want(http.StatusConflict, "KEYS_ROTATED_RECENTLY")
	w.callAs(w.acme, "DELETE", "/api/v1/webhook-keys/"+keys[1].Kid, "").want(http.StatusNoContent)
	w.callAs(w.acme, "DELETE", "/api/v1/webhook-keys/"+keys[1].Kid, "").want(http.StatusNotFound, "NO_WEBHOOK_KEYS")
	after := as[gen.CompanyKeys](w.callAs(w.acme, "GET", "/api/v1/webhook-keys", "").want(http.StatusOK)).Keys
	if got := states(after); got != "RETIRED SIGNING NEXT" || after[1].Kid != keys[2].Kid {
		t.Errorf("after the revocation %s: %s signs, want %s", got, after[1].Kid, keys[2].Kid)
	}
	if text := w.call("GET", "/.well-known/webhook-keys/"+w.acme.company.String(), "", noToken).Body.String(); strings.Contains(text, keys[1].Kid) {
		t.Error("the revoked key is published")
	}
}
