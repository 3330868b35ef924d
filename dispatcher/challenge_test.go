package dispatcher

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"spendhook/dispatcher/challenge"
	"spendhook/dispatcher/delivery"
	"spendhook/dispatcher/delivery/attempt"
	"spendhook/dispatcher/webhook"
	"spendhook/internal/dnstest"
	"spendhook/internal/egress"
	"spendhook/internal/partition"
	"spendhook/internal/ratelimit"
	"spendhook/internal/redistest"
	"spendhook/internal/seal/sealtest"
	"spendhook/internal/secret"
	"spendhook/subscribers"
	"spendhook/subscribers/callback"
)

// verifying is a harness whose callback URLs must be verified, with what verifies them.
func verifying(t *testing.T) (*harness, *challenge.Challenger) {
	t.Helper()
	h, c := buildVerifying(t, redistest.New(t))
	h.start()
	return h, c
}

// buildVerifying makes the harness without starting it. adjust may change the options.
func buildVerifying(t *testing.T, client redis.UniversalClient, adjust ...func(*Options)) (*harness, *challenge.Challenger) {
	t.Helper()
	h := build(t, client, func(o *Options) {
		o.Sender = testSender(time.Minute)
		o.Subscribers = subscribers.NewStore(subscribers.StoreOptions{
			Client: client, Keyring: sealtest.Keyring(), Policy: callback.Policy{AllowHTTP: true}, Challenge: subscribers.ChallengeNew,
		})
		for _, f := range adjust {
			f(o)
		}
	})
	return h, challengerOf(h, client)
}

// challengerOf makes what verifies the callback URLs of a harness. Those of one client share their limits.
func challengerOf(h *harness, limits redis.UniversalClient) *challenge.Challenger {
	return challengerWith(h, limits, 0, 0)
}

func challengerWith(h *harness, limits redis.UniversalClient, ofHost, ofCompany int) *challenge.Challenger {
	limiter := ratelimit.New(limits, nil)
	limiter.LeaseTimeout = time.Minute // a busy machine is no absent Redis
	return challenge.New(challenge.Options{
		Client: h.client, Subscribers: h.opts.Subscribers, Registry: h.opts.Registry, Requests: h.opts.Requests,
		Send: h.opts.Sender.Send, Limiter: limiter, Origin: "hooks.example.com", HostHour: ofHost, CompanyHour: ofCompany,
	})
}

// answering answers challenges with what form makes of their text, and other deliveries with 204.
func answering(form func(text string) string) func(int, http.ResponseWriter, *http.Request) {
	return func(_ int, w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if text := challenge.Text(body); text != "" {
			_, _ = io.WriteString(w, form(text))
			return
		}
		w.WriteHeader(http.StatusNoContent)
	}
}

func same(text string) string { return text }

// reasonOf is why a receiver was not verified.
func reasonOf(t *testing.T, err error) string {
	t.Helper()
	failed, ok := errors.AsType[*challenge.FailedError](err)
	if !ok {
		t.Fatalf("error = %v, want a FailedError", err)
	}
	return failed.Reason
}

func TestDeliveriesWaitForTheVerification(t *testing.T) {
	t.Parallel()
	h, c := verifying(t)
	rc := receive(t, answering(same))
	sub := h.subscribe(rc.URL)
	ids := h.emit(3)
	h.reachAll(ids, sub, delivery.StatusPending)
	if _, err := h.inspector.Test(t.Context(), h.company, sub.UUID); !errors.Is(err, subscribers.ErrUnverified) {
		t.Errorf("a test delivery: %v", err)
	}
	if n := rc.count(); n != 0 {
		t.Fatalf("%d requests before the challenge", n)
	}
	got, err := c.Verify(t.Context(), h.company, sub.UUID)
	if err != nil || got.Verification.State != subscribers.StateVerified || got.Verification.At == nil {
		t.Fatalf("%+v, %v", got.Verification, err)
	}
	rc.mu.Lock()
	asked := rc.got[0]
	rc.mu.Unlock()
	wh, err := standardwebhooks.NewWebhook(sub.Secrets[0].Key.Reveal())
	if err != nil {
		t.Fatal(err)
	}
	if err := wh.Verify(asked.body, asked.header); err != nil {
		t.Errorf("the challenge: %v", err)
	}
	h.reachAll(ids, sub, delivery.StatusDelivered)
	n := rc.count()
	if _, err := c.Verify(t.Context(), h.company, sub.UUID); err != nil || rc.count() != n {
		t.Errorf("a verified subscriber was challenged again: %d requests, %v", rc.count()-n, err)
	}
	if _, err := h.inspector.Test(t.Context(), h.company, sub.UUID); err != nil {
		t.Errorf("a test delivery afterwards: %v", err)
	}
	h.settled()
}

