// Package authtest has helpers for the tests of auth and its packages.
package authtest

import (
	"net/netip"
	"sync"
	"time"
)

// Issuer is the "iss" of the tokens of the tests.
const Issuer = "https://spendhook.test"

// Home is the address that requests come from.
var Home = netip.MustParseAddr("192.0.2.1")

// Clock is a clock that only the test moves.
type Clock struct {
	mu  sync.Mutex
	now time.Time
}

// NewClock returns a clock at 10:00 UTC on 1 July 2026.
func NewClock() *Clock { return &Clock{now: time.Date(2026, time.July, 1, 10, 0, 0, 0, time.UTC)} }

// Now returns the time of the clock.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// Add moves the clock.
func (c *Clock) Add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}
