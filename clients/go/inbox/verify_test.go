package inbox

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"spendhook/internal/httpsig"
)

// The verifier accepts and refuses what all libraries must.
func TestVectors(t *testing.T) {
	t.Parallel()
	file, err := os.ReadFile("../../conformance/vectors.json")
	if err != nil {
		t.Fatal(err)
	}
	var vectors struct {
		Now   int64
		Cases []struct {
			Name    string
			Secrets []string
			Keys    json.RawMessage
			Origin  string
			Method  string
			URL     string
			Headers map[string]string
			Body    []byte
			Valid   bool
		}
	}
	if err := json.Unmarshal(file, &vectors); err != nil {
		t.Fatal(err)
	}
	for _, c := range vectors.Cases {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			o := VerifierOptions{Secrets: c.Secrets, Origin: c.Origin, Now: func() time.Time { return time.Unix(vectors.Now, 0) }}
			if string(c.Keys) != "null" {
				o.KeysURL = publish(t, func() string { return string(c.Keys) })
			}
			v, err := NewVerifier(o)
			if err != nil {
				t.Fatal(err)
			}
			r := httptest.NewRequestWithContext(t.Context(), c.Method, "/", bytes.NewReader(c.Body))
			r.RequestURI = c.URL
			for name, value := range c.Headers {
				r.Header.Set(name, value)
			}
			if err := v.Verify(r, c.Body); (err == nil) != c.Valid || (err != nil && !errors.Is(err, ErrInvalidMessage)) {
				t.Errorf("%v", err)
			}
		})
	}
	if len(vectors.Cases) < 200 {
		t.Errorf("only %d cases", len(vectors.Cases))
	}
}

// publish serves a JWK Set; "" is answered with 503.
func publish(t *testing.T, keys func() string) (url string) {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		text := keys()
		if text == "" {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		_, _ = w.Write([]byte(text))
	}))
	t.Cleanup(server.Close)
	return server.URL
}

