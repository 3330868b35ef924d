package webhook

import (
	"context"
	"errors"
	"sync"
	"time"
)

const (
	// dialsPerHost bounds the running dials to a host.
	dialsPerHost = 128
	// dialWait is how long a dial waits for others to end. Then it starts: the others may hang.
	dialWait = time.Second
)

// errNotNeeded ends a dial that was not begun. net/http drops the error, since
// the attempt that asked for the dial has a connection or has ended.
var errNotNeeded = errors.New("dial: the attempt needs no connection any more")

// dials bounds the running dials to each host, and drops dials that wait until their attempt has
// another connection, see docs/decisions/0009-connections.md. Safe for concurrent use.
type dials struct {
	wait time.Duration // dialWait, but for tests

	mu    sync.Mutex
	hosts map[string]*hostDials // by host:port
}

type hostDials struct {
	dials   int           // running and waiting dials
	running chan struct{} // has an element for each running dial
}

func newDials() *dials { return &dials{wait: dialWait, hosts: map[string]*hostDials{}} }

// begin waits until a dial may start. If it returns no error, the caller calls end after the dial.
func (d *dials) begin(ctx context.Context, host string) (end func(), err error) {
	var connected <-chan struct{}
	if attempt, ok := ctx.Value(progressKey{}).(*progress); ok {
		needed := attempt.needed.Load()
		if needed == nil {
			return nil, errNotNeeded
		}
		connected = *needed
	}
	h := d.enter(host)
	timeout := time.NewTimer(d.wait)
	defer timeout.Stop()
	select {
	case h.running <- struct{}{}:
		return func() { <-h.running; d.leave(host, h) }, nil
	case <-connected:
		d.leave(host, h)
		return nil, errNotNeeded
	case <-timeout.C:
	case <-ctx.Done(): // the dial fails with the error of ctx
	}
	return func() { d.leave(host, h) }, nil
}

func (d *dials) enter(host string) *hostDials {
	d.mu.Lock()
	defer d.mu.Unlock()
	h := d.hosts[host]
	if h == nil {
		h = &hostDials{running: make(chan struct{}, dialsPerHost)}
		d.hosts[host] = h
	}
	h.dials++
	return h
}

func (d *dials) leave(host string, h *hostDials) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if h.dials--; h.dials == 0 {
		delete(d.hosts, host)
	}
}
