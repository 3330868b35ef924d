package api

import (
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"

	"spendhook/api/gen"
	"spendhook/dispatcher/challenge"
	"spendhook/internal/egress"
	"spendhook/internal/redistest"
	"spendhook/internal/seal/sealtest"
	"spendhook/subscribers"
	"spendhook/subscribers/callback"
)

// answering is a receiver that answers challenges, and all else with the status.
func answering(t *testing.T, status int) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if text := challenge.Text(body); text != "" {
			_, _ = io.WriteString(w, text)
			return
		}
		w.WriteHeader(status)
	}))
	t.Cleanup(s.Close)
	return s
}

// verifying is an API where callback URLs must be verified, and the Redis of its subscribers.
func verifying(t *testing.T) (*harness, redis.UniversalClient) {
	t.Helper()
	client := redistest.New(t)
	return setupOn(t, redistest.New(t), func(o *Options) {
		domain := domainWith(t, client, slog.New(slog.DiscardHandler), egress.New(egress.Options{AllowLoopback: true}),
			subscribers.StoreOptions{Policy: callback.Policy{AllowHTTP: true}, Challenge: subscribers.ChallengeNew})
		o.Subscribers, o.Registry, o.Health, o.Certificates = domain.Subscribers, domain.Registry, domain.Health, domain.Certificates
		o.Dispatcher, o.Inspector, o.Challenger, o.Publisher, o.Events = domain.Dispatcher, domain.Inspector, domain.Challenger, domain.Publisher, domain.Events
	}), client
}

// A challenge that cannot be signed is not sent, and says nothing about the receiver.
func TestASubscriberWithLockedSecretsIsNotChallenged(t *testing.T) {
	t.Parallel()
	h, client := verifying(t)
	var requests atomic.Int64
	receiver := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { requests.Add(1) }))
	t.Cleanup(receiver.Close)
	elsewhere := subscribers.NewStore(subscribers.StoreOptions{
		Client: client, Keyring: sealtest.Ring("lost"), Policy: callback.Policy{AllowHTTP: true}, Challenge: subscribers.ChallengeNew,
	})
	sub, err := elsewhere.Create(t.Context(), h.company, subscribers.Settings{Name: new("n"), CallbackURL: &receiver.URL, Events: new([]string{"A"})})
	if err != nil {
		t.Fatal(err)
	}
	path := "/api/v1/subscribers/" + sub.UUID.String()
	h.call("POST", path+"/verify", "").want(http.StatusServiceUnavailable, "SECRETS_LOCKED")
	if got := as[gen.Subscriber](h.call("GET", path, "").want(http.StatusOK)).Verification; got.State != "unverified" || got.ChallengedAt != nil || requests.Load() != 0 {
		t.Errorf("%+v, after %d requests", got, requests.Load())
	}
}

// The way of a subscriber whose URL must be verified, by the API.
func TestASubscriberIsVerified(t *testing.T) {
	t.Parallel()
	h, _ := verifying(t)
	good, silent := answering(t, http.StatusNoContent), httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(silent.Close)
	made := as[gen.Subscriber](h.call("POST", "/api/v1/subscribers", `{"name":"A","callbackUrl":"`+silent.URL+`","events":["A"]}`).want(http.StatusCreated))
	if made.Verification == nil || made.Verification.State != "unverified" {
		t.Fatalf("created: %+v", made.Verification)
	}
	path := "/api/v1/subscribers/" + made.UUID.String()
	h.call("POST", path+"/resume", "").want(http.StatusOK) // it is not paused, and goes on waiting
	h.call("POST", path+"/test", "").want(http.StatusConflict, "SUBSCRIBER_UNVERIFIED")
	h.call("POST", path+"/verify", "").want(http.StatusUnprocessableEntity, "CHALLENGE_FAILED")
	if got := as[gen.Subscriber](h.call("GET", path, "").want(http.StatusOK)).Verification; got.State != "failed" || got.Reason == nil || *got.Reason != "the answer does not repeat the challenge" {
		t.Errorf("after a failure: %+v", got)
	}
	h.call("PATCH", path, `{"callbackUrl":"`+good.URL+`"}`).want(http.StatusOK) // nothing is sent to it yet
	if got := as[gen.Subscriber](h.call("POST", path+"/verify", "").want(http.StatusOK)); got.Verification.State != "verified" || got.Paused {
		t.Errorf("verified: %+v, paused %t", got.Verification, got.Paused)
	}
	h.call("POST", path+"/test", "").want(http.StatusOK)
	h.call("PATCH", path, `{"callbackUrl":"`+silent.URL+`"}`).want(http.StatusUnprocessableEntity, "CHALLENGE_FAILED")
	if got := as[gen.Subscriber](h.call("GET", path, "").want(http.StatusOK)); got.CallbackURL != good.URL+"/" && got.CallbackURL != good.URL {
		t.Errorf("moved to %s", got.CallbackURL)
	}
	h.call("PATCH", path, `{"callbackUrl":"`+good.URL+`/other"}`).want(http.StatusOK)
	failures := 2
	a := h.call("PATCH", path, `{"callbackUrl":"`+silent.URL+`"}`) // the fifth challenge of the host of both, 127.0.0.1
	for ; a.Code == http.StatusUnprocessableEntity; failures++ {   // another one is due after ten minutes
		a = h.call("PATCH", path, `{"callbackUrl":"`+silent.URL+`"}`)
	}
	a.want(http.StatusTooManyRequests, "TOO_MANY_CHALLENGES")
	if a.Header().Get("Retry-After") == "" {
		t.Error("no Retry-After")
	}
	failed := 0
	for _, e := range h.audited("action=" + challenge.Action) {
		if e.Detail != nil && strings.Contains(*e.Detail, "not verified: the answer does not repeat") {
			failed++
		}
	}
	if failed != failures {
		t.Errorf("%d failed challenges in the audit log, want %d", failed, failures)
	}
}
