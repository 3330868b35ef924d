package dispatcher

import (
	"fmt"
	"io"
	"net/http"
	"testing"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/dispatcher/delivery"
	"spendhook/dispatcher/webhook/signature"
	"spendhook/internal/redistest"
	"spendhook/internal/secret"
	"spendhook/subscribers"
	"spendhook/subscribers/callback"
)

// A token endpoint that does not answer delays only its subscriber, and is asked once for all its deliveries.
func TestATokenEndpointDelaysOnlyItsSubscriber(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	issuer := receive(t, func(_ int, w http.ResponseWriter, _ *http.Request) {
		<-release
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"access_token":"t-1","expires_in":3600}`)
	})
	inbox, other := receive(t, nil), receive(t, nil)
	h := build(t, redistest.New(t), nil)
	waiting, err := h.opts.Subscribers.Create(t.Context(), h.company, subscribers.Settings{
		Name: new("receiver"), CallbackURL: &inbox.URL, Events: new([]string{"PAYMENT_PAID"}),
		OAuth: &callback.OAuthChange{TokenURL: &issuer.URL, ClientID: new("us"), ClientSecret: new(secret.Text("hunter22"))},
	})
	if err != nil {
		t.Fatal(err)
	}
	open := h.subscribe(other.URL)
	h.start()
	ids := h.emit(5)
	for _, id := range ids {
		h.reaches(id, open, delivery.StatusDelivered)
	}
	if n := inbox.count(); n != 0 {
		t.Errorf("%d deliveries without a token", n)
	}
	close(release)
	for _, id := range ids {
		h.reaches(id, waiting, delivery.StatusDelivered)
		if d := h.deliveryOf(id, waiting); d.Attempts[0].Headers(id)["Authorization"] != "[redacted]" {
			t.Errorf("the log of attempts: %v", d.Attempts[0].Headers(id))
		}
	}
	inbox.mu.Lock()
	defer inbox.mu.Unlock()
	for _, got := range inbox.got {
		if got.header.Get("Authorization") != "Bearer t-1" {
			t.Errorf("got %q", got.header.Get("Authorization"))
		}
	}
	if n := issuer.count(); n != 1 {
		t.Errorf("asked %d times", n)
	}
}

// Each replica fetches a token of its own and keeps it, and fetches another one once any replica has changed the secret.
func TestReplicasFetchTokensOfTheirOwn(t *testing.T) {
	t.Parallel()
	ofTwoReplicas(t, replicasFetchTokens)
}

// ofTwoReplicas runs a test with the clients of two replicas, of one server, and of a Cluster with a company on each shard.
func ofTwoReplicas(t *testing.T, test func(t *testing.T, clients [2]redis.UniversalClient, companies ...uuid.UUID)) {
	t.Helper()
	t.Run("one server", func(t *testing.T) {
		t.Parallel()
		client := redistest.New(t)
		test(t, [2]redis.UniversalClient{client, client}, uuid.New())
	})
	t.Run("Cluster", func(t *testing.T) {
		t.Parallel()
		servers := redistest.Cluster(t, 2)
		var clients [2]redis.UniversalClient
		for i := range clients {
			clients[i] = servers[0].ClusterClient()
		}
		test(t, clients, companyAt(t, clients[0], servers[0]), companyAt(t, clients[0], servers[1]))
	})
}

func replicasFetchTokens(t *testing.T, clients [2]redis.UniversalClient, companies ...uuid.UUID) {
	t.Helper()
	first, second := build(t, clients[0], nil), build(t, clients[1], nil)
	second.seq = 1000
	first.start()
	var all []*tokened
	for _, company := range companies {
		all = append(all, subscribeWithOAuth(t, first, company, "secret-a"))
	}
	for _, s := range all { // the first replica delivers, the second one sends tests
		s.delivers(first, "secret-a/1")
		s.tests(second, "secret-a/2")
		s.delivers(first, "secret-a/1")
		s.tests(second, "secret-a/2")
		s.change(second, "secret-b")
		s.delivers(first, "secret-b/3")
		s.tests(second, "secret-b/4")
		s.change(first, "secret-c")
		s.tests(second, "secret-c/5")
		s.delivers(first, "secret-c/6")
	}
	first.stop(patience)
	second.start()
	for _, s := range all { // the second one delivers
		s.delivers(second, "secret-c/5")
		s.change(first, "secret-d")
		s.delivers(second, "secret-d/7")
	}
}

// tokened is a subscriber with oauth. A token is the secret that it was issued for, and the number of the request.
type tokened struct {
	sub   subscribers.Subscriber
	inbox *inbox
}

func subscribeWithOAuth(t *testing.T, h *harness, company uuid.UUID, clientSecret secret.Text) *tokened {
	t.Helper()
	issuer := receive(t, func(n int, w http.ResponseWriter, r *http.Request) {
		_, password, _ := r.BasicAuth()
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, `{"access_token":"%s/%d","expires_in":3600}`, password, n)
	})
	s := &tokened{inbox: receive(t, nil)}
	var err error
	if s.sub, err = h.service.Create(t.Context(), company, subscribers.Settings{
		Name: new("receiver"), CallbackURL: &s.inbox.URL, Events: new([]string{"PAYMENT_PAID"}),
		OAuth: &callback.OAuthChange{TokenURL: &issuer.URL, ClientID: new("us"), ClientSecret: &clientSecret},
	}); err != nil {
		t.Fatal(err)
	}
	return s
}

// change changes the secret, as the API of a replica does.
func (s *tokened) change(h *harness, clientSecret secret.Text) {
	h.t.Helper()
	h.update(s.sub, subscribers.Settings{OAuth: &callback.OAuthChange{ClientSecret: &clientSecret}})
}

// delivers checks the token of a delivery.
func (s *tokened) delivers(h *harness, token string) {
	h.t.Helper()
	id := h.emitOf(s.sub.CompanyUUID, 1)[0]
	h.reaches(id, s.sub, delivery.StatusDelivered)
	s.got(h, id, token)
}

// tests checks the token of a test event.
func (s *tokened) tests(h *harness, token string) {
	h.t.Helper()
	result, err := h.inspector.Test(h.t.Context(), s.sub.CompanyUUID, s.sub.UUID)
	if err != nil || !result.Delivered {
		h.t.Fatal(result, err)
	}
	s.got(h, result.EventID, token)
}

func (s *tokened) got(h *harness, id, token string) {
	h.t.Helper()
	s.inbox.mu.Lock()
	defer s.inbox.mu.Unlock()
	last := s.inbox.got[len(s.inbox.got)-1].header
	if got := last.Get("Authorization"); last.Get(signature.HeaderID) != id || got != "Bearer "+token {
		h.t.Errorf("%s came with %q, want %q", last.Get(signature.HeaderID), got, token)
	}
}
