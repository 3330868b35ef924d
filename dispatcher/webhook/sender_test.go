package webhook

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"spendhook/dispatcher/delivery/attempt"
	"spendhook/dispatcher/webhook/signature"
	"spendhook/internal/egress"
	"spendhook/internal/httpsig"
	"spendhook/subscribers"
)

// quiet discards what net/http servers log of clients that holdOpen keeps waiting.
var quiet = log.New(io.Discard, "", 0)

// newTestSender may reach loopback and has short timeouts.
func newTestSender(tb testing.TB, change func(*SenderOptions)) *Sender {
	tb.Helper()
	o := SenderOptions{
		Guard:   egress.New(egress.Options{AllowLoopback: true}),
		Version: "test", Timeout: 10 * time.Second, ConnectTimeout: 5 * time.Second,
	}
	if change != nil {
		change(&o)
	}
	s := NewSender(o)
	s.transport.maxAge = math.MaxInt64 / 256 // or a test might begin before a change of pools, and end after it
	tb.Cleanup(s.Close)
	return s
}

// testSecret signs what requestTo sends.
const testSecret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"

func requestTo(tb testing.TB, address string) Request {
	tb.Helper()
	u, err := url.Parse(address)
	if err != nil {
		tb.Fatal(err)
	}
	signer, err := signature.New([]subscribers.SigningSecret{{Key: testSecret}}, nil)
	if err != nil {
		tb.Fatal(err)
	}
	return Request{URL: u, EventID: "evt_1", Body: []byte(`{"id":"evt_1"}`), ContentType: "application/json", Signer: signer}
}

func listening(tb testing.TB, h http.HandlerFunc) string {
	tb.Helper()
	srv := httptest.NewServer(h)
	tb.Cleanup(srv.Close)
	return srv.URL
}

// secureReceiver speaks TLS, and HTTP/2 when asked to; the returned change
// makes a sender trust it.
func secureReceiver(t *testing.T, h http.HandlerFunc, change func(*httptest.Server)) (string, func(*SenderOptions)) {
	t.Helper()
	srv := httptest.NewUnstartedServer(h)
	srv.Config.ErrorLog = quiet
	if change != nil {
		change(srv)
	}
	srv.StartTLS()
	t.Cleanup(srv.Close)
	roots := x509.NewCertPool()
	roots.AddCert(srv.Certificate())
	return srv.URL, func(o *SenderOptions) { o.TLS = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12} }
}

// rawReceiver calls talk for each connection.
func rawReceiver(t *testing.T, talk func(net.Conn)) string {
	t.Helper()
	ln, err := new(net.ListenConfig).Listen(t.Context(), "tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			all.Go(func() { defer conn.Close(); talk(conn) })
		}
	})
	t.Cleanup(func() { ln.Close(); all.Wait() })
	return "http://" + ln.Addr().String()
}

// readRequest takes one whole request off the connection.
func readRequest(conn net.Conn) error {
	req, err := http.ReadRequest(bufio.NewReader(conn))
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, req.Body)
	return err
}

// untilGone holds the connection until the sender closes it.
func untilGone(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) }

func holdOpen(_ http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	<-r.Context().Done()
}

func accepting(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }

func TestSendPostsASignedMessage(t *testing.T) {
	t.Parallel()
	var got *http.Request
	var body []byte
	address := listening(t, func(w http.ResponseWriter, r *http.Request) {
		got = r
		body, _ = io.ReadAll(r.Body)
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, "thanks")
	})
	req := requestTo(t, address+"/hook?a=1")
	res := newTestSender(t, nil).Send(t.Context(), req)

	if !res.Success() || res.StatusCode != http.StatusCreated || res.ResponseBody != nil || res.Duration <= 0 {
		t.Errorf("result %+v", res)
	}
	if got.Method != http.MethodPost || got.RequestURI != "/hook?a=1" || !bytes.Equal(body, req.Body) {
		t.Errorf("received %s %s %q", got.Method, got.RequestURI, body)
	}
	for name, want := range map[string]string{
		"Content-Type": "application/json", "User-Agent": "spendhook/test", "Webhook-Id": "evt_1",
		"Webhook-Timestamp": strconv.FormatInt(res.StartedAt.Unix(), 10),
		"Content-Length":    strconv.Itoa(len(req.Body)),
	} {
		if got.Header.Get(name) != want {
			t.Errorf("%s = %q, want %q", name, got.Header.Get(name), want)
		}
	}
	official, _ := standardwebhooks.NewWebhook(testSecret)
	if err := official.Verify(body, got.Header); err != nil {
		t.Errorf("signature: %v", err)
	}
	if len(got.Header) != 6 {
		t.Errorf("other headers were sent too: %v", got.Header)
	}
}

