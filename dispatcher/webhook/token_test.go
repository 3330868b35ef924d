package webhook

import (
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"spendhook/dispatcher/delivery/attempt"
	"spendhook/dispatcher/webhook/signature"
	"spendhook/internal/dnstest"
	"spendhook/internal/egress"
	"spendhook/internal/httpsig"
	"spendhook/internal/waittest"
	"spendhook/subscribers/callback"
)

// issuer is a token endpoint: it answers the n-th request with answer(n), or with token n.
type issuer struct {
	URL    string
	asked  atomic.Int64
	answer func(n int64, w http.ResponseWriter, r *http.Request)
}

func newIssuer(t *testing.T, answer func(n int64, w http.ResponseWriter, r *http.Request)) *issuer {
	t.Helper()
	i := &issuer{answer: answer}
	i.URL = listening(t, func(w http.ResponseWriter, r *http.Request) {
		n := i.asked.Add(1)
		if i.answer != nil {
			i.answer(n, w, r)
			return
		}
		issue(w, n, 3600)
	})
	return i
}

func issue(w http.ResponseWriter, n int64, life int) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = fmt.Fprintf(w, `{"access_token":"token-%d","token_type":"bearer","expires_in":%d}`, n, life)
}

// movedClock is a clock that the test moves.
type movedClock struct{ at atomic.Int64 }

func newMovedClock() *movedClock {
	c := &movedClock{}
	c.at.Store(time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC).UnixNano())
	return c
}

func (c *movedClock) now() time.Time          { return time.Unix(0, c.at.Load()) }
func (c *movedClock) advance(d time.Duration) { c.at.Add(int64(d)) }

func withOAuth(t *testing.T, receiver, tokenURL string) Request {
	t.Helper()
	r := requestTo(t, receiver)
	r.Subscriber = uuid.New()
	r.OAuth = &callback.OAuth{TokenURL: tokenURL, ClientID: "us", ClientSecret: "p a:ss", Scope: "hooks write", Audience: "https://api.example"}
	return r
}

// bearer is a receiver that notes the tokens it gets, and repeats them in its answer.
type bearer struct {
	URL    string
	status atomic.Int64

	mu  sync.Mutex
	got []string
}

func newBearer(t *testing.T) *bearer {
	t.Helper()
	b := &bearer{}
	b.status.Store(http.StatusTeapot) // the answer to a success is not kept
	b.URL = listening(t, func(w http.ResponseWriter, r *http.Request) {
		b.mu.Lock()
		b.got = append(b.got, strings.Join(r.Header["Authorization"], ","))
		b.mu.Unlock()
		w.WriteHeader(int(b.status.Load()))
		_, _ = io.WriteString(w, "you sent "+r.Header.Get("Authorization"))
	})
	return b
}

func (b *bearer) last() (token string, n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.got) == 0 {
		return "", 0
	}
	return b.got[len(b.got)-1], len(b.got)
}

func TestDeliveriesCarryAnAccessToken(t *testing.T) {
	t.Parallel()
	var form url.Values
	var user, password string
	endpoint := newIssuer(t, func(n int64, w http.ResponseWriter, r *http.Request) {
		_ = r.ParseForm()
		form = r.PostForm
		user, password, _ = r.BasicAuth()
		issue(w, n, 3600)
	})
	receiver := newBearer(t)
	registry := prometheus.NewRegistry()
	s := newTestSender(t, func(o *SenderOptions) { o.Registerer = registry })
	r := withOAuth(t, receiver.URL, endpoint.URL+"/token?tenant=1")
	for range 3 {
		res := s.Send(t.Context(), r)
		if got, _ := receiver.last(); got != "Bearer token-1" || string(res.ResponseBody) != "you sent [redacted]" {
			t.Errorf("the receiver got %q, and the log %q (%v)", got, res.ResponseBody, res.Err)
		}
	}
	if endpoint.asked.Load() != 1 || user != "us" || password != "p+a%3Ass" ||
		form.Encode() != "audience=https%3A%2F%2Fapi.example&grant_type=client_credentials&scope=hooks+write" {
		t.Errorf("asked %d times, by %s:%s with %s", endpoint.asked.Load(), user, password, form.Encode())
	}
	if _, set := r.Headers["Authorization"]; set {
		t.Error("the request was changed")
	}
	changed := r
	changed.OAuth = new(*r.OAuth)
	changed.OAuth.Scope = "other"
	s.Send(t.Context(), changed)
	if got, _ := receiver.last(); got != "Bearer token-2" {
		t.Errorf("after a change of the scope: %q", got)
	}
	if n := testutil.ToFloat64(s.tokens.fetches.WithLabelValues(tokenFetched)); n != 2 {
		t.Errorf("%v fetched", n)
	}
}