// Of what a receiver answers, only the status is shown.
func TestTheAnswerToAChallengeIsNotShown(t *testing.T) {
	t.Parallel()
	h, c := verifying(t)
	refuse := func(status int) func(int, http.ResponseWriter, *http.Request) {
		return func(_ int, w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", "http://127.0.0.1:1/")
			w.WriteHeader(status)
			_, _ = io.WriteString(w, "a secret of the receiver")
		}
	}
	for _, answer := range []struct {
		name, reason string
		is           func(int, http.ResponseWriter, *http.Request)
	}{
		{"another text", "the answer does not repeat the challenge", answering(func(string) string { return "a secret of the receiver" })},
		{"nothing", "the answer does not repeat the challenge", answering(func(string) string { return "" })},
		{"its text within others", "the answer does not repeat the challenge", answering(func(text string) string { return "x" + text })},
		{"too much", "the answer is longer than 1 KiB", answering(func(text string) string { return text + strings.Repeat(" ", 1<<10) })},
		{"404", "http_4xx (status 404)", refuse(http.StatusNotFound)},
		{"500", "http_5xx (status 500)", refuse(http.StatusInternalServerError)},
		{"a redirect", "http_3xx (status 307)", refuse(http.StatusTemporaryRedirect)},
	} {
		rc := receive(t, answer.is)
		sub := h.subscribe(rc.URL)
		got, err := challengerOf(h, redistest.New(t)).Verify(t.Context(), h.company, sub.UUID)
		if reason := reasonOf(t, err); reason != answer.reason || got.Verification.Reason != reason || got.Verification.State != subscribers.StateFailed {
			t.Errorf("%s: %+v, %v", answer.name, got.Verification, err)
		}
		if n := rc.count(); n != 1 {
			t.Errorf("%s: %d requests", answer.name, n)
		}
	}
	sub := h.subscribe("http://127.0.0.1:1/")
	if _, err := c.Verify(t.Context(), h.company, sub.UUID); reasonOf(t, err) != "connect" {
		t.Errorf("nobody listens: %v", err)
	}
	rc := receive(t, answering(func(text string) string { return `{"challenge":"` + text + `"}` }))
	if _, err := c.Verify(t.Context(), h.company, h.subscribe(rc.URL).UUID); err != nil {
		t.Errorf("a JSON answer: %v", err)
	}
}

// The former URL gets the deliveries until the new one is verified, and headers that are set for the new one go there
// only.
func TestAChangedURLIsChallengedFirst(t *testing.T) {
	t.Parallel()
	h, c := verifying(t)
	former, silent, next := receive(t, answering(same)), receive(t, nil), receive(t, answering(same))
	sub := h.subscribe(former.URL)
	if _, err := c.Verify(t.Context(), h.company, sub.UUID); err != nil {
		t.Fatal(err)
	}
	move := func(to string) error {
		_, err := c.Update(t.Context(), h.company, sub.UUID, subscribers.Settings{
			CallbackURL: &to, Headers: map[string]*secret.Text{"X-Key": new(secret.Text("for the new one"))},
		})
		return err
	}
	if reason := reasonOf(t, move(silent.URL)); reason != "the answer does not repeat the challenge" {
		t.Errorf("reason %q", reason)
	}
	h.reachAll(h.emit(1), sub, delivery.StatusDelivered)
	if n := silent.count(); n != 1 {
		t.Errorf("%d requests to the receiver that did not answer", n)
	}
	if err := move(next.URL); err != nil {
		t.Fatal(err)
	}
	before := former.count()
	h.reachAll(h.emit(1), sub, delivery.StatusDelivered)
	if former.count() != before || next.count() != 2 {
		t.Errorf("%d requests to the former URL, %d to the new one", former.count()-before, next.count())
	}
	for _, rc := range []*inbox{former, next} {
		rc.mu.Lock()
		for _, got := range rc.got {
			if has := got.header.Get("X-Key") != ""; has != (rc == next) {
				t.Errorf("X-Key: %t, at the new URL: %t", has, rc == next)
			}
		}
		rc.mu.Unlock()
	}
	// Other changes are not challenged.
	if _, err := c.Update(t.Context(), h.company, sub.UUID, subscribers.Settings{Name: new("Other")}); err != nil || next.count() != 2 {
		t.Errorf("%d requests, %v", next.count(), err)
	}
}