func TestSendSpellsHeadersAsStandardWebhooksDoes(t *testing.T) {
	t.Parallel()
	raw := make(chan string, 1)
	address := rawReceiver(t, func(conn net.Conn) {
		buf := make([]byte, 4096)
		n, _ := conn.Read(buf)
		raw <- string(buf[:n])
		_, _ = io.WriteString(conn, "HTTP/1.1 204 No Content\r\n\r\n")
		untilGone(conn)
	})
	s := newTestSender(t, nil)
	if res := s.Send(t.Context(), requestTo(t, address)); !res.Success() {
		t.Fatalf("result %+v", res)
	}
	s.Close()
	text := <-raw
	for _, name := range []string{signature.HeaderID, signature.HeaderTimestamp, signature.HeaderSignature} {
		if !strings.Contains(text, "\r\n"+name+": ") {
			t.Errorf("no %s in %q", name, text)
		}
	}
}

func TestStatusesHaveTheirClass(t *testing.T) {
	t.Parallel()
	var code atomic.Int64
	address := listening(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(int(code.Load())) })
	s := newTestSender(t, nil)
	for want, codes := range map[attempt.ErrorClass][]int{
		attempt.ClassNone:     {200, 201, 202, 204, 299},
		attempt.ClassRedirect: {300, 301, 302, 303, 304, 307, 308},
		attempt.ClassHTTP4xx:  {400, 401, 404, 408, 418, 499},
		attempt.ClassGone:     {410},
		attempt.ClassTooMany:  {429},
		attempt.ClassHTTP5xx:  {500, 502, 503, 504, 599},
		attempt.ClassProtocol: {600, 999},
	} {
		for _, c := range codes {
			code.Store(int64(c))
			res := s.Send(t.Context(), requestTo(t, address))
			if res.Class != want || res.StatusCode != c || res.Success() != (want == attempt.ClassNone) {
				t.Errorf("status %d: %+v, want class %q", c, res, want)
			}
		}
	}
}

func TestAnAnswerEndsTheAttempts(t *testing.T) {
	t.Parallel()
	for want, answers := range map[attempt.ErrorClass][]string{
		attempt.ClassStopped:  {"422", "404", "400 stop", "422 stop", "302 stop", "429 Stop", "503 stop"},
		attempt.ClassHTTP4xx:  {"400", "423", "400 go on", "400 stopped"},
		attempt.ClassHTTP5xx:  {"500"},
		attempt.ClassGone:     {"410", "410 stop"},
		attempt.ClassNone:     {"200 stop", "204 stop"},
		attempt.ClassProtocol: {"600 stop"},
	} {
		for _, answer := range answers {
			text, header, _ := strings.Cut(answer, " ")
			code, err := strconv.Atoi(text)
			if err != nil {
				t.Fatal(err)
			}
			r := requestTo(t, listening(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Webhook-Delivery", header)
				w.WriteHeader(code)
			}))
			r.StopOn = []int{404, 422}
			if res := newTestSender(t, nil).Send(t.Context(), r); res.Class != want || res.StatusCode != code {
				t.Errorf("%s: %+v, want class %q", answer, res, want)
			}
		}
	}
}

func TestRedirectsAreNotFollowed(t *testing.T) {
	t.Parallel()
	var followed atomic.Int64
	other := listening(t, func(http.ResponseWriter, *http.Request) { followed.Add(1) })
	for _, target := range []string{other, "http://169.254.169.254/latest/meta-data/"} {
		address := listening(t, func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, target, http.StatusTemporaryRedirect)
		})
		res := newTestSender(t, nil).Send(t.Context(), requestTo(t, address))
		if res.Class != attempt.ClassRedirect || res.StatusCode != http.StatusTemporaryRedirect {
			t.Errorf("redirect to %s: %+v", target, res)
		}
	}
	if followed.Load() != 0 {
		t.Error("a redirect was followed")
	}
}

