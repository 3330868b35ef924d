package relay

import (
	"net/http"
	"os"
	"strings"
	"sync/atomic"

	"spendhook/internal/secret"
)

// TokenFile sends requests with the token of a file, which it reads again when the daemon refuses the token: a new one works
// without a restart. The refused request is not repeated. It is safe for concurrent use.
type TokenFile struct {
	file  string
	token atomic.Pointer[secret.Text]
	next  http.RoundTripper
}

// NewTokenFile returns a TokenFile with the token that was read last.
func NewTokenFile(file string, token secret.Text, next http.RoundTripper) *TokenFile {
	t := &TokenFile{file: file, next: next}
	t.token.Store(&token)
	return t
}

// RoundTrip implements http.RoundTripper.
func (t *TokenFile) RoundTrip(req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context())
	req.Header.Set("Authorization", "Bearer "+t.token.Load().Reveal())
	resp, err := t.next.RoundTrip(req)
	if err == nil && resp.StatusCode == http.StatusUnauthorized {
		t.read()
	}
	return resp, err
}

// read keeps the last token while the file is not readable, or is being written.
func (t *TokenFile) read() {
	text, err := os.ReadFile(t.file)
	if words := strings.Fields(string(text)); err == nil && len(words) == 1 {
		t.token.Store(new(secret.Text(words[0])))
	}
}
