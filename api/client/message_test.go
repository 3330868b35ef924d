package client_test

import (
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"spendhook/api/client"
	"spendhook/internal/httpsig"
)

// A receiver keeps the keys, reads them again for an unknown one, and tells a forged message from keys that cannot
// be read now.
func TestMessageVerifier(t *testing.T) {
	t.Parallel()
	now := time.Unix(1795167000, 0)
	first, second := ed25519.NewKeyFromSeed([]byte(strings.Repeat("1", 32))), ed25519.NewKeyFromSeed([]byte(strings.Repeat("2", 32)))
	var published atomic.Pointer[[]httpsig.JWK]
	var reads atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		reads.Add(1)
		if keys := published.Load(); keys != nil {
			_ = json.NewEncoder(w).Encode(map[string]any{"keys": *keys})
			return
		}
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	defer server.Close()
	publish := func(private ed25519.PrivateKey) {
		jwk, err := httpsig.PublicJWK(private.Public())
		if err != nil {
			t.Fatal(err)
		}
		published.Store(&[]httpsig.JWK{jwk})
	}
	v := &client.MessageVerifier{KeysURL: server.URL, Origin: "https://ledger.example.com", Now: func() time.Time { return now }}
	verify := func(private ed25519.PrivateKey, body string) error {
		t.Helper()
		key, err := httpsig.NewKey(private)
		if err != nil {
			t.Fatal(err)
		}
		target, err := url.Parse("https://ledger.example.com/hooks")
		if err != nil {
			t.Fatal(err)
		}
		m := httpsig.Message{Method: "POST", URL: target, ContentType: "application/json", Body: []byte("{}"), ID: "e", Timestamp: "1795167000"}
		signed, err := httpsig.Sign(key, m, now, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/hooks", strings.NewReader(body))
		for name, value := range map[string]string{
			httpsig.HeaderDigest: signed.Digest, httpsig.HeaderInput: signed.Input, httpsig.HeaderSignature: signed.Signature,
			"Content-Type": "application/json", "webhook-id": "e", "webhook-timestamp": "1795167000",
		} {
			r.Header.Set(name, value)
		}
		return v.Verify(r, []byte(body))
	}
	if err := verify(first, "{}"); err == nil || errors.Is(err, client.ErrInvalidMessage) {
		t.Errorf("without keys: %v", err)
	}
	now = now.Add(6 * time.Second) // a failed read is not repeated at once
	publish(first)
	for range 3 {
		if err := verify(first, "{}"); err != nil {
			t.Error(err)
		}
	}
	if err := verify(first, "{ }"); !errors.Is(err, client.ErrInvalidMessage) {
		t.Errorf("with another body: %v", err)
	}
	if n := reads.Load(); n != 2 {
		t.Errorf("the keys were read %d times", n)
	}
	publish(second)
	if err := verify(second, "{}"); !errors.Is(err, client.ErrInvalidMessage) {
		t.Errorf("a new key, read again at once: %v", err)
	}
	now = now.Add(6 * time.Second)
	if err := verify(second, "{}"); err != nil {
		t.Errorf("a new key: %v", err)
	}
	if err := verify(first, "{}"); !errors.Is(err, client.ErrInvalidMessage) {
		t.Errorf("a former key: %v", err)
	}
	if n := reads.Load(); n != 3 {
		t.Errorf("the keys were read %d times", n)
	}
}
