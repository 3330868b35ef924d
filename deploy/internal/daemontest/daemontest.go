// Package daemontest builds the daemon and runs it as a process, for tests of the image, the
// packages, the chart and the compose file.
package daemontest

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Patience is the time-out of tests on a busy machine.
const Patience = 5 * time.Minute

// Build builds the daemon for this machine.
func Build(tb testing.TB, binary string) {
	tb.Helper()
	root, err := exec.CommandContext(tb.Context(), "git", "rev-parse", "--show-toplevel").Output()
	if err != nil {
		tb.Fatal(err)
	}
	cmd := exec.CommandContext(tb.Context(), "go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w -X main.version=v1.2.3", "-o", binary, "./cmd/spendhook") //nolint:gosec // our own arguments
	cmd.Dir = strings.TrimSpace(string(root))
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		tb.Fatalf("build the daemon: %v\n%s", err, out)
	}
}

// Daemon is a running daemon. Use it from one goroutine.
type Daemon struct {
	Address, Admin string // of the API and of the admin listener

	tb  testing.TB
	cmd *exec.Cmd
}

// Start runs the command of a daemon that logs JSON to standard error. It returns when the daemon
// listens. The daemon ends with the test.
func Start(tb testing.TB, cmd *exec.Cmd) *Daemon {
	tb.Helper()
	log, err := cmd.StderrPipe()
	if err != nil {
		tb.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	d := &Daemon{tb: tb, cmd: cmd}
	tb.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()
	})
	timeout := time.AfterFunc(Patience, func() { _ = cmd.Process.Kill() })
	defer timeout.Stop()
	var seen strings.Builder
	lines := bufio.NewScanner(log)
	for lines.Scan() {
		var line struct {
			Msg, Address string
			Admin        string `json:"admin_address"`
		}
		if json.Unmarshal(lines.Bytes(), &line) == nil && line.Msg == "listening" {
			d.Address, d.Admin = line.Address, line.Admin
			go func() { _, _ = io.Copy(io.Discard, log) }() // until it ends
			return d
		}
		seen.Write(append(lines.Bytes(), '\n'))
	}
	tb.Fatalf("the daemon ended:\n%s", seen.String())
	return nil
}

// RunsAs reports whether all user ids of the process (real, effective, saved) are this user.
func (d *Daemon) RunsAs(user uint32) bool {
	d.tb.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", d.cmd.Process.Pid))
	if err != nil {
		d.tb.Fatal(err)
	}
	return regexp.MustCompile(fmt.Sprintf(`(?m)^Uid:(\t%d){4}$`, user)).Match(status)
}

// RequiresToken sends a request without a token, over mutual TLS with the files of 'certs dev' in
// dir. It fails the test unless the answer is 401.
func (d *Daemon) RequiresToken(dir, path string) {
	d.tb.Helper()
	status, body := NewClient(d.tb, dir).do(d.tb, http.MethodGet, "https://"+d.Address+path, "", "")
	if status != http.StatusUnauthorized {
		d.tb.Errorf("GET %s: %d %s", path, status, body)
	}
}

// Client sends requests over mutual TLS.
type Client struct {
	Token string // "" for none

	http *http.Client
}

// NewClient returns a client with the files of 'certs dev' in dir, for a server named localhost.
func NewClient(tb testing.TB, dir string) *Client {
	tb.Helper()
	pair, err := tls.LoadX509KeyPair(filepath.Join(dir, "client.pem"), filepath.Join(dir, "client-key.pem"))
	if err != nil {
		tb.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "ca.pem"))
	pool := x509.NewCertPool()
	if err != nil || !pool.AppendCertsFromPEM(text) {
		tb.Fatalf("read the CA certificate: %v", err)
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{
		RootCAs: pool, Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12, ServerName: "localhost",
	}}
	tb.Cleanup(transport.CloseIdleConnections)
	return &Client{http: &http.Client{Transport: transport, Timeout: Patience}}
}

// Post returns the body of the answer. It fails the test unless the answer is 2xx.
func (c *Client) Post(tb testing.TB, url, contentType, body string) string {
	tb.Helper()
	status, answer := c.do(tb, http.MethodPost, url, contentType, body)
	if status/100 != 2 {
		tb.Fatalf("POST %s: %d %s", url, status, answer)
	}
	return answer
}

func (c *Client) do(tb testing.TB, method, url, contentType, body string) (status int, answer string) {
	tb.Helper()
	req, err := http.NewRequestWithContext(tb.Context(), method, url, strings.NewReader(body))
	if err != nil {
		tb.Fatal(err)
	}
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	if c.Token != "" {
		req.Header.Set("Authorization", "Bearer "+c.Token)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		tb.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		tb.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

// Lines reads r to its end and sends its lines. It drops lines while 16 of them are not received.
func Lines(r io.Reader) <-chan string {
	lines := make(chan string, 16)
	go func() {
		scanner := bufio.NewScanner(r)
		for scanner.Scan() {
			select {
			case lines <- scanner.Text():
			default:
			}
		}
	}()
	return lines
}

// Stop stops the daemon. It fails the test unless the daemon ends in time, with the exit code 0.
func (d *Daemon) Stop(within time.Duration) {
	d.tb.Helper()
	if err := d.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		d.tb.Fatal(err)
	}
	timeout := time.AfterFunc(within, func() { _ = d.cmd.Process.Kill() })
	defer timeout.Stop()
	if err := d.cmd.Wait(); err != nil {
		d.tb.Errorf("the daemon ended: %v", err)
	}
}
