package conformance_test

import (
	"bytes"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"flag"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"spendhook/api/client"
	"spendhook/dispatcher/webhook/signature"
	"spendhook/internal/httpsig"
)

var update = flag.Bool("update", false, "write vectors.json")

// vector is one message, and whether a receiver with these settings must accept it.
type vector struct {
	Name    string            `json:"name"`
	Secrets []string          `json:"secrets"`
	Keys    *keySet           `json:"keys"`   // null: the receiver has no address of keys
	Origin  string            `json:"origin"` // with keys, it says that RFC 9421 is demanded; without it, v1a
	Method  string            `json:"method"`
	URL     string            `json:"url"` // path and query
	Headers map[string]string `json:"headers"`
	Body    []byte            `json:"body"` // base64
	Valid   bool              `json:"valid"`
}

// keySet is a JWK Set.
type keySet struct {
	Keys []any `json:"keys"`
}

// The file has what the code makes, so that each library is tested with the same messages.
func TestVectors(t *testing.T) {
	t.Parallel()
	var made bytes.Buffer
	e := json.NewEncoder(&made)
	e.SetEscapeHTML(false)
	e.SetIndent("", " ")
	if err := e.Encode(map[string]any{"now": now, "cases": vectors(t)}); err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile("vectors.json", made.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	written, err := os.ReadFile("vectors.json")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(written, made.Bytes()) {
		t.Error("vectors.json is not what the code makes; run go generate ./clients/conformance")
	}
}

// Each message is accepted, or refused, by the verifiers of the daemon's module.
func TestVectorsAreRight(t *testing.T) {
	t.Parallel()
	names := map[string]bool{}
	for _, v := range vectors(t) {
		if names[v.Name] {
			t.Errorf("two cases are named %s", v.Name)
		}
		names[v.Name] = true
		if err := v.verify(t); (err == nil) != v.Valid {
			t.Errorf("%s: %v", v.Name, err)
		}
	}
}

var decimal = regexp.MustCompile(`^[0-9]+$`)

func (v *vector) verify(t *testing.T) error {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), v.Method, "/", bytes.NewReader(v.Body))
	r.RequestURI = v.URL
	for name, value := range v.Headers {
		r.Header.Set(name, value)
	}
	if v.Keys != nil && v.Origin != "" {
		if err := v.verifyMessage(t, r); err != nil {
			return err
		}
	} else if v.Keys != nil {
		var keys []string
		for _, k := range v.Keys.Keys {
			if jwk, ok := k.(httpsig.JWK); ok && jwk.Kty == "OKP" {
				public, err := jwk.Public()
				if err != nil {
					t.Fatal(err)
				}
				keys = append(keys, publicKey(public.(ed25519.PublicKey)))
			}
		}
		if err := verifyStandard(keys, r.Header, v.Body); err != nil {
			return err
		}
	}
	if len(v.Secrets) > 0 {
		return verifyStandard(v.Secrets, r.Header, v.Body)
	}
	return nil
}

func (v *vector) verifyMessage(t *testing.T, r *http.Request) error {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(v.Keys)
	}))
	defer server.Close()
	verifier := client.MessageVerifier{KeysURL: server.URL, Origin: v.Origin, Now: func() time.Time { return time.Unix(now, 0) }}
	err := verifier.Verify(r, v.Body)
	if err != nil && !errors.Is(err, client.ErrInvalidMessage) {
		t.Fatal(err)
	}
	return err
}

// verifyStandard returns nil if a signature by one of the keys is valid.
func verifyStandard(keys []string, header http.Header, body []byte) error {
	if !decimal.MatchString(header.Get(signature.HeaderTimestamp)) {
		return errors.New("the timestamp is not decimal")
	}
	err := errors.New("no key")
	for _, key := range keys {
		if err = signature.Verify(key, header, body, 5*time.Minute, time.Unix(now, 0)); err == nil {
			return nil
		}
	}
	return err
}

// A case that is to be refused for one reason must not be refused for another: the message that it was made
// of is valid.
func TestTheMessagesBehindRefusedCasesAreValid(t *testing.T) {
	t.Parallel()
	for _, v := range []vector{newMessage(t).vector(""), newStandard().vector(""), newBoth(t).vector("")} {
		v.Valid = true
		if err := v.verify(t); err != nil {
			t.Errorf("%v: %v", v.Headers, err)
		}
	}
	if !strings.Contains(newMessage(t).vector("").Headers["signature-input"], "webhook-sequence") {
		t.Error("webhook-sequence is not covered")
	}
}