func TestRetryAfterIsTakenFrom429And503Only(t *testing.T) {
	t.Parallel()
	for code, want := range map[int]time.Duration{429: 120 * time.Second, 503: 120 * time.Second, 500: 0, 200: 0, 302: 0} {
		address := listening(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "120")
			w.WriteHeader(code)
		})
		if res := newTestSender(t, nil).Send(t.Context(), requestTo(t, address)); res.RetryAfter != want {
			t.Errorf("%d: RetryAfter = %v, want %v", code, res.RetryAfter, want)
		}
	}
}

func TestReceiversThatNeverFinishTimeOut(t *testing.T) {
	t.Parallel()
	dripHeader := func(conn net.Conn) {
		_ = readRequest(conn)
		text := "HTTP/1.1 200 OK\r\nX-Drip: " + strings.Repeat("a", 10_000)
		for tick := time.NewTicker(5 * time.Millisecond); text != ""; <-tick.C {
			if _, err := io.WriteString(conn, text[:1]); err != nil {
				return
			}
			text = text[1:]
		}
	}
	for name, test := range map[string]struct {
		address string
		timeout time.Duration
	}{
		"never answers":           {listening(t, holdOpen), 150 * time.Millisecond},
		"drips its header":        {rawReceiver(t, dripHeader), 150 * time.Millisecond},
		"never reads the request": {rawReceiver(t, untilGone), 150 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			began := time.Now()
			res := newTestSender(t, func(o *SenderOptions) { o.Timeout = test.timeout }).Send(t.Context(), requestTo(t, test.address))
			if res.Class != attempt.ClassTimeout || res.Success() || res.StatusCode != 0 {
				t.Errorf("result %+v", res)
			}
			if took := time.Since(began); took < test.timeout || took > 30*time.Second {
				t.Errorf("took %v", took)
			}
		})
	}
}

// The status decides, although the body does not end within the attempt.
func TestTheStatusDecidesAlthoughTheBodyNeverEnds(t *testing.T) {
	t.Parallel()
	for status, want := range map[int]attempt.ErrorClass{
		200: attempt.ClassNone, 410: attempt.ClassGone, 429: attempt.ClassTooMany, 500: attempt.ClassHTTP5xx,
	} {
		address := listening(t, func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			w.Header().Set("Retry-After", "60")
			w.WriteHeader(status)
			_, _ = io.WriteString(w, "gone")
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		})
		t.Run(strconv.Itoa(status), func(t *testing.T) {
			t.Parallel()
			// Enough for the status, also on a busy machine.
			res := newTestSender(t, func(o *SenderOptions) { o.Timeout = 3 * time.Second }).Send(t.Context(), requestTo(t, address))
			if res.Class != want || res.StatusCode != status || (res.RetryAfter == time.Minute) != (status == 429) {
				t.Errorf("result %+v", res)
			}
		})
	}
}

func TestAnEndlessBodyIsCutAndItsConnectionWithIt(t *testing.T) {
	t.Parallel()
	for name, code := range map[string]int{"acknowledged": 200, "failed": 500} {
		stopped := make(chan struct{})
		address := listening(t, func(w http.ResponseWriter, _ *http.Request) {
			defer close(stopped)
			w.WriteHeader(code)
			for chunk := bytes.Repeat([]byte("endless "), 512); ; {
				if _, err := w.Write(chunk); err != nil {
					return
				}
			}
		})
		res := newTestSender(t, nil).Send(t.Context(), requestTo(t, address))
		<-stopped // the writes of the receiver fail: the sender reads no more
		want, kept := attempt.ClassOversized, 0
		if code == http.StatusInternalServerError {
			want, kept = attempt.ClassHTTP5xx, maxStoredBody
		}
		if res.Class != want || res.Success() != (code == 200) || len(res.ResponseBody) != kept {
			t.Errorf("%s: class %q, success %v, %d bytes kept", name, res.Class, res.Success(), len(res.ResponseBody))
		}
	}
}

func TestABodyOfExactlyTheLimitIsFine(t *testing.T) {
	t.Parallel()
	address := listening(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(make([]byte, maxResponseBody))
	})
	if res := newTestSender(t, nil).Send(t.Context(), requestTo(t, address)); res.Class != attempt.ClassNone {
		t.Errorf("class %q, want none", res.Class)
	}
}

