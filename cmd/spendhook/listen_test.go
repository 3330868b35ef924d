package main

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/go-json-experiment/json"

	"spendhook/dispatcher/webhook/signature"
)

const otherSecret = "whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"

// startListen runs the command until the test ends and returns its address
// and, once it has ended, its result.
func startListen(t *testing.T, args ...string) (url string, ended <-chan result) {
	t.Helper()
	out, errs := &lockedBuffer{}, newFirstLine()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan result, 1)
	go func() {
		args := append([]string{"listen", "--addr", "127.0.0.1:0"}, args...)
		code := runWith(ctx, args, stdio{In: strings.NewReader(""), Out: out, Err: errs})
		errs.close()
		done <- result{code, out.String(), errs.String()}
	}()
	t.Cleanup(cancel)
	return strings.TrimPrefix(errs.wait(t), "listening on "), done
}

func deliver(t *testing.T, url, secret, id, body string) int {
	t.Helper()
	now := time.Now().Unix()
	signature, err := signature.V1(secret, id, now, []byte(body))
	if err != nil {
		t.Fatal(err)
	}
	req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	req.Header.Set("webhook-id", id)
	req.Header.Set("webhook-timestamp", strconv.FormatInt(now, 10))
	req.Header.Set("webhook-signature", signature)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	return resp.StatusCode
}

func TestListenVerifiesAndPrints(t *testing.T) {
	t.Parallel()
	url, ended := startListen(t, "--secret-file", secretFile(t, otherSecret), "--secret-file", secretFile(t, testSecret), "--count", "2")
	body := `{"id":"evt_1","event":"PAYMENT_PAID","metadata":{"n":1}}`
	if got := deliver(t, url, testSecret, "evt_1", body); got != http.StatusNoContent {
		t.Errorf("answered %d", got)
	}
	deliver(t, url, otherSecret, "evt_2", body)
	r := <-ended
	r.want(t, exitOK, "204  PAYMENT_PAID  evt_1  verified (standard)\n", "")
	r.want(t, exitOK, "\n      \"event\": \"PAYMENT_PAID\",\n", "")
}

func TestListenRefusesABadSignature(t *testing.T) {
	t.Parallel()
	url, ended := startListen(t, "--secret-file", secretFile(t, testSecret), "--count", "1")
	if got := deliver(t, url, otherSecret, "evt_1", `{}`); got != http.StatusUnauthorized {
		t.Errorf("answered %d", got)
	}
	(<-ended).want(t, exitFailure, "REFUSED: ", "1 deliveries were not verified")
}

// With --subscribe, each kind of signature that was asked for is verified.
func TestListenVerifiesMessageSignatures(t *testing.T) {
	t.Parallel()
	d := newInstallation(t, sharedRedis(t), "").start(t)
	for i, kinds := range []string{"http-message", "standard,http-message"} {
		url, ended := startListen(t, "--subscribe", "--url", d.api, "--token-file", secretFile(t, d.token), "--signature", kinds, "--count", "2")
		eventually(t, patience, "it is subscribed", func() bool {
			_, _, list := d.do(t, http.MethodGet, "/api/v1/subscribers", "")
			return strings.Contains(list, url)
		})
		if got := deliver(t, url, testSecret, "forged", "{}"); got != http.StatusUnauthorized {
			t.Errorf("answered %d", got)
		}
		d.cli(t, eventLines(i, 1, time.Now()), "event", "send", "-f", "-").want(t, exitOK, "refused 0", "")
		r := <-ended
		r.want(t, exitFailure, "204  PAYMENT_PAID  evt_"+strconv.Itoa(i)+"  verified ("+strings.ReplaceAll(kinds, ",", ", ")+")\n", "1 deliveries were not verified")
		if !strings.Contains(r.stdout, "forged  REFUSED: no valid ") {
			t.Errorf("%s", r.stdout)
		}
	}
	command(t, "", "listen", "--signature", "http-message").want(t, exitUsage, "", "--signature needs --subscribe")
}

