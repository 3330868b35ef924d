package webhook

import (
	"container/list"
	"context"
	"errors"
	"net/http/httptrace"
	"sync"
	"time"
)

// dialPatience is how long an attempt waits for the dials of other attempts before it dials
// itself: another attempt's dial may hang.
const dialPatience = time.Second

// errNotNeeded ends a dial that was not begun. net/http drops the error, since
// the attempt that asked for the dial has a connection or has ended.
var errNotNeeded = errors.New("dial: the attempt needs no connection any more")

// dials bounds the running dials to each host by the number of attempts that wait for a
// connection to it (docs/decisions/0009-connections.md says why). Dials that their attempt no
// longer needs count for later ones. Safe for concurrent use.
type dials struct {
	patience time.Duration // dialPatience, but for tests

	mu    sync.Mutex // guards all below, and every dialWait
	hosts map[dialHost]*hostDials
}

// dialHost identifies a host as the connection pool of net/http does.
type dialHost struct {
	address string // host:port
	tls     bool
}

type hostDials struct {
	host    dialHost
	waiting int       // attempts that asked for a dial and have no connection yet
	running int       // dials under way
	queue   list.List // of *dialWait: those whose dial has not begun
}

// dialWait is one attempt that needs a connection.
type dialWait struct {
	connected bool
	host      *hostDials    // counts this attempt as waiting; nil: it is not counted
	queued    *list.Element // in host.queue; nil: not there
	turn      chan bool     // of the queued dial: true begins it, false drops it
}

type dialWaitKey struct{}

func newDials() *dials {
	return &dials{patience: dialPatience, hosts: map[dialHost]*hostDials{}}
}

// track returns the context for one attempt, and a function to call once RoundTrip has
// returned. It extends the hooks of the attempt's trace instead of adding a second trace:
// net/http joins traces by reflection, which costs 5 % of a delivery.
func (d *dials) track(ctx context.Context, hooks *httptrace.ClientTrace) (context.Context, func()) {
	w := &dialWait{}
	ctx = context.WithValue(ctx, dialWaitKey{}, w)
	hooks.GetConn = func(string) { d.setConnected(w, false) } // once more when a kept connection was stale
	got := hooks.GotConn
	hooks.GotConn = func(info httptrace.GotConnInfo) {
		d.setConnected(w, true)
		if got != nil {
			got(info)
		}
	}
	return httptrace.WithClientTrace(ctx, hooks), func() { d.setConnected(w, true) }
}

// setConnected notes whether an attempt has a connection. A dial that is still queued for it is
// dropped.
func (d *dials) setConnected(w *dialWait, connected bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	w.connected = connected
	h := w.host
	if h == nil {
		return
	}
	if w.queued != nil {
		h.decide(w, false)
	}
	h.leave(w)
	d.forget(h)
}

// begin waits until a dial may start. If it returns no error, the caller calls
// end with the result of the dial.
func (d *dials) begin(ctx context.Context, host dialHost) (end func(error), err error) {
	w, ok := ctx.Value(dialWaitKey{}).(*dialWait)
	if !ok {
		return func(error) {}, nil // not tracked, so not bounded
	}
	h, turn := d.enter(w, host)
	if h == nil || (turn != nil && !d.await(ctx, w, h, turn)) {
		return nil, errNotNeeded
	}
	return func(err error) { d.end(w, h, err) }, nil
}

// enter counts an attempt as waiting. A nil channel means that the dial begins at once; a nil host,
// that the attempt needs no dial any more.
func (d *dials) enter(w *dialWait, host dialHost) (*hostDials, chan bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if w.connected {
		return nil, nil
	}
	h := d.hosts[host]
	if h == nil {
		h = &hostDials{host: host}
		d.hosts[host] = h
	}
	if w.host == nil {
		w.host = h
		h.waiting++
	}
	if h.running < h.waiting || w.queued != nil {
		h.running++
		return h, nil
	}
	w.queued, w.turn = h.queue.PushBack(w), make(chan bool, 1)
	return h, w.turn
}

func (d *dials) await(ctx context.Context, w *dialWait, h *hostDials, turn chan bool) bool {
	patience := time.NewTimer(d.patience)
	defer patience.Stop()
	select {
	case begins := <-turn:
		return begins
	case <-patience.C:
	case <-ctx.Done(): // the dial itself says so
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(turn) == 0 { // not decided meanwhile
		h.running++
		h.decide(w, true)
	}
	return <-turn
}

// end notes that a dial has ended. Its attempt, or the one that has waited longest, gets the
// connection. After a failure a queued dial may begin.
func (d *dials) end(w *dialWait, h *hostDials, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	h.running--
	if err == nil && w.host == h && w.queued == nil {
		h.leave(w)
	}
	for h.queue.Len() > 0 && h.running < h.waiting {
		h.running++
		h.decide(h.queue.Front().Value.(*dialWait), true)
	}
	d.forget(h)
}

func (d *dials) forget(h *hostDials) {
	if h.waiting == 0 && h.running == 0 {
		delete(d.hosts, h.host)
	}
}

func (h *hostDials) decide(w *dialWait, begins bool) {
	h.queue.Remove(w.queued)
	w.queued = nil
	w.turn <- begins
}

func (h *hostDials) leave(w *dialWait) {
	h.waiting--
	w.host = nil
}
