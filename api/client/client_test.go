package client_test

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"spendhook/api/client"
)

// The example of the documentation works with a daemon.
func TestExample(t *testing.T) { //nolint:paralleltest // it sets the environment
	d := startDaemon(t)
	credentials := d.credentials(t, "events:write events:read")
	t.Setenv("SPENDHOOK_URL", d.url)
	t.Setenv("SPENDHOOK_CLIENT_ID", credentials.ID)
	t.Setenv("SPENDHOOK_CLIENT_SECRET", credentials.Secret)
	Example()
	api := open(t, d.url, client.Options{Credentials: credentials})
	event, err := api.GetEventWithResponse(t.Context(), "evt_1", &client.GetEventParams{})
	if err != nil || event.JSON200.Event != "PAYMENT_PAID" || string(event.JSON200.Metadata) != `{"amount":"12.50"}` {
		t.Errorf("%+v, %v", event, err)
	}
}

func TestErrorsOfADaemon(t *testing.T) {
	t.Parallel()
	d := startDaemon(t)
	credentials := d.credentials(t, "subscribers:write subscribers:read")
	api := open(t, d.url, client.Options{Credentials: credentials})
	_, err := api.GetSubscriberWithResponse(t.Context(), uuid.New(), &client.GetSubscriberParams{})
	if e := asError(t, err); e.Status != http.StatusNotFound || e.RequestID == "" || !strings.HasSuffix(e.Type, strings.ToLower(e.Code)) {
		t.Errorf("%+v", e)
	}
	_, err = api.CreateSubscriberWithResponse(t.Context(), &client.CreateSubscriberParams{}, client.SubscriberCreate{Name: "x", CallbackURL: "https://books.example.com/hooks", Events: []string{"not a type"}})
	if e := asError(t, err); e.Status != http.StatusBadRequest || len(e.Errors) == 0 || e.Errors[0].Field != "/events/0" {
		t.Errorf("%+v", e)
	}
	_, err = api.ListEventsWithResponse(t.Context(), &client.ListEventsParams{})
	if e := asError(t, err); e.Code != "INSUFFICIENT_SCOPE" {
		t.Errorf("%+v", e)
	}
	wrong := open(t, d.url, client.Options{Credentials: &client.Credentials{ID: credentials.ID, Secret: "wrong"}})
	_, err = wrong.ListSubscribersWithResponse(t.Context(), &client.ListSubscribersParams{})
	if e := asError(t, err); e.Status != http.StatusUnauthorized || e.Code != "invalid_client" || e.Detail == "" {
		t.Errorf("%+v", e)
	}
}

// script is a server that answers as it is told to, and remembers requests.
type script struct {
	*httptest.Server
	mu      sync.Mutex
	answers []string // "status[ header: value]", or "cut" to close the connection; beyond the last 200
	tokens  int
	got     []http.Header
	bodies  []string
}

func newScript(t *testing.T, answers ...string) *script {
	t.Helper()
	s := &script{answers: answers}
	s.Server = httptest.NewServer(s)
	t.Cleanup(s.Close)
	return s
}

func (s *script) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	if r.URL.Path == "/oauth/token" {
		s.tokens++
		_, _ = io.WriteString(w, `{"access_token":"token-`+strings.Repeat("I", s.tokens)+`","token_type":"Bearer","expires_in":100,"scope":""}`)
		return
	}
	body, _ := io.ReadAll(r.Body)
	s.got, s.bodies = append(s.got, r.Header), append(s.bodies, string(body))
	answer := "200"
	if len(s.answers) > 0 {
		answer, s.answers = s.answers[0], s.answers[1:]
	}
	if answer == "cut" {
		panic(http.ErrAbortHandler)
	}
	status, header, _ := strings.Cut(answer, " ")
	if name, value, ok := strings.Cut(header, ": "); ok {
		w.Header().Set(name, value)
	}
	w.WriteHeader(map[string]int{"200": 200, "202": 202, "302": 302, "400": 400, "401": 401, "409": 409, "429": 429, "502": 502, "503": 503}[status])
	if status == "409" {
		_, _ = io.WriteString(w, `{"code":"IDEMPOTENCY_KEY_IN_PROGRESS"}`)
		return
	}
	_, _ = io.WriteString(w, `{}`)
}