func TestTheHandshakeOfCloudEvents(t *testing.T) {
	t.Parallel()
	h, _ := verifying(t)
	for _, answer := range []struct {
		origin, rate string
		want         int // requests per minute; -1: refused
	}{
		{"hooks.example.com", "", 0},
		{"*", "*", 0},
		{"HOOKS.example.com", "120", 120},
		{"", "", -1},
		{"other.example.com", "", -1},
		{"*", "many", -1},
		{"*", "0", -1},
	} {
		var method, origin, rate atomic.Value
		rc := receive(t, func(_ int, w http.ResponseWriter, r *http.Request) {
			method.Store(r.Method)
			origin.Store(r.Header.Get("WebHook-Request-Origin"))
			rate.Store(r.Header.Get("WebHook-Request-Rate"))
			if answer.origin != "" {
				w.Header().Set("WebHook-Allowed-Origin", answer.origin)
			}
			if answer.rate != "" {
				w.Header().Set("WebHook-Allowed-Rate", answer.rate)
			}
		})
		sub := h.subscribe(rc.URL)
		h.update(sub, subscribers.Settings{Format: new(subscribers.FormatCloudEvents), RateLimit: &subscribers.RateLimit{PerSecond: 2}})
		got, err := challengerOf(h, redistest.New(t)).Verify(t.Context(), h.company, sub.UUID)
		if answer.want < 0 {
			if reason := reasonOf(t, err); !strings.HasPrefix(reason, "WebHook-Allowed-") || strings.Contains(reason, "other") || strings.Contains(reason, "many") {
				t.Errorf("%+v: %q", answer, reason)
			}
		} else if err != nil || got.Verification.PerMinute != answer.want {
			t.Errorf("%+v: %+v, %v", answer, got.Verification, err)
		}
		if method.Load() != http.MethodOptions || origin.Load() != "hooks.example.com" || rate.Load() != "120" {
			t.Errorf("asked by %v for %v, %v", method.Load(), origin.Load(), rate.Load())
		}
	}
}

// A challenge is no means to reach internal addresses: of a name that resolves to one it makes no connection.
func TestAChallengeOfARefusedAddressIsNotSent(t *testing.T) {
	t.Parallel()
	var accepted atomic.Int64
	inside := httptest.NewUnstartedServer(nil)
	inside.Config.ConnState = func(net.Conn, http.ConnState) { accepted.Add(1) }
	inside.Start()
	t.Cleanup(inside.Close)
	_, port, _ := net.SplitHostPort(inside.Listener.Addr().String())
	guard := egress.New(egress.Options{Resolver: dnstest.Resolver(t, "127.0.0.1")})
	h, c := buildVerifying(t, redistest.New(t), func(o *Options) {
		o.Sender = webhook.NewSender(webhook.SenderOptions{Guard: guard, Timeout: time.Minute, ConnectTimeout: time.Minute})
	})
	for _, format := range []string{subscribers.FormatStandard, subscribers.FormatCloudEvents} {
		sub := h.subscribe("http://" + format + ".example.com:" + port + "/hook")
		h.update(sub, subscribers.Settings{Format: &format})
		got, err := c.Verify(t.Context(), h.company, sub.UUID)
		if reason := reasonOf(t, err); reason != string(attempt.ClassRefusedAddress) || got.Verification.Reason != reason || got.Verification.State != subscribers.StateFailed {
			t.Errorf("%s: %+v, %v", format, got.Verification, err)
		}
	}
	if n := accepted.Load(); n != 0 {
		t.Errorf("%d connections were made", n)
	}
}