// Endpoints that refuse the credentials in a header get them in the body, from then on at once.
func TestATokenEndpointMayWantTheCredentialsInTheBody(t *testing.T) {
	t.Parallel()
	endpoint := newIssuer(t, func(n int64, w http.ResponseWriter, r *http.Request) {
		if r.PostFormValue("client_id") != "us" || r.PostFormValue("client_secret") != "p a:ss" {
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = io.WriteString(w, `{"error":"invalid_client"}`)
			return
		}
		issue(w, n, 60)
	})
	receiver, clock := newBearer(t), newMovedClock()
	s := newTestSender(t, func(o *SenderOptions) { o.Now = clock.now })
	r := withOAuth(t, receiver.URL, endpoint.URL)
	for _, want := range []string{"Bearer token-2", "Bearer token-3"} {
		s.Send(t.Context(), r)
		if got, _ := receiver.last(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
		clock.advance(2 * time.Minute)
	}
}

func TestATokenIsRenewedAheadOfItsEnd(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	endpoint := newIssuer(t, func(n int64, w http.ResponseWriter, _ *http.Request) {
		if n == 2 {
			<-release
		}
		issue(w, n, 3600)
	})
	receiver, clock := newBearer(t), newMovedClock()
	s := newTestSender(t, func(o *SenderOptions) { o.Now = clock.now })
	r := withOAuth(t, receiver.URL, endpoint.URL)
	s.Send(t.Context(), r)
	clock.advance(56 * time.Minute)
	s.Send(t.Context(), r) // waits for nothing
	if got, n := receiver.last(); got != "Bearer token-1" || n != 2 {
		t.Errorf("during the renewal: %q", got)
	}
	source := s.tokens.source(r.Subscriber, tokenSettings(r.OAuth))
	source.mu.Lock()
	fetch := source.fetch
	source.mu.Unlock()
	if fetch == nil {
		t.Fatal("it is not renewed")
	}
	close(release)
	<-fetch
	s.Send(t.Context(), r)
	if got, _ := receiver.last(); got != "Bearer token-2" {
		t.Errorf("after the renewal: %q", got)
	}
	clock.advance(2 * time.Hour)
	s.Send(t.Context(), r)
	if got, _ := receiver.last(); got != "Bearer token-3" {
		t.Errorf("after its end: %q", got)
	}
}

// A token is used for ten seconds at least, and a day at most, whatever its endpoint says.
func TestTheLifeOfATokenHasBounds(t *testing.T) {
	t.Parallel()
	const asJSON, form = "application/json", "application/x-www-form-urlencoded"
	for _, c := range []struct {
		kind, answer string
		want         time.Duration
	}{
		{asJSON, `"expires_in":1`, 10 * time.Second},
		{asJSON, `"expires_in":11`, 11 * time.Second},
		{asJSON, `"expires_in":-5`, unknownTokenLife},
		{asJSON, `"expires_in":0`, unknownTokenLife},
		{asJSON, `"x":1`, unknownTokenLife},
		{asJSON, `"expires_in":"120"`, 2 * time.Minute},
		{asJSON, `"expires_in":2147483647`, 24 * time.Hour},
		{form, "expires_in=120", 2 * time.Minute},
		{form, "expires_in=9223372036854775807", 24 * time.Hour},
		{form, "expires_in=1", 10 * time.Second},
		{form, "expires_in=-1", unknownTokenLife},
		{form, "expires_in=NaN", unknownTokenLife},
	} {
		endpoint := newIssuer(t, func(_ int64, w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", c.kind)
			if c.kind == form {
				_, _ = io.WriteString(w, "access_token=t&"+c.answer)
			} else {
				_, _ = io.WriteString(w, `{"access_token":"t",`+c.answer+`}`)
			}
		})
		s := newTestSender(t, nil)
		_, life, _, err := s.tokens.request(t.Context(), withOAuth(t, "http://x.example", endpoint.URL).OAuth, false)
		if err != nil || life != c.want {
			t.Errorf("%s: %v, %v, want %v", c.answer, life, err, c.want)
		}
	}
}

// A receiver that answers 401 has the token replaced, once a minute at most.
func TestARejectedTokenIsReplacedOnceAMinute(t *testing.T) {
	t.Parallel()
	endpoint, receiver, clock := newIssuer(t, nil), newBearer(t), newMovedClock()
	receiver.status.Store(http.StatusUnauthorized)
	s := newTestSender(t, func(o *SenderOptions) { o.Now = clock.now })
	r := withOAuth(t, receiver.URL, endpoint.URL)
	for i, want := range []string{"token-1", "token-2", "token-2", "token-2", "token-3", "token-3"} {
		if i == 3 {
			clock.advance(time.Minute)
		}
		if res := s.Send(t.Context(), r); res.Class != attempt.ClassHTTP4xx {
			t.Errorf("%q %v", res.Class, res.Err)
		}
		if got, _ := receiver.last(); got != "Bearer "+want {
			t.Errorf("attempt %d: %q, want %s", i, got, want)
		}
	}
}

func TestDeliveriesShareTheFetchOfAToken(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	endpoint := newIssuer(t, func(n int64, w http.ResponseWriter, _ *http.Request) {
		<-release
		issue(w, n, 60)
	})
	receiver := newBearer(t)
	s := newTestSender(t, nil)
	r := withOAuth(t, receiver.URL, endpoint.URL)
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() { s.Send(t.Context(), r) })
	}
	other := withOAuth(t, receiver.URL, newIssuer(t, nil).URL) // of another subscriber: it waits for nothing
	if res := s.Send(t.Context(), other); res.StatusCode != http.StatusTeapot {
		t.Errorf("another subscriber: %q %v", res.Class, res.Err)
	}
	close(release)
	all.Wait()
	if _, n := receiver.last(); n != 21 || endpoint.asked.Load() != 1 {
		t.Errorf("%d deliveries, %d fetches", n, endpoint.asked.Load())
	}
}