// With --keys-url, the message signatures of an existing subscriber are verified, for the public address of the receiver.
func TestListenVerifiesWithPublishedKeys(t *testing.T) {
	t.Parallel()
	d := newInstallation(t, sharedRedis(t), "").start(t)
	arrived, bodies := make(chan http.Header, 1), make(chan string, 1)
	public := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		arrived <- r.Header
		bodies <- string(body)
	}))
	defer public.Close()
	status, _, answer := d.do(t, http.MethodPost, "/api/v1/subscribers",
		`{"name":"n","callbackUrl":"`+public.URL+`/hook?a=b","events":["PAYMENT_PAID"],"signatures":["http-message"]}`)
	if status != http.StatusCreated {
		t.Fatalf("%d %s", status, answer)
	}
	d.cli(t, eventLines(0, 1, time.Now()), "event", "send", "-f", "-").want(t, exitOK, "refused 0", "")
	header, body := <-arrived, <-bodies

	keys := d.api + "/.well-known/webhook-keys/" + developerCompany.String()
	for what, c := range map[string]struct {
		args   []string
		body   string
		status int
		says   string
	}{
		"as sent":         {[]string{"--keys-url", keys, "--public-url", public.URL}, body, http.StatusNoContent, "verified (http-message)\n"},
		"another body":    {[]string{"--keys-url", keys, "--public-url", public.URL}, body + " ", http.StatusUnauthorized, "REFUSED: no valid message signature"},
		"another address": {[]string{"--keys-url", keys}, body, http.StatusUnauthorized, "REFUSED: no valid message signature"},
		"no keys":         {[]string{"--keys-url", d.api + "/none", "--public-url", public.URL}, body, http.StatusServiceUnavailable, "REFUSED: read the published keys: 404"},
	} {
		url, ended := startListen(t, append(c.args, "--count", "1")...)
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/hook?a=b", strings.NewReader(c.body))
		req.Header = header.Clone()
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if r := <-ended; resp.StatusCode != c.status || !strings.Contains(r.stdout, c.says) || (r.code == exitOK) != (c.status == http.StatusNoContent) {
			t.Errorf("%s: answered %d, exit code %d\n%s", what, resp.StatusCode, r.code, r.stdout)
		}
	}
}

// A request cannot write control characters to the terminal.
func TestListenEscapesWhatItIsSent(t *testing.T) {
	t.Parallel()
	const nasty = "\x1b]0;title\a\u009b31m\u202e\r\n\U000E0001"
	quoted, err := json.Marshal(nasty)
	if err != nil {
		t.Fatal(err)
	}
	url, ended := startListen(t, "--secret-file", secretFile(t, testSecret), "--count", "3")
	for _, body := range []string{nasty, `{"event":` + string(quoted) + `,"more":"` + "\u009b\u202e" + `"}`, "[1,\r\n2]"} {
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
		req.Header.Set("webhook-id", "id\u009b2J\u202e")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
	}
	r := <-ended
	if i := strings.IndexFunc(r.stdout, func(c rune) bool { return c != '\n' && !unicode.IsPrint(c) }); i >= 0 {
		t.Errorf("%q", r.stdout[i:min(i+20, len(r.stdout))])
	}
}

func TestListenAnswersWithStatusAndDelay(t *testing.T) {
	t.Parallel()
	url, ended := startListen(t, "--status", "302", "--delay", "30ms", "--count", "1")
	began := time.Now()
	if got := deliver(t, url, testSecret, "evt_1", "not json"); got != http.StatusFound {
		t.Errorf("answered %d", got)
	}
	if took := time.Since(began); took < 30*time.Millisecond {
		t.Errorf("answered after %v", took)
	}
	(<-ended).want(t, exitOK, "302    evt_1  not checked\n    not json\n", "")
}