// A redirect fails a challenge, and the server to which it leads gets no request, though it would agree.
func TestAChallengeFollowsNoRedirect(t *testing.T) {
	t.Parallel()
	h, c := verifying(t)
	for format, method := range map[string]string{subscribers.FormatStandard: http.MethodPost, subscribers.FormatCloudEvents: http.MethodOptions} {
		target := receive(t, func(n int, w http.ResponseWriter, r *http.Request) {
			w.Header().Set("WebHook-Allowed-Origin", "*")
			answering(same)(n, w, r)
		})
		var asked atomic.Value
		rc := receive(t, func(_ int, w http.ResponseWriter, r *http.Request) {
			asked.Store(r.Method)
			w.Header().Set("WebHook-Allowed-Origin", "*")
			http.Redirect(w, r, target.URL+"/hook", http.StatusTemporaryRedirect)
		})
		sub := h.subscribe(rc.URL)
		h.update(sub, subscribers.Settings{Format: &format})
		_, err := c.Verify(t.Context(), h.company, sub.UUID)
		if reason := reasonOf(t, err); reason != "http_3xx (status 307)" || asked.Load() != method || rc.count() != 1 {
			t.Errorf("%s: %v, asked %d times, by %v", format, err, rc.count(), asked.Load())
		}
		if n := target.count(); n != 0 {
			t.Errorf("%s: %d requests after the redirect", format, n)
		}
	}
}

// A company challenges a host five times at once, all companies together six times, whoever asks, and whichever replica.
func TestChallengesOfAHostAreLimited(t *testing.T) {
	t.Parallel()
	ofTwoReplicas(t, func(t *testing.T, clients [2]redis.UniversalClient, companies ...uuid.UUID) {
		t.Helper()
		h, one := buildVerifying(t, clients[0])
		_, two := buildVerifying(t, clients[1])
		for len(companies) < 3 {
			companies = append(companies, uuid.New())
		}
		rc := receive(t, nil)
		for i, who := range []struct {
			company int
			sent    bool
		}{
			{0, true},
			{0, true},
			{0, true},
			{0, true},
			{0, true},
			{0, false},
			{0, false}, // by the other replica
			{1, true},
			{1, false},
			{2, false},
		} {
			sub := h.subscribeTo(companies[who.company], rc.URL+"/"+strings.Repeat("x", i), "PAYMENT_PAID")
			_, err := []*challenge.Challenger{one, two}[i%2].Verify(t.Context(), sub.CompanyUUID, sub.UUID)
			limited, ok := errors.AsType[*challenge.LimitError](err)
			if ok == who.sent || ok && (limited.RetryAfter <= 0 || limited.RetryAfter > time.Hour) {
				t.Errorf("challenge %d: %v", i+1, err)
			}
		}
		if n := rc.count(); n != 6 {
			t.Errorf("%d requests", n)
		}
	})
}

// A company makes 15 challenges at once, whatever the names of the hosts are.
func TestChallengesOfACompanyAreLimited(t *testing.T) {
	t.Parallel()
	h, c := verifying(t)
	for i := range 16 {
		sub := h.subscribe(fmt.Sprintf("http://127.0.0.%d:1/", i+1))
		_, err := c.Verify(t.Context(), h.company, sub.UUID)
		if _, limited := errors.AsType[*challenge.LimitError](err); limited != (i >= 15) {
			t.Errorf("challenge %d: %v", i+1, err)
		}
	}
}

func TestLimitsOfChallengesAreSettings(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		ofHost, ofCompany int
		sent              [2]int // at once, of each company
	}{
		"host":    {ofHost: 5, ofCompany: 10_000, sent: [2]int{2, 1}}, // three of all companies together
		"company": {ofHost: 10_000, ofCompany: 8, sent: [2]int{4, 4}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client := redistest.New(t)
			h, _ := buildVerifying(t, client)
			h.start()
			c := challengerWith(h, client, tt.ofHost, tt.ofCompany)
			for n, sent := range tt.sent {
				company := uuid.New()
				for i := range sent + 1 {
					sub := h.subscribeTo(company, fmt.Sprintf("http://127.0.0.1:1/%d", i), "PAYMENT_PAID")
					_, err := c.Verify(t.Context(), company, sub.UUID)
					if _, limited := errors.AsType[*challenge.LimitError](err); limited != (i == sent) {
						t.Errorf("company %d, challenge %d: %v", n+1, i+1, err)
					}
				}
			}
		})
	}
}