func TestAFailingTokenEndpointIsAskedAfterPauses(t *testing.T) {
	t.Parallel()
	var well atomic.Bool
	endpoint := newIssuer(t, func(n int64, w http.ResponseWriter, _ *http.Request) {
		if well.Load() {
			issue(w, n, 60)
			return
		}
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = io.WriteString(w, "the secret is p a:ss")
	})
	receiver, clock := newBearer(t), newMovedClock()
	s := newTestSender(t, func(o *SenderOptions) { o.Now = clock.now })
	r := withOAuth(t, receiver.URL, endpoint.URL)
	for i, pause := range []int{5, 10, 20, 40, 60, 60} {
		for range 3 {
			res := s.Send(t.Context(), r)
			if res.Class != attempt.ClassTokenRefused || res.Sent != nil || strings.Contains(res.Err.Error(), "a:ss") {
				t.Errorf("%q %v", res.Class, res.Err)
			}
		}
		if n := endpoint.asked.Load(); n != int64(i+1) {
			t.Fatalf("asked %d times, want %d", n, i+1)
		}
		clock.advance(time.Duration(pause)*time.Second - 1)
		s.Send(t.Context(), r)
		clock.advance(1)
	}
	well.Store(true)
	if res := s.Send(t.Context(), r); res.StatusCode != http.StatusTeapot {
		t.Errorf("%q %v", res.Class, res.Err)
	}
	if _, n := receiver.last(); n != 1 {
		t.Errorf("the receiver got %d deliveries", n)
	}
}

