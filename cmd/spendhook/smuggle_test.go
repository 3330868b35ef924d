package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// Request smuggling: a request with both Content-Length and Transfer-Encoding is the last one
// of its connection. The daemon does not read what follows it.
func TestTwoLengthsEndTheConnection(t *testing.T) {
	t.Parallel()
	d := newInstallation(t, sharedRedis(t), "").start(t)
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", strings.TrimPrefix(d.api, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(patience))
	if _, err := fmt.Fprintf(conn, "POST /api/v1/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\n"+
		"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n[]\r\n0\r\n\r\nGET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n", d.token); err != nil {
		t.Fatal(err)
	}
	in := bufio.NewReader(conn)
	resp, err := http.ReadResponse(in, nil)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	resp.Body.Close()
	if resp.StatusCode != http.StatusBadRequest || !resp.Close {
		t.Errorf("%s, the connection ends: %v", resp.Status, resp.Close)
	}
	if second, err := http.ReadResponse(in, nil); err == nil {
		second.Body.Close()
		t.Errorf("what follows was answered: %s", second.Status)
	}
}

// One address does not take all connections of the admin listener.
func TestAdminConnectionsOfAnAddress(t *testing.T) {
	t.Parallel()
	d := newInstallation(t, sharedRedis(t), "").start(t)
	address := strings.TrimPrefix(d.admin, "http://")
	for range adminConnections {
		conn, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 9)}}).DialContext(t.Context(), "tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
	}
	if status, body := get(t, d.admin+"/healthz"); status != http.StatusOK {
		t.Errorf("another address: %d %s", status, body)
	}
}