func TestASubscriberHasOneChallengeAtATime(t *testing.T) {
	t.Parallel()
	h, c := verifying(t)
	arrived, release := make(chan struct{}), make(chan struct{})
	rc := receive(t, func(n int, w http.ResponseWriter, r *http.Request) {
		close(arrived)
		<-release
		answering(same)(n, w, r)
	})
	sub := h.subscribe(rc.URL)
	done := make(chan error, 1)
	go func() {
		_, err := c.Verify(t.Context(), h.company, sub.UUID)
		done <- err
	}()
	<-arrived
	if _, err := c.Verify(t.Context(), h.company, sub.UUID); !errors.Is(err, challenge.ErrUnderWay) {
		t.Errorf("a second challenge: %v", err)
	}
	close(release)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// What one replica verifies, another one delivers. A subscriber has one challenge at a time in both.
func TestReplicasShareVerifications(t *testing.T) {
	t.Parallel()
	ofTwoReplicas(t, func(t *testing.T, clients [2]redis.UniversalClient, companies ...uuid.UUID) {
		t.Helper()
		delivers, _ := buildVerifying(t, clients[0])
		_, one := buildVerifying(t, clients[0])
		_, other := buildVerifying(t, clients[1])
		delivers.start()
		for _, company := range companies {
			arrived, release := make(chan struct{}), make(chan struct{})
			former := receive(t, func(n int, w http.ResponseWriter, r *http.Request) {
				if n == 1 {
					close(arrived)
					<-release
				}
				answering(same)(n, w, r)
			})
			sub := delivers.subscribeTo(company, former.URL, "PAYMENT_PAID")
			ids := delivers.emitOf(company, 1)
			delivers.reachAll(ids, sub, delivery.StatusPending)
			done := make(chan error, 1)
			go func() {
				_, err := one.Verify(t.Context(), company, sub.UUID)
				done <- err
			}()
			<-arrived
			if _, err := other.Verify(t.Context(), company, sub.UUID); !errors.Is(err, challenge.ErrUnderWay) {
				t.Errorf("a second challenge: %v", err)
			}
			close(release)
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			delivers.reachAll(ids, sub, delivery.StatusDelivered)
			if again, err := other.Verify(t.Context(), company, sub.UUID); err != nil || again.Verification.State != subscribers.StateVerified {
				t.Errorf("at the other replica: %+v, %v", again.Verification, err)
			}
			next := receive(t, answering(same))
			if _, err := other.Update(t.Context(), company, sub.UUID, subscribers.Settings{CallbackURL: &next.URL}); err != nil {
				t.Fatal(err)
			}
			delivers.reachAll(delivers.emitOf(company, 1), sub, delivery.StatusDelivered)
			if got, moved := former.count(), next.count(); got != 2 || moved != 2 { // a challenge and a delivery each
				t.Errorf("%d requests to the former URL, %d to the new one", got, moved)
			}
		}
	})
}

// An event that was read just before its subscriber was created, and is matched just after, is not sent to it either.
func TestAnEventReadBeforeItsSubscriberWaits(t *testing.T) {
	t.Parallel()
	h, _ := verifying(t)
	rc := receive(t, answering(same))
	sub := h.subscribe(rc.URL)
	listed := partition.Key(h.company, "bl:"+h.company.String())
	if n, err := h.client.SRem(t.Context(), listed, sub.UUID.String(), "!"+sub.UUID.String()).Result(); n != 2 || err != nil {
		t.Fatal(n, err) // what the owner knew of the company's subscribers when it read the event
	}
	h.idle()
	h.reachAll(h.emit(3), sub, delivery.StatusPending)
	if n := rc.count(); n != 0 {
		t.Errorf("%d requests before the challenge", n)
	}
}