// Settings that change faster than a token endpoint is asked make no more requests.
func TestChangedSettingsKeepThePauseOfATokenEndpoint(t *testing.T) {
	t.Parallel()
	endpoint := newIssuer(t, func(n int64, w http.ResponseWriter, _ *http.Request) {
		if n > 2 {
			issue(w, n, 60)
			return
		}
		w.WriteHeader(http.StatusServiceUnavailable)
	})
	receiver, clock := newBearer(t), newMovedClock()
	s := newTestSender(t, func(o *SenderOptions) { o.Now = clock.now })
	r := withOAuth(t, receiver.URL, endpoint.URL)
	send := func(change string) attempt.Result {
		changed := *r.OAuth
		changed.Scope = change
		r.OAuth = &changed
		return s.Send(t.Context(), r)
	}
	for i := range 2 {
		for j := range 3 {
			if res := send(fmt.Sprint(i, j)); res.StatusCode != 0 || res.Err == nil {
				t.Errorf("%q %v", res.Class, res.Err)
			}
		}
		if n := endpoint.asked.Load(); n != int64(i+1) {
			t.Fatalf("asked %d times, want %d", n, i+1)
		}
		clock.advance(firstTokenPause)
	}
	for _, change := range []string{"right", "another"} { // after a success no change waits
		if res := send(change); res.StatusCode != http.StatusTeapot {
			t.Errorf("%q %v", res.Class, res.Err)
		}
	}
}

// Attempts with former settings keep their token while other settings are tried, and those wait for the fetch under way.
func TestFormerSettingsKeepTheirToken(t *testing.T) {
	t.Parallel()
	hung := make(chan struct{})
	endpoint := newIssuer(t, func(n int64, w http.ResponseWriter, r *http.Request) {
		if n == 2 {
			<-hung
		}
		issue(w, n, 60)
	})
	receiver := newBearer(t)
	s := newTestSender(t, nil)
	former := withOAuth(t, receiver.URL, endpoint.URL)
	changed := former
	changed.OAuth = &callback.OAuth{TokenURL: endpoint.URL, ClientID: "us", ClientSecret: "another"}
	again := changed
	again.OAuth = &callback.OAuth{TokenURL: endpoint.URL, ClientID: "us", ClientSecret: "a third"}
	send := func(r Request, want string) {
		t.Helper()
		if res := s.Send(t.Context(), r); res.StatusCode != http.StatusTeapot {
			t.Errorf("%q %v", res.Class, res.Err)
		}
		if token, _ := receiver.last(); want != "" && token != want {
			t.Errorf("sent %q, want %q", token, want)
		}
	}
	send(former, "Bearer token-1")
	var waiting sync.WaitGroup
	waiting.Go(func() { send(changed, "") })
	waittest.Until(t, "the changed settings are tried", func() bool { return endpoint.asked.Load() == 2 })
	waiting.Go(func() { send(again, "") })
	send(former, "Bearer token-1")
	if n := endpoint.asked.Load(); n != 2 {
		t.Errorf("asked %d times at once", n)
	}
	close(hung)
	waiting.Wait()
	send(former, "Bearer token-1")
	send(changed, "Bearer token-2")
	send(again, "Bearer token-3")
}

