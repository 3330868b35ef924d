package main

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// TestUnfinishedBodies: one HTTP/2 connection sends 24 MiB of unfinished bodies. The daemon
// buffers only the limit of a connection, and another client is answered meanwhile.
func TestUnfinishedBodies(t *testing.T) {
	t.Parallel()
	// One byte more would make each take 2 MiB, and the bound of the address refuse them.
	const streams, sent, most = 24, 1<<20 - 1, 16
	certs := newDevCerts(t)
	// On a slow machine the bodies take longer than the default of 30 s, which would end them.
	d := newInstallation(t, sharedRedis(t), "http: {request_timeout: 10m}\n").startSecure(t, certs.serveFlags()...)
	text, err := os.ReadFile(certs.path("ca.pem"))
	pool := x509.NewCertPool()
	if err != nil || !pool.AppendCertsFromPEM(text) {
		t.Fatal("no authority", err)
	}
	greedy, honest := httpClient(t, &tls.Config{RootCAs: pool}), httpClient(t, &tls.Config{RootCAs: pool})
	greedy.Timeout = 0
	post := func(client *http.Client, body io.Reader) (int, string) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, d.api+"/api/v1/events", body)
		if err != nil {
			t.Error(err)
			return 0, ""
		}
		req.Header.Set("Authorization", "Bearer "+d.token)
		req.Header.Set("Content-Type", "application/json")
		resp, err := client.Do(req)
		if err != nil {
			return 0, err.Error()
		}
		defer resp.Body.Close()
		answer, _ := io.ReadAll(resp.Body)
		if resp.ProtoMajor != 2 {
			t.Errorf("%s", resp.Proto)
		}
		return resp.StatusCode, string(answer)
	}
	if status, answer := post(greedy, strings.NewReader("[]")); status != http.StatusBadRequest {
		t.Fatalf("%d %s", status, answer) // there is a connection now
	}
	var refused atomic.Int64
	var group sync.WaitGroup
	var ends []*io.PipeWriter
	for range streams {
		body, end := io.Pipe()
		ends = append(ends, end)
		group.Go(func() { _, _ = end.Write(bytes.Repeat([]byte(" "), sent)) })
		group.Go(func() {
			status, answer := post(greedy, body)
			if status == http.StatusServiceUnavailable && strings.Contains(answer, "TOO_MANY_BODIES") {
				refused.Add(1)
			}
			_ = body.CloseWithError(io.ErrClosedPipe)
		})
	}
	eventually(t, 5*patience, "what is too much is refused", func() bool { return refused.Load() >= streams-most })
	event := `{"id":"honest","event":"A","timestamp":"` + testTime.Format(time.RFC3339) + `"}`
	if status, answer := post(honest, strings.NewReader(event)); status != http.StatusAccepted {
		t.Errorf("the client beside it: %d %s", status, answer)
	}
	for _, end := range ends {
		_ = end.Close()
	}
	group.Wait()
}