func TestRetries(t *testing.T) {
	t.Parallel()
	get := func(api *client.ClientWithResponses) error {
		_, err := api.ListEventTypesWithResponse(t.Context())
		return err
	}
	post := func(api *client.ClientWithResponses) error {
		_, err := api.CancelCardsWithResponse(t.Context(), &client.CancelCardsParams{}, client.CardsCancel{Uuids: []uuid.UUID{uuid.New()}})
		return err
	}
	patch := func(api *client.ClientWithResponses) error {
		_, err := api.LockCardWithResponse(t.Context(), uuid.New(), &client.LockCardParams{}, client.CardLock{Lock: true})
		return err
	}
	for name, c := range map[string]struct {
		do       func(*client.ClientWithResponses) error
		answers  []string
		retryFor time.Duration
		asked    int
		fails    bool
	}{
		"GET":                             {get, []string{"503", "502", "cut"}, time.Minute, 4, false},
		"POST":                            {post, []string{"503", "cut", "409"}, time.Minute, 4, false},
		"PATCH is not safe":               {patch, []string{"503"}, time.Minute, 1, true},
		"PATCH that was rate-limited":     {patch, []string{"429"}, time.Minute, 2, false},
		"Retry-After":                     {get, []string{"429 Retry-After: 1"}, time.Minute, 2, false},
		"Retry-After beyond what is left": {get, []string{"429 Retry-After: 3600"}, time.Minute, 1, true},
		"none":                            {get, []string{"503"}, -1, 1, true},
		"refused":                         {get, []string{"400"}, time.Minute, 1, true},
		"a redirect":                      {get, []string{"302 Location: /elsewhere"}, time.Minute, 1, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newScript(t, c.answers...)
			err := c.do(open(t, s.URL, client.Options{Token: "t", RetryFor: c.retryFor}))
			if (err != nil) != c.fails || len(s.got) != c.asked {
				t.Fatalf("asked %d times, want %d: %v", len(s.got), c.asked, err)
			}
			for i := range s.got {
				if s.got[i].Get("Idempotency-Key") != s.got[0].Get("Idempotency-Key") || s.bodies[i] != s.bodies[0] {
					t.Errorf("attempt %d is another request", i+1)
				}
			}
		})
	}
}

func TestRetryAfterIsInTheError(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 20, 19, 0, 0, 0, time.UTC)
	for header, want := range map[string]time.Duration{
		"3600": time.Hour, "Fri, 20 Nov 2026 20:00:00 GMT": time.Hour, "Fri, 20 Nov 2026 18:00:00 GMT": 0, "-1": 0, "soon": 0,
	} {
		s := newScript(t, "400 Retry-After: "+header)
		_, err := open(t, s.URL, client.Options{Now: func() time.Time { return now }}).ListEventTypesWithResponse(t.Context())
		if e := asError(t, err); e.RetryAfter != want || e.Code != "HTTP_ERROR" {
			t.Errorf("%s: %+v", header, e)
		}
	}
}

// A token is asked for once, again shortly before its end, and once when it is refused.
func TestATokenIsAskedForOnce(t *testing.T) {
	t.Parallel()
	s := newScript(t)
	var mu sync.Mutex
	now := time.Date(2026, 11, 20, 19, 0, 0, 0, time.UTC)
	var kept []client.Token
	credentials := client.Credentials{ID: "an id", Secret: "a:secret", Keep: func(token client.Token) { kept = append(kept, token) }}
	options := client.Options{Credentials: &credentials, Now: func() time.Time { mu.Lock(); defer mu.Unlock(); return now }}
	api := open(t, s.URL, options)
	ask := func(tokens int, bearer string) {
		t.Helper()
		_, err := api.ListEventTypesWithResponse(t.Context())
		if got := s.got[len(s.got)-1].Get("Authorization"); err != nil || s.tokens != tokens || got != "Bearer "+bearer {
			t.Errorf("%s after %d tokens, want %s after %d: %v", got, s.tokens, bearer, tokens, err)
		}
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() { _, _ = api.ListEventTypesWithResponse(t.Context()) })
	}
	wg.Wait()
	ask(1, "token-I")
	mu.Lock()
	now = now.Add(91 * time.Second)
	mu.Unlock()
	ask(2, "token-II")
	s.answers = []string{"401"}
	ask(3, "token-III")
	s.answers = []string{"401", "401"}
	_, err := api.ListEventTypesWithResponse(t.Context())
	if e := asError(t, err); e.Status != http.StatusUnauthorized || s.tokens != 4 {
		t.Errorf("%v after %d tokens", e, s.tokens)
	}
	if len(kept) != 4 || kept[3].Access != "token-IIII" || !kept[3].Expires.Equal(now.Add(100*time.Second)) {
		t.Errorf("kept %+v", kept)
	}
	credentials.Token = kept[3]
	api = open(t, s.URL, options)
	ask(4, "token-IIII")
}

// An answer that is not from a Spendhook daemon is an error.
func TestAnAnswerOfAnotherServerIsAnError(t *testing.T) {
	t.Parallel()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>") }))
	t.Cleanup(s.Close)
	_, err := open(t, s.URL, client.Options{}).ListEventTypesWithResponse(t.Context())
	if e := asError(t, err); e.Status != http.StatusOK {
		t.Errorf("%+v", e)
	}
}

func TestOptions(t *testing.T) {
	t.Parallel()
	for _, address := range []string{"", "localhost:8080", "ftp://localhost", "http://", "://"} {
		if _, err := client.New(address, client.Options{}); err == nil {
			t.Errorf("%q is taken", address)
		}
	}
	if _, err := client.New("http://localhost", client.Options{Token: "t", Credentials: &client.Credentials{}}); err == nil {
		t.Error("a token and credentials are taken")
	}
}

func open(t *testing.T, url string, o client.Options) *client.ClientWithResponses {
	t.Helper()
	api, err := client.New(url, o)
	if err != nil {
		t.Fatal(err)
	}
	return api
}

func asError(t *testing.T, err error) *client.Error {
	t.Helper()
	e, ok := errors.AsType[*client.Error](err)
	if !ok {
		t.Fatalf("%v is no *Error", err)
	}
	return e
}