// What an attacker's token endpoint may answer: nothing is sent, no internal address is reached, and no more
// is read than is needed.
func TestHostileTokenEndpoints(t *testing.T) {
	t.Parallel()
	port, inside := insideListener(t)
	const leak = "A-SECRET"
	long := strings.Repeat("x", 15000) + leak
	token := func(text string) func(int64, http.ResponseWriter, *http.Request) {
		return func(_ int64, w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, text)
		}
	}
	for name, c := range map[string]struct {
		answer func(int64, http.ResponseWriter, *http.Request)
		want   attempt.ErrorClass
	}{
		"a redirect to the metadata service": {func(_ int64, w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", "http://169.254.169.254:"+port+"/latest/meta-data/")
			w.WriteHeader(http.StatusTemporaryRedirect)
		}, attempt.ClassTokenRefused},
		"a redirect to loopback": {func(_ int64, w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", "http://[::1]:"+port+"/")
			w.WriteHeader(http.StatusFound)
		}, attempt.ClassTokenRefused},
		"an endless body": {func(_ int64, w http.ResponseWriter, r *http.Request) {
			for r.Context().Err() == nil {
				_, _ = io.WriteString(w, strings.Repeat(" ", 4096))
			}
		}, attempt.ClassToken},
		"more than 16 KiB":          {token(`{"access_token":"t","x":"` + strings.Repeat("x", maxTokenAnswer) + `"}`), attempt.ClassToken},
		"a token with CR LF":        {token(`{"access_token":"t\r\nX-Forged: 1"}`), attempt.ClassToken},
		"a token with a space":      {token(`{"access_token":"t t"}`), attempt.ClassToken},
		"a token that is not ASCII": {token(`{"access_token":"tö"}`), attempt.ClassToken},
		"a token of 4,097 bytes":    {token(`{"access_token":"` + strings.Repeat("t", maxToken+1) + `"}`), attempt.ClassToken},
		"no token":                  {token(`{"access_token":""}`), attempt.ClassToken},
		"a token of another type":   {token(`{"access_token":"t","token_type":"DPoP"}`), attempt.ClassToken},
		"deep JSON":                 {token(strings.Repeat(`[`, maxTokenAnswer-1)), attempt.ClassToken},
		"no JSON":                   {token(`hello`), attempt.ClassToken},
		"a long text as lifetime":   {token(`{"access_token":"t","expires_in":"` + long + `"}`), attempt.ClassToken},
		"a long number as lifetime": {token(`{"access_token":"t","expires_in":` + strings.Repeat("9", 15000) + `}`), attempt.ClassToken},
		"no number as lifetime":     {token(`{"access_token":"t","expires_in":"abc` + leak + `"}`), attempt.ClassToken},
		"a long error":              {token(`{"error":"` + long + `"}`), attempt.ClassTokenRefused},
		"an error that is no code":  {token(`{"error":"the ` + leak + `"}`), attempt.ClassTokenRefused},
		"a long status line": {func(_ int64, w http.ResponseWriter, _ *http.Request) {
			conn, _, _ := http.NewResponseController(w).Hijack()
			_, _ = io.WriteString(conn, long+"\r\n\r\n")
			_ = conn.Close()
		}, attempt.ClassToken},
		"an error with status 200": {token(`{"error":"invalid_client"}`), attempt.ClassTokenRefused},
		"an error":                 {func(_ int64, w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) }, attempt.ClassTokenRefused},
		"an answer that never comes": {func(_ int64, _ http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			<-r.Context().Done()
		}, attempt.ClassToken},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			endpoint, receiver := newIssuer(t, c.answer), newBearer(t)
			s := newTestSender(t, nil)
			if strings.Contains(name, "never") {
				s.tokens.timeout = 50 * time.Millisecond
			}
			res := s.Send(t.Context(), withOAuth(t, receiver.URL, endpoint.URL))
			if _, n := receiver.last(); res.Class != c.want || n != 0 || res.Err == nil || len(res.Err.Error()) > 300 || strings.Contains(res.Err.Error(), leak) {
				t.Errorf("%q %v, %d deliveries, want %q and none", res.Class, res.Err, n, c.want)
			}
		})
	}
	t.Cleanup(func() {
		if n := inside.Load(); n != 0 {
			t.Errorf("%d connections to internal addresses", n)
		}
	})
}

// The status of a token endpoint decides, as that of a receiver does, and the other way to authenticate is tried in time.
func TestTheBodyOfATokenRefusalMayBeBroken(t *testing.T) {
	t.Parallel()
	for name, body := range map[string]func(http.ResponseWriter, *http.Request){
		"never ends": func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, `{"error":"invalid_client"}`)
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		},
		"never begins": func(w http.ResponseWriter, r *http.Request) {
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		},
		"has no end": func(w http.ResponseWriter, r *http.Request) {
			for r.Context().Err() == nil {
				_, _ = io.WriteString(w, strings.Repeat(" ", 4096))
			}
		},
		"breaks off": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, `{"error":"inv`)
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var inBody atomic.Bool // is accepted
			inBody.Store(true)
			endpoint := newIssuer(t, func(n int64, w http.ResponseWriter, r *http.Request) {
				if r.PostFormValue("client_id") != "" && inBody.Load() {
					issue(w, n, 60)
					return
				}
				w.WriteHeader(http.StatusUnauthorized)
				body(w, r)
			})
			receiver := newBearer(t)
			s := newTestSender(t, nil)
			r := withOAuth(t, receiver.URL, endpoint.URL)
			res := s.Send(t.Context(), r)
			if got, _ := receiver.last(); got != "Bearer token-2" {
				t.Errorf("sent %q: %q %v", got, res.Class, res.Err)
			}
			inBody.Store(false)
			s = newTestSender(t, nil)
			s.tokens.client.Transport.(*tokenTransport).refusal = 50 * time.Millisecond // of two bodies
			if res := s.Send(t.Context(), r); res.Class != attempt.ClassTokenRefused || endpoint.asked.Load() != 4 {
				t.Errorf("%q %v, asked %d times", res.Class, res.Err, endpoint.asked.Load())
			}
		})
	}
}

