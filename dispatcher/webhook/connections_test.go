package webhook

import (
	"crypto/tls"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// crowd is the sum of the in-flight limits of ten subscribers at one host. Tests with so many
// handshakes are not parallel: they would make other tests time out.
const crowd = 10 * 64

// countingReceiver speaks TLS and counts the connections opened to it.
func countingReceiver(t *testing.T, h http.HandlerFunc, change func(*httptest.Server)) (string, func(*SenderOptions), *atomic.Int64) {
	t.Helper()
	var opened atomic.Int64
	address, trust := secureReceiver(t, h, func(s *httptest.Server) {
		if change != nil {
			change(s)
		}
		s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
			if state == http.StateNew {
				opened.Add(1)
			}
		}
	})
	return address, trust, &opened
}

// unhurried gives a slow machine time.
func unhurried(o *SenderOptions) { o.Timeout, o.ConnectTimeout = 10*time.Minute, 10*time.Minute }

// patientSender waits for the dials of others, however long they take.
func patientSender(t *testing.T, trust func(*SenderOptions)) *Sender {
	t.Helper()
	s := newTestSender(t, func(o *SenderOptions) { trust(o); unhurried(o) })
	s.transport.dials.wait = time.Hour
	return s
}

// sendFrom makes n attempts by as many senders at once.
func sendFrom(t *testing.T, s *Sender, address string, senders, n int) {
	t.Helper()
	req := requestTo(t, address)
	var made atomic.Int64
	var all sync.WaitGroup
	for range senders {
		all.Go(func() {
			for made.Add(1) <= int64(n) {
				if res := s.Send(t.Context(), req); !res.Success() {
					t.Errorf("class %q: %v", res.Class, res.Err)
					return
				}
			}
		})
	}
	all.Wait()
}

// Each wave is as many requests as may be in flight, and ends before the next
// begins: all connections are in use, then all are idle.
func TestConnectionsOfManySubscribersAreKept(t *testing.T) {
	const waves = 5
	var arrived atomic.Int64
	var full [waves]chan struct{}
	for i := range full {
		full[i] = make(chan struct{})
	}
	address, trust, opened := countingReceiver(t, func(http.ResponseWriter, *http.Request) {
		n := arrived.Add(1)
		wave := full[(n-1)/crowd]
		if n%crowd == 0 {
			close(wave)
		}
		<-wave
	}, nil)
	s := newTestSender(t, func(o *SenderOptions) { trust(o); unhurried(o) })
	for range waves {
		sendFrom(t, s, address, crowd, crowd)
	}
	if n := opened.Load(); n > 2*crowd {
		t.Errorf("%d connections for %d waves of %d requests", n, waves, crowd)
	}
}

func TestManySubscribersOpenNoMoreConnectionsThanTheirLimits(t *testing.T) {
	address, trust, opened := countingReceiver(t, accepting, nil)
	sendFrom(t, patientSender(t, trust), address, crowd, 5_000)
	if n := opened.Load(); n > 2*crowd {
		t.Errorf("%d connections for %d attempts in flight", n, crowd)
	}
}

func TestManySubscribersShareAnHTTP2Connection(t *testing.T) {
	address, trust, opened := countingReceiver(t, accepting, func(s *httptest.Server) {
		s.EnableHTTP2 = true
		s.Config.HTTP2 = &http.HTTP2Config{MaxConcurrentStreams: 1 << 16}
	})
	s := newTestSender(t, func(o *SenderOptions) { trust(o); unhurried(o) })
	sendFrom(t, s, address, 1, 1) // the receiver's limit is known after the first answer
	sendFrom(t, s, address, crowd, 5_000)
	if n := opened.Load(); n != 1 {
		t.Errorf("%d connections, want 1", n)
	}
}

// While handshakes take their time, requests over the one connection that is
// ready begin a bounded number of others.
func TestSlowHandshakesDoNotMultiply(t *testing.T) {
	t.Parallel()
	const senders, requests = 4, 4 * dialsPerHost
	var served, opened, replaced atomic.Int64
	released := make(chan struct{})
	release := sync.OnceFunc(func() { close(released) })
	answer := func(http.ResponseWriter, *http.Request) {
		if served.Add(1) == requests {
			release()
		}
	}
	quick := make(chan struct{}, requests) // one for each handshake that takes no time
	quick <- struct{}{}
	var used sync.Map
	address, trust := secureReceiver(t, answer, func(s *httptest.Server) {
		s.TLS = &tls.Config{MinVersion: tls.VersionTLS12, GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			select {
			case <-quick:
			case <-released:
			}
			return nil, nil
		}}
		s.Config.ConnState = func(c net.Conn, state http.ConnState) {
			switch state {
			case http.StateNew:
				opened.Add(1)
			case http.StateActive:
				used.Store(c, true)
			case http.StateClosed:
				// On a busy machine net/http closes the one that is ready, if it knows 50 ms after the answer not yet that
				// the request is written.
				if _, ok := used.LoadAndDelete(c); ok {
					replaced.Add(1)
					quick <- struct{}{}
				}
			case http.StateIdle, http.StateHijacked:
			}
		}
	})
	t.Cleanup(release) // or the receiver would not end after a failure
	sendFrom(t, patientSender(t, trust), address, senders, requests+senders)
	if n := opened.Load(); n > dialsPerHost+senders+replaced.Load() {
		t.Errorf("%d connections for %d attempts in flight", n, senders)
	}
}

// dialing is one attempt that has asked for a dial.
type dialing struct {
	ended func()      // ends the attempt, or says that it has a connection
	begun chan func() // the end of the dial; closed when the dial is not needed
}

func dialFor(t *testing.T, d *dials) dialing {
	t.Helper()
	attempt := &progress{now: time.Now}
	ctx := attempt.follow(t.Context())
	httptrace.ContextClientTrace(ctx).GetConn("")
	w := dialing{attempt.noConnectionNeeded, make(chan func(), 1)}
	go func() {
		if end, err := d.begin(ctx, "example.com:443"); err == nil {
			w.begun <- end
		}
		close(w.begun)
	}()
	synctest.Wait()
	return w
}

// queued returns an attempt whose dial waits for the dials of other attempts.
func queued(t *testing.T, d *dials) (others []func(), w dialing) {
	t.Helper()
	for range dialsPerHost {
		others = append(others, <-dialFor(t, d).begun)
	}
	w = dialFor(t, d)
	if len(w.begun) != 0 {
		t.Fatal("too many dials have begun")
	}
	return others, w
}

func TestAQueuedDial(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		then   func(others []func(), w dialing)
		begins bool
	}{
		"begins when another ends":                 {func(others []func(), _ dialing) { others[0]() }, true},
		"begins when the others take long":         {func([]func(), dialing) { <-time.After(dialWait) }, true},
		"is dropped once its attempt is connected": {func(_ []func(), w dialing) { w.ended() }, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				d := newDials()
				others, w := queued(t, d)
				test.then(others, w)
				synctest.Wait()
				if end, begun := <-w.begun; begun != test.begins {
					t.Errorf("begun: %v, want %v", begun, test.begins)
				} else if begun {
					end()
				}
			})
		})
	}
}

func TestHostsWithoutDialsAreDropped(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDials()
		others, w := queued(t, d)
		w.ended()
		for _, end := range others {
			end()
		}
		synctest.Wait()
		(<-dialFor(t, d).begun)()
		if len(d.hosts) != 0 {
			t.Errorf("%d hosts are kept", len(d.hosts))
		}
	})
}