func TestNewVerifier(t *testing.T) {
	t.Parallel()
	long := base64.StdEncoding.EncodeToString(make([]byte, 24))
	const keys = "https://spendhook.example.com/.well-known/webhook-keys/c"
	for name, o := range map[string]VerifierOptions{
		"nothing":                 {},
		"an empty secret":         {Secrets: []string{""}},
		"an empty whsec_":         {Secrets: []string{"whsec_"}},
		"a secret of 23 bytes":    {Secrets: []string{"whsec_" + long, "whsec_" + base64.StdEncoding.EncodeToString(make([]byte, 23))}},
		"a secret that is no key": {Secrets: []string{"whsec_" + strings.Repeat("?", 40)}},
		"an origin without keys":  {Secrets: []string{long}, Origin: "https://hooks.example.com"},
	} {
		if _, err := NewVerifier(o); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	for _, origin := range []string{
		"hooks.example.com", "hooks.example.com:443", "//hooks.example.com", "https:hooks.example.com", "https://", "https://:443",
		"ftp://hooks.example.com", "https://hooks.example.com/", "https://hooks.example.com/a/", "https://hooks.example.com?",
		"https://hooks.example.com?a=1", "https://hooks.example.com#", "https://hooks.example.com#a", "https://user@hooks.example.com",
		"https://hooks.exämple.com", "https://hooks.example.com/ä", "https://hooks.example.com/a b", " https://hooks.example.com", "https://hooks.example.com:x",
	} {
		if _, err := NewVerifier(VerifierOptions{KeysURL: keys, Origin: origin}); err == nil {
			t.Errorf("origin %q: no error", origin)
		}
	}
	for _, url := range []string{"spendhook.example.com/keys", "/keys", "https://", "https:///keys", "ftp://spendhook.example.com/keys", "https://a b/keys"} {
		for _, origin := range []string{"", "https://hooks.example.com"} {
			if _, err := NewVerifier(VerifierOptions{KeysURL: url, Origin: origin}); err == nil {
				t.Errorf("keys at %q: no error", url)
			}
		}
	}
	for name, o := range map[string]VerifierOptions{
		"a secret":              {Secrets: []string{long}},
		"keys":                  {KeysURL: keys},
		"an origin":             {KeysURL: keys, Origin: "https://hooks.example.com"},
		"an origin with a port": {KeysURL: keys, Origin: "HTTP://127.0.0.1:3000"},
		"an origin of IPv6":     {KeysURL: keys, Origin: "http://[::1]:3000"},
		"an origin with a path": {KeysURL: keys, Origin: "https://hooks.example.com/from/proxy"},
	} {
		if _, err := NewVerifier(o); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Keys of v1a signatures are kept, read again when none matches, and told from a forged message while they cannot be
// read.
func TestPublishedKeys(t *testing.T) {
	t.Parallel()
	now := time.Unix(1795167000, 0)
	first, second := ed25519.NewKeyFromSeed([]byte(strings.Repeat("1", 32))), ed25519.NewKeyFromSeed([]byte(strings.Repeat("2", 32)))
	var published atomic.Value
	published.Store("")
	var reads atomic.Int32
	url := publish(t, func() string {
		reads.Add(1)
		return published.Load().(string)
	})
	v, err := NewVerifier(VerifierOptions{KeysURL: url, Now: func() time.Time { return now }})
	if err != nil {
		t.Fatal(err)
	}
	verify := func(private ed25519.PrivateKey) error {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/hooks", http.NoBody)
		signed := ed25519.Sign(private, []byte("evt_1.1795167000.{}"))
		r.Header = http.Header{
			headerID: {"evt_1"}, headerTimestamp: {"1795167000"}, headerSignature: {"v1a," + base64.StdEncoding.EncodeToString(signed)},
		}
		return v.Verify(r, []byte("{}"))
	}
	want := func(private ed25519.PrivateKey, want error, read int32) {
		t.Helper()
		if err := verify(private); !errors.Is(err, want) {
			t.Errorf("%v, not %v", err, want)
		}
		if n := reads.Load(); n != read {
			t.Errorf("the keys were read %d times, not %d", n, read)
		}
	}
	want(first, ErrKeysUnavailable, 1)
	want(first, ErrKeysUnavailable, 1)
	now = now.Add(6 * time.Second)
	published.Store(jwkSet(t, first))
	want(first, nil, 2)
	published.Store(jwkSet(t, second))
	want(second, ErrInvalidMessage, 2) // read just now
	now = now.Add(6 * time.Second)
	want(second, nil, 3)
	want(first, ErrInvalidMessage, 3)
	published.Store("")
	now = now.Add(6 * time.Second)
	want(second, nil, 3)
	want(first, ErrKeysUnavailable, 4)
}

func jwkSet(t *testing.T, private ed25519.PrivateKey) string {
	t.Helper()
	key, err := httpsig.PublicJWK(private.Public())
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(map[string]any{"keys": []any{key}})
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// Each signature costs time, and anybody can send them: of v1a, the first sixteen are tried.
func TestFewSignaturesAreTried(t *testing.T) {
	t.Parallel()
	private := ed25519.NewKeyFromSeed([]byte(strings.Repeat("1", 32)))
	v, err := NewVerifier(VerifierOptions{
		KeysURL: publish(t, func() string { return jwkSet(t, private) }), Now: func() time.Time { return time.Unix(1795167000, 0) },
	})
	if err != nil {
		t.Fatal(err)
	}
	encode := func(signature []byte) string { return "v1a," + base64.StdEncoding.EncodeToString(signature) }
	for before, want := range map[int]error{15: nil, 16: ErrInvalidMessage} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/hooks", http.NoBody)
		forged := strings.Repeat(encode(make([]byte, ed25519.SignatureSize))+" ", before)
		r.Header = http.Header{
			headerID: {"evt_1"}, headerTimestamp: {"1795167000"},
			headerSignature: {forged + encode(ed25519.Sign(private, []byte("evt_1.1795167000.{}")))},
		}
		if err := v.Verify(r, []byte("{}")); !errors.Is(err, want) {
			t.Errorf("after %d others: %v, not %v", before, err, want)
		}
	}
}
