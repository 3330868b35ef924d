// Package porttest finds ports for servers that tests start.
package porttest

import (
	"math/rand/v2"
	"net"
	"testing"
)

// The kernel gives ports from 32768 (Linux) or 49152 (macOS) to outgoing connections and to servers
// that ask for any port. It would give a free port from there to somebody else while the server
// starts, or while a test has stopped it.
const first, last = 10000, 32767

// Free returns a TCP port of 127.0.0.1 on which nothing listens. Until the end of the test, no
// other call returns it, in any process.
func Free(tb testing.TB) int {
	tb.Helper()
	const attempts = 1000
	for range attempts {
		port := first + rand.IntN(last-first+1) //nolint:gosec // not a secret
		if reserve(tb, port) && unused(port) {
			return port
		}
	}
	tb.Fatal("porttest: no free port")
	return 0
}

// reserve holds the UDP port of the same number, which no tested server uses, until the test ends.
func reserve(tb testing.TB, port int) bool {
	tb.Helper()
	c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port})
	if err != nil {
		return false
	}
	tb.Cleanup(func() { _ = c.Close() })
	return true
}

func unused(port int) bool {
	l, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port})
	if err != nil {
		return false
	}
	return l.Close() == nil
}