func TestBodiesAreNotDecompressed(t *testing.T) {
	t.Parallel()
	address := listening(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		w.WriteHeader(http.StatusInternalServerError)
		_, _ = io.WriteString(w, "not gzip at all")
	})
	res := newTestSender(t, nil).Send(t.Context(), requestTo(t, address))
	if res.Class != attempt.ClassHTTP5xx || string(res.ResponseBody) != "not gzip at all" {
		t.Errorf("result %+v", res)
	}
}

func TestBrokenAnswers(t *testing.T) {
	t.Parallel()
	answer := func(text string) func(net.Conn) {
		return func(conn net.Conn) {
			_ = readRequest(conn)
			_, _ = io.WriteString(conn, text)
		}
	}
	for name, test := range map[string]struct {
		talk func(net.Conn)
		want attempt.ErrorClass
	}{
		"closes":               {answer(""), attempt.ClassReset},
		"closes in the header": {answer("HTTP/1.1 200 OK\r\nX-A: b"), attempt.ClassReset},
		"resets": {func(conn net.Conn) {
			_ = readRequest(conn)
			_ = conn.(*net.TCPConn).SetLinger(0)
		}, attempt.ClassReset},
		"talks SSH":   {answer("SSH-2.0-OpenSSH_9.9\r\n"), attempt.ClassProtocol},
		"garbage":     {answer("\x00\xff\x00\xff\x00\xff\r\n\r\n"), attempt.ClassProtocol},
		"bad header":  {answer("HTTP/1.1 200 OK\r\nno colon\r\n\r\n"), attempt.ClassProtocol},
		"bad length":  {answer("HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n"), attempt.ClassProtocol},
		"bad status":  {answer("HTTP/1.1 2x0 OK\r\n\r\n"), attempt.ClassProtocol},
		"huge header": {answer("HTTP/1.1 200 OK\r\nX-A: " + strings.Repeat("a", 2*maxResponseHeader) + "\r\n\r\n"), attempt.ClassProtocol},
		"switches protocols": {func(conn net.Conn) {
			answer("HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n")(conn)
			untilGone(conn)
		}, attempt.ClassProtocol},
		"breaks off its body after a 200": {answer("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort"), attempt.ClassNone},
		"breaks off its body after a 500": {answer("HTTP/1.1 500 No\r\nContent-Length: 100\r\n\r\nshort"), attempt.ClassHTTP5xx},
		"bad chunk after a 200":           {answer("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"), attempt.ClassNone},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			res := newTestSender(t, nil).Send(t.Context(), requestTo(t, rawReceiver(t, test.talk)))
			if res.Class != test.want {
				t.Errorf("class %q, want %q: %v", res.Class, test.want, res.Err)
			}
		})
	}
}

// closedConn is a connection that the receiver has closed.
type closedConn struct {
	net.Conn

	seen func() // is called when the sender has noticed it
}

func (c *closedConn) Read([]byte) (int, error) { return 0, io.EOF }

func (c *closedConn) Close() error {
	c.seen()
	return c.Conn.Close()
}

func TestAConnectionThatIsClosedBeforeTheRequestIsReset(t *testing.T) {
	t.Parallel()
	s := newTestSender(t, nil)
	seen := make(chan struct{})
	s.transport.DialContext = func(context.Context, string, string) (net.Conn, error) {
		conn, _ := net.Pipe()
		return &closedConn{conn, sync.OnceFunc(func() { close(seen) })}, nil
	}
	// The request begins after net/http has noticed it.
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { <-seen }})
	if res := s.Send(ctx, requestTo(t, "http://hooks.example.com/")); res.Class != attempt.ClassReset {
		t.Errorf("class %q: %v", res.Class, res.Err)
	}
}

func TestUnreachableReceivers(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		address string
		change  func(*SenderOptions)
		want    attempt.ErrorClass
	}{
		"closed port":     {"http://127.0.0.1:1/", nil, attempt.ClassConnect},
		"no such name":    {"http://nobody.invalid/", func(o *SenderOptions) { o.ConnectTimeout = time.Second }, attempt.ClassDNS},
		"refused address": {listening(t, holdOpen), func(o *SenderOptions) { o.Guard = egress.New(egress.Options{}) }, attempt.ClassRefusedAddress},
		"metadata":        {"http://169.254.169.254/", nil, attempt.ClassRefusedAddress},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			res := newTestSender(t, test.change).Send(t.Context(), requestTo(t, test.address))
			if res.Class != test.want || res.StatusCode != 0 {
				t.Errorf("class %q, want %q: %v", res.Class, test.want, res.Err)
			}
		})
	}
}