func TestATokenEndpointThatRefusesHTTP2IsAskedByHTTP1(t *testing.T) {
	t.Parallel()
	for name, refuse := range refusals {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var form, proto atomic.Value
			endpoint, trust, all, h2 := http2Receiver(t, func(w http.ResponseWriter, r *http.Request) {
				_ = r.ParseForm()
				form.Store(r.PostForm.Get("grant_type"))
				proto.Store(r.Proto)
				issue(w, 1, 60)
			}, refuse)
			receiver := newBearer(t)
			res := newTestSender(t, trust).Send(t.Context(), withOAuth(t, receiver.URL, endpoint))
			if got, _ := receiver.last(); got != "Bearer token-1" || form.Load() != "client_credentials" || proto.Load() != "HTTP/1.1" {
				t.Errorf("sent %q, asked for %v by %v: %q %v", got, form.Load(), proto.Load(), res.Class, res.Err)
			}
			if all.Load() != 2 || h2.Load() != 1 {
				t.Errorf("%d connections, %d by HTTP/2", all.Load(), h2.Load())
			}
		})
	}
}

// A token URL is guarded like a callback URL, at each connection.
func TestATokenURLReachesNoInternalAddress(t *testing.T) {
	t.Parallel()
	port, accepted := insideListener(t)
	for addr, family := range insiders {
		s := newTestSender(t, func(o *SenderOptions) {
			o.Guard = egress.New(egress.Options{Resolver: dnstest.Resolver(t, addr)})
		})
		for _, host := range []string{"rebind.example.com.", addr} {
			r := withOAuth(t, "https://hooks.example.com/", "https://"+net.JoinHostPort(host, port)+"/token")
			if res := s.Send(t.Context(), r); res.Class != attempt.ClassToken || res.StatusCode != 0 {
				t.Errorf("%s as %s: %q %v", family, host, res.Class, res.Err)
			}
		}
	}
	if n := accepted.Load(); n != 0 {
		t.Errorf("%d connections were made", n)
	}
}

