package api

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"testing"
)

// TestLengthIsTold: an answer has a Content-Length, set by the handler or by the server.
func TestLengthIsTold(t *testing.T) {
	t.Parallel()
	for _, length := range []int{0, 1, selfMeasured, selfMeasured + 1, 100_000} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			send(w, reply{status: http.StatusOK, body: bytes.Repeat([]byte{'1'}, length)})
		}))
		for _, method := range []string{http.MethodGet, http.MethodHead} {
			r, err := http.NewRequestWithContext(t.Context(), method, server.URL, nil)
			if err != nil {
				t.Fatal(err)
			}
			answer, err := server.Client().Do(r)
			if err != nil {
				t.Fatal(err)
			}
			answer.Body.Close()
			if answer.ContentLength != int64(length) && (method == http.MethodGet || length > 0) {
				t.Errorf("%s: %d bytes have the length %d", method, length, answer.ContentLength)
			}
		}
		server.Close()
	}
}