func TestBadTLS(t *testing.T) {
	t.Parallel()
	untrusted, _ := secureReceiver(t, accepting, nil)
	plain := listening(t, accepting)
	named, trustNamed := secureReceiver(t, accepting, nil)
	_, port, _ := net.SplitHostPort(strings.TrimPrefix(named, "https://"))
	picky, trustPicky := secureReceiver(t, accepting, func(s *httptest.Server) {
		s.TLS = &tls.Config{ClientAuth: tls.RequireAnyClientCert, MinVersion: tls.VersionTLS13}
	})
	old, trustOld := secureReceiver(t, accepting, func(s *httptest.Server) {
		s.TLS = &tls.Config{MaxVersion: tls.VersionTLS11, MinVersion: tls.VersionTLS10}
	})
	for name, test := range map[string]struct {
		address string
		change  func(*SenderOptions)
	}{
		"unknown authority":          {untrusted, nil},
		"another name":               {"https://localhost:" + port, trustNamed},
		"plain HTTP":                 {strings.Replace(plain, "http:", "https:", 1), nil},
		"garbage":                    {strings.Replace(rawReceiver(t, func(c net.Conn) { _, _ = io.WriteString(c, "garbage\n") }), "http:", "https:", 1), nil},
		"closes in the handshake":    {strings.Replace(rawReceiver(t, func(net.Conn) {}), "http:", "https:", 1), nil},
		"wants our certificate":      {picky, trustPicky},
		"speaks TLS 1.1 at the most": {old, trustOld},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			res := newTestSender(t, test.change).Send(t.Context(), requestTo(t, test.address))
			if res.Class != attempt.ClassTLS || res.StatusCode != 0 {
				t.Errorf("class %q, want %q: %v", res.Class, attempt.ClassTLS, res.Err)
			}
		})
	}
}

func TestAHandshakeThatIsNeverAnsweredTimesOut(t *testing.T) {
	t.Parallel()
	address := strings.Replace(rawReceiver(t, untilGone), "http:", "https:", 1)
	res := newTestSender(t, func(o *SenderOptions) { o.ConnectTimeout = 100 * time.Millisecond }).Send(t.Context(), requestTo(t, address))
	if res.Class != attempt.ClassTimeout || res.StatusCode != 0 {
		t.Errorf("class %q: %v", res.Class, res.Err)
	}
}

func TestHTTP2IsSpokenWhereItIsOffered(t *testing.T) {
	t.Parallel()
	var proto atomic.Value
	address, trust := secureReceiver(t, func(w http.ResponseWriter, r *http.Request) {
		proto.Store(r.Proto)
		if r.URL.Path == "/abort" {
			panic(http.ErrAbortHandler)
		}
	}, func(s *httptest.Server) { s.EnableHTTP2 = true })
	s := newTestSender(t, trust)
	if res := s.Send(t.Context(), requestTo(t, address)); !res.Success() || proto.Load() != "HTTP/2.0" {
		t.Errorf("over %v: %+v", proto.Load(), res)
	}
	if res := s.Send(t.Context(), requestTo(t, address+"/abort")); res.Class != attempt.ClassReset {
		t.Errorf("a reset stream: class %q, %v", res.Class, res.Err)
	}
}

func TestACancelledAttemptIsAborted(t *testing.T) {
	t.Parallel()
	for name, stop := range map[string]func(context.Context) (context.Context, context.CancelFunc){
		"cancelled": context.WithCancel,
		"the caller's time": func(c context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeout(c, 50*time.Millisecond)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := stop(t.Context())
			defer cancel()
			arrived := make(chan struct{}, 1)
			address := listening(t, func(w http.ResponseWriter, r *http.Request) {
				arrived <- struct{}{}
				holdOpen(w, r)
			})
			if name == "cancelled" {
				go func() {
					<-arrived
					cancel()
				}()
			}
			res := newTestSender(t, nil).Send(ctx, requestTo(t, address))
			if !res.Aborted() || res.Success() || res.Class.Unreachable() {
				t.Errorf("result %+v", res)
			}
		})
	}
}