func TestListenSubscribes(t *testing.T) {
	t.Parallel()
	var calls []string
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		calls = append(calls, r.Method+" "+r.URL.Path+" "+string(body))
		if r.Method == http.MethodPost {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusCreated)
			_, _ = io.WriteString(w, `{"uuid":"0b9d1f7e-0000-4000-8000-000000000001","secret":"`+testSecret+`"}`)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	}))
	defer api.Close()
	url, ended := startListen(t, "--subscribe", "--url", api.URL, "--token-file", secretFile(t, "t"), "--events", "A,B", "--count", "1")
	deliver(t, url, testSecret, "evt_1", "{}")
	(<-ended).want(t, exitOK, "verified (standard)", testSecret)
	want := `POST /api/v1/subscribers {"callbackUrl":"` + url + `","events":["A","B"],"name":"spendhook listen"}` +
		"\nDELETE /api/v1/subscribers/0b9d1f7e-0000-4000-8000-000000000001 "
	if got := strings.Join(calls, "\n"); got != want {
		t.Errorf("calls:\n%s\nwant:\n%s", got, want)
	}
}

// A subscriber that must be verified first is verified by the receiver itself, also by one that answers deliveries with
// errors. The challenge is not counted.
func TestListenAnswersAChallenge(t *testing.T) {
	t.Parallel()
	d := newInstallation(t, sharedRedis(t), "subscribers: {challenge: new}\n").start(t)
	_, ended := startListen(t, "--url", d.api, "--token-file", secretFile(t, d.token), "--subscribe", "--events", "PAYMENT_PAID", "--count", "1", "--status", "500")
	eventually(t, patience, "it has subscribed", func() bool {
		return strings.Contains(d.cli(t, "", "subscriber", "list").stdout, "spendhook listen")
	})
	d.cli(t, eventLines(0, 1, time.Now()), "event", "send", "-f", "-").want(t, exitOK, "refused 0", "")
	got := <-ended
	got.want(t, exitOK, "SUBSCRIBER_CHALLENGE", "")
	if !strings.Contains(got.stdout, "evt_0") {
		t.Errorf("the event was not delivered:\n%s", got.stdout)
	}
}

// The handshake of CloudEvents is agreed to for the system that asks, whatever the answers to deliveries are. What is no
// handshake gets no consent.
func TestListenAgreesInTheHandshakeOfCloudEvents(t *testing.T) {
	t.Parallel()
	url, _ := startListen(t, "--secret-file", secretFile(t, testSecret), "--status", "500")
	for _, c := range []struct {
		method, origin string
		status         int
		allowed, rate  string
	}{
		{http.MethodOptions, "spend.example.com", http.StatusOK, "spend.example.com", "*"},
		{http.MethodOptions, "", http.StatusMethodNotAllowed, "", ""},
		{http.MethodGet, "spend.example.com", http.StatusMethodNotAllowed, "", ""},
	} {
		req, err := http.NewRequestWithContext(t.Context(), c.method, url, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		if c.origin != "" {
			req.Header.Set("WebHook-Request-Origin", c.origin)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		got := resp.Header
		if resp.StatusCode != c.status || got.Get("WebHook-Allowed-Origin") != c.allowed || got.Get("WebHook-Allowed-Rate") != c.rate || got.Get("Allow") != http.MethodPost {
			t.Errorf("%s from %q: answered %d with %v", c.method, c.origin, resp.StatusCode, got)
		}
	}
}

func TestListenAddressInUse(t *testing.T) {
	t.Parallel()
	busy := httptest.NewServer(http.NotFoundHandler())
	defer busy.Close()
	r := command(t, "", "listen", "--addr", busy.Listener.Addr().String())
	r.want(t, exitFailure, "", "address already in use")
	if lines := bufio.NewScanner(strings.NewReader(r.stderr)); !lines.Scan() || lines.Scan() {
		t.Errorf("want one line, got:\n%s", r.stderr)
	}
}

// A receiver on the network has https, which a daemon outside dev insists on.
func TestListenServesHTTPS(t *testing.T) {
	t.Parallel()
	certs := newDevCerts(t)
	url, _ := startListen(t, "--tls-cert", certs.path("server.pem"), "--tls-key", certs.path("server-key.pem"))
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := certs.client(t).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if !strings.HasPrefix(url, "https://127.0.0.1:") || resp.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("%s: %s", url, resp.Status)
	}
	command(t, "", "listen", "--tls-cert", "server.pem").want(t, exitUsage, "", "--tls-cert and --tls-key must be used together")
}
