package relay

import (
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

type answering func(*http.Request) int

func (a answering) RoundTrip(req *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: a(req), Body: io.NopCloser(strings.NewReader("")), Request: req}, nil
}

// A new token in the file is sent after the old one was refused.
func TestATokenIsReadAgainWhenItIsRefused(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "token")
	valid := "first"
	tokens := NewTokenFile(file, "first", answering(func(req *http.Request) int {
		if req.Header.Get("Authorization") == "Bearer "+valid {
			return http.StatusOK
		}
		return http.StatusUnauthorized
	}))
	send := func(want int) {
		t.Helper()
		req, err := http.NewRequestWithContext(context.Background(), http.MethodPost, "http://127.0.0.1:9", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer first")
		resp, err := tokens.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		if resp.Body.Close(); resp.StatusCode != want || req.Header.Get("Authorization") != "Bearer first" {
			t.Errorf("%d, want %d; the request of the caller has %v", resp.StatusCode, want, req.Header)
		}
	}
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	send(http.StatusOK)
	valid = "second"
	send(http.StatusUnauthorized) // there is no file
	write("")
	send(http.StatusUnauthorized) // it is being written
	write("second\n")
	send(http.StatusUnauthorized)
	send(http.StatusOK)
}