// An attempt succeeds if the status came before the attempt was cancelled.
func TestStatusBeforeTheAbortCounts(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	address := listening(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("X-Answered", "1")
		w.WriteHeader(http.StatusOK)
		_, _ = io.WriteString(w, "partial")
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	})
	s := newTestSender(t, nil)
	r := requestTo(t, address)
	req, err := s.request(r, time.Unix(1, 0))
	if err != nil {
		t.Fatal(err)
	}
	resp, _, err := s.roundTrip(ctx, req, s.transport.destination(&r))
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	var res attempt.Result
	s.readAnswer(resp, &r, &res)
	if !res.Success() {
		t.Errorf("result %+v", res)
	}
}

func TestConnectionsAreReused(t *testing.T) {
	t.Parallel()
	var opened atomic.Int64
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, strings.Repeat("x", 10_000))
	}))
	srv.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			opened.Add(1)
		}
	}
	srv.Start()
	t.Cleanup(srv.Close)
	s := newTestSender(t, nil)
	for range 10 {
		if res := s.Send(t.Context(), requestTo(t, srv.URL)); !res.Success() {
			t.Fatalf("result %+v", res)
		}
	}
	if opened.Load() != 1 {
		t.Errorf("%d connections for 10 attempts in a row", opened.Load())
	}
}

// A request on a kept-alive connection that the receiver closes at that moment is repeated,
// and does not count as a failure.
func TestAStaleConnectionIsReplacedAtOnce(t *testing.T) {
	t.Parallel()
	var requests atomic.Int64
	address := rawReceiver(t, func(conn net.Conn) {
		r := bufio.NewReader(conn)
		for i := range 2 {
			req, err := http.ReadRequest(r)
			if err != nil {
				return
			}
			body, _ := io.ReadAll(req.Body)
			requests.Add(1)
			if i == 1 || string(body) != `{"id":"evt_1"}` {
				return // closes without an answer
			}
			_, _ = io.WriteString(conn, "HTTP/1.1 204 No Content\r\n\r\n")
		}
	})
	s := newTestSender(t, nil)
	for range 2 {
		if res := s.Send(t.Context(), requestTo(t, address)); !res.Success() {
			t.Errorf("class %q: %v", res.Class, res.Err)
		}
	}
	if requests.Load() != 3 {
		t.Errorf("%d requests, want 3: one repeated on a new connection", requests.Load())
	}
	s.Close()
}

func TestOneSenderServesManyAtOnce(t *testing.T) {
	t.Parallel()
	address := listening(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.WriteHeader(http.StatusInternalServerError) // else the answer is not kept
		_, _ = w.Write(body)
	})
	s := newTestSender(t, nil)
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			req := requestTo(t, address)
			req.Body = bytes.Repeat([]byte{byte('a' + i)}, 60*i)
			for range 20 {
				res := s.Send(t.Context(), req)
				if res.Class != attempt.ClassHTTP5xx || !bytes.Equal(res.ResponseBody, req.Body) {
					t.Errorf("class %q, %d bytes of %d: %v", res.Class, len(res.ResponseBody), len(req.Body), res.Err)
					return
				}
			}
		})
	}
	wg.Wait()
}

func TestTheTransportHasNoProxyAndDecompressesNothing(t *testing.T) {
	t.Parallel()
	if s := newTestSender(t, nil); s.transport.Proxy != nil || !s.transport.DisableCompression {
		t.Error("the transport has a proxy or decompresses")
	}
}

func TestErrorsBelowHTTPHaveTheirClass(t *testing.T) {
	t.Parallel()
	timeout := &net.OpError{Op: "dial", Err: context.DeadlineExceeded}
	for want, errs := range map[attempt.ErrorClass][]error{
		attempt.ClassConnectTimeout: {timeout},
		attempt.ClassTimeout:        {&net.OpError{Op: "read", Err: context.DeadlineExceeded}, &handshakeError{timeout}},
		attempt.ClassTLS:            {&net.OpError{Op: "local error", Err: io.EOF}, &handshakeError{io.EOF}},
		attempt.ClassDNS:            {&net.OpError{Op: "dial", Err: &net.DNSError{IsTimeout: true}}},
		attempt.ClassRefusedAddress: {&net.OpError{Op: "dial", Err: egress.ErrRefused}},
		attempt.ClassReset:          {errors.New("http: server closed idle connection")},
		attempt.ClassProtocol:       {errors.New("anything else")},
	} {
		for _, err := range errs {
			if got := classifyError(context.Background(), err); got != want {
				t.Errorf("%v: class %q, want %q", err, got, want)
			}
		}
	}
}