// An attempt waits for a token no longer than it has time, and ends with the daemon.
func TestAnAttemptDoesNotWaitLongForAToken(t *testing.T) {
	t.Parallel()
	endpoint := newIssuer(t, func(_ int64, _ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
	})
	s := newTestSender(t, func(o *SenderOptions) { o.Timeout = 50 * time.Millisecond })
	s.tokens.timeout = time.Minute
	if res := s.Send(t.Context(), withOAuth(t, "http://127.0.0.1:1/", endpoint.URL)); res.Class != attempt.ClassToken {
		t.Errorf("%q %v", res.Class, res.Err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	endpoint = newIssuer(t, func(_ int64, _ http.ResponseWriter, r *http.Request) {
		cancel()
		_, _ = io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
	})
	s = newTestSender(t, nil) // closed before its endpoint is
	if res := s.Send(ctx, withOAuth(t, "http://127.0.0.1:1/", endpoint.URL)); res.Class != attempt.ClassAborted {
		t.Errorf("%q %v", res.Class, res.Err)
	}
}

// A token endpoint that is slow does not make the signatures old, and the log shows the time that was signed.
func TestAnAttemptIsSignedOnceItHasItsToken(t *testing.T) {
	t.Parallel()
	clock := newMovedClock()
	began := clock.now()
	endpoint := newIssuer(t, func(n int64, w http.ResponseWriter, _ *http.Request) {
		clock.advance(9 * time.Second)
		issue(w, n, 3600)
	})
	private := ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize))
	key, err := httpsig.NewKey(private)
	if err != nil {
		t.Fatal(err)
	}
	jwk, err := httpsig.PublicJWK(private.Public())
	if err != nil {
		t.Fatal(err)
	}
	signed := began.Add(9 * time.Second)
	r := withOAuth(t, "", endpoint.URL)
	r.MessageKey = key
	address := listening(t, func(_ http.ResponseWriter, got *http.Request) {
		if ts := got.Header.Get("webhook-timestamp"); ts != strconv.FormatInt(signed.Unix(), 10) {
			t.Errorf("the timestamp is %s, want %d", ts, signed.Unix())
		}
		if err := signature.Verify(testSecret, got.Header, r.Body, time.Minute, signed); err != nil {
			t.Error(err)
		}
		// valid from the time of the signature on, without any tolerance
		if err := httpsig.Verify(got.Header, got.Method, r.URL.String(), r.Body, []httpsig.JWK{jwk}, 0, signed); err != nil {
			t.Error(err)
		}
	})
	if r.URL, err = url.Parse(address); err != nil {
		t.Fatal(err)
	}
	s := newTestSender(t, func(o *SenderOptions) { o.Now = clock.now })
	res := s.Send(t.Context(), r)
	logged := attempt.New(1, res)
	if !res.Success() || !res.StartedAt.Equal(began) || res.Duration != 9*time.Second || logged.Headers("e")["webhook-timestamp"] != strconv.FormatInt(signed.Unix(), 10) {
		t.Errorf("%v; began at %v, took %v, logged %v", res.Err, res.StartedAt, res.Duration, logged.Headers("e"))
	}
}

// Thousands of token URLs take a bounded number of tokens.
func TestTheNumberOfTokensHasABound(t *testing.T) {
	t.Parallel()
	s := newTestSender(t, nil)
	for range maxTokens + 1000 {
		s.tokens.source(uuid.New(), callback.OAuth{})
	}
	if n := s.tokens.paces.Len(); n != maxTokens {
		t.Errorf("those of %d subscribers are kept", n)
	}
	one := uuid.New()
	for i := range 10 {
		s.tokens.source(one, callback.OAuth{Scope: strconv.Itoa(i)})
		s.tokens.source(one, callback.OAuth{Scope: "own"})
	}
	p, _ := s.tokens.paces.Get(one)
	if n := len(p.sources); n != maxSources || p.sources[2].settings.Scope != "own" {
		t.Errorf("%d tokens of a subscriber are kept", n)
	}
}

// With a proxy, tokens are requested through it, and it sees no secret.
func TestAProxyCarriesTheRequestForAToken(t *testing.T) {
	t.Parallel()
	receiver, trust := secureReceiver(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/token" {
			issue(w, 1, 60)
			return
		}
		w.WriteHeader(http.StatusTeapot)
		_, _ = io.WriteString(w, strings.ReplaceAll(r.Header.Get("Authorization"), "-", " "))
	}, nil)
	u, _ := url.Parse(receiver)
	s := newTestSender(t, func(o *SenderOptions) {
		trust(o)
		o.Guard = egress.New(egress.Options{})
		o.Proxy = tunnel(t, u.Host, nil)
	})
	t.Cleanup(s.Close) // before the tunnel waits for its connections
	if res := s.Send(t.Context(), withOAuth(t, "https://example.com/hook", "https://example.com/token")); string(res.ResponseBody) != "Bearer token 1" {
		t.Errorf("%q %v %s", res.Class, res.Err, res.ResponseBody)
	}
	s = newTestSender(t, func(o *SenderOptions) { // it does not trust the endpoint
		o.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
	})
	if res := s.Send(t.Context(), withOAuth(t, "http://127.0.0.1:1/", receiver+"/token")); res.Class != attempt.ClassToken || !strings.Contains(res.Err.Error(), "certificate") {
		t.Errorf("an untrusted endpoint: %q %v", res.Class, res.Err)
	}
}