func TestEveryClassIsListedOnceWithAnOutcome(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, c := range attempt.ErrorClasses() {
		if label := c.Outcome(); label == "" || seen[label] {
			t.Errorf("class %q has outcome %q", c, label)
		} else {
			seen[label] = true
		}
	}
	unreachable := []attempt.ErrorClass{attempt.ClassTimeout, attempt.ClassConnectTimeout, attempt.ClassConnect, attempt.ClassDNS, attempt.ClassTLS, attempt.ClassReset, attempt.ClassProxy, attempt.ClassProxyRefused, attempt.ClassToken, attempt.ClassTokenRefused}
	for _, c := range attempt.ErrorClasses() {
		if c.Unreachable() != slices.Contains(unreachable, c) {
			t.Errorf("class %q: unreachable = %v", c, c.Unreachable())
		}
	}
}

func TestParseRetryAfter(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for value, want := range map[string]time.Duration{
		"":                               0,
		"0":                              0,
		"120":                            2 * time.Minute,
		"Sun, 01 Mar 2026 12:00:30 GMT":  30 * time.Second,
		"Sunday, 01-Mar-26 12:01:00 GMT": time.Minute, // RFC 850
		"Sun Mar  1 12:00:05 2026":       5 * time.Second,
		"Sun, 01 Mar 2026 11:00:00 GMT":  0, // past
		"-5":                             0,
		"+5":                             0,
		"1.5":                            0,
		"1_000":                          0,
		"0x10":                           0,
		" 5":                             0,
		"soon":                           0,
		"99999999999999999999999":        (1<<31 - 1) * time.Second,
	} {
		if got := parseRetryAfter(value, now); got != want {
			t.Errorf("parseRetryAfter(%q) = %v, want %v", value, got, want)
		}
	}
}

func FuzzParseRetryAfter(f *testing.F) {
	for _, value := range []string{"", "5", "-1", "18446744073709551616", "Sun, 01 Mar 2026 12:00:30 GMT", "Fri, 31 Dec 9999 23:59:59 GMT"} {
		f.Add(value)
	}
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	f.Fuzz(func(t *testing.T, value string) {
		if got := parseRetryAfter(value, now); got < 0 {
			t.Errorf("parseRetryAfter(%q) = %v", value, got)
		}
	})
}

// measuredKey notes the length of what it signs.
type measuredKey struct {
	httpsig.Key

	base int
}

func (k *measuredKey) Sign(base []byte) ([]byte, error) {
	k.base = len(base)
	return k.Key.Sign(base)
}

// A key in another system may sign at most 4,096 bytes at once.
func TestTheLargestSignatureBaseFits(t *testing.T) {
	t.Parallel()
	inner, err := httpsig.NewKey(ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize)))
	if err != nil {
		t.Fatal(err)
	}
	key := &measuredKey{Key: inner}
	r := Request{
		EventID: strings.Repeat("e", 128), Sequence: math.MaxInt64, Previous: math.MaxInt64, ContentType: "application/cloudevents+json; charset=utf-8",
		URL: &url.URL{Scheme: "https", Host: "example.com", Path: "/" + strings.Repeat("p", 2048-len("https://example.com/"))}, MessageKey: key,
	}
	if err := r.signMessage(http.Header{}, r.signed(math.MaxInt32), time.Unix(math.MaxInt32, 0)); err != nil {
		t.Fatal(err)
	}
	if key.base < 2048 || key.base > 4096 {
		t.Errorf("the base has %d bytes", key.base)
	}
}

func BenchmarkSend(b *testing.B) {
	address := listening(b, accepting)
	body := bytes.Repeat([]byte("x"), 300)
	b.Run("sender", func(b *testing.B) {
		s := newTestSender(b, nil)
		req := requestTo(b, address)
		req.Body = body
		b.ReportAllocs()
		for b.Loop() {
			if res := s.Send(b.Context(), req); !res.Success() {
				b.Fatal(res.Err)
			}
		}
	})
	b.Run("bare client", func(b *testing.B) {
		client := &http.Client{Timeout: 15 * time.Second, Transport: &http.Transport{}}
		defer client.CloseIdleConnections()
		b.ReportAllocs()
		for b.Loop() {
			req, _ := http.NewRequestWithContext(b.Context(), http.MethodPost, address, bytes.NewReader(body))
			resp, err := client.Do(req)
			if err != nil {
				b.Fatal(err)
			}
			_, _ = io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
		}
	})
}
