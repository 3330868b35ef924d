package client_test

import (
	"context"
	"log/slog"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"spendhook/api"
	"spendhook/api/client"
	"spendhook/auth"
	"spendhook/auth/clients"
	"spendhook/auth/keys"
	"spendhook/auth/tokens"
	"spendhook/dispatcher"
	"spendhook/dispatcher/delivery"
	"spendhook/dispatcher/feed"
	"spendhook/dispatcher/inspect"
	"spendhook/dispatcher/requests"
	"spendhook/dispatcher/webhook"
	"spendhook/dispatcher/workqueue"
	"spendhook/events/eventtype"
	"spendhook/events/history"
	"spendhook/events/operational"
	"spendhook/events/publish"
	"spendhook/events/sequence"
	"spendhook/internal/egress"
	"spendhook/internal/idempotency"
	"spendhook/internal/peer"
	"spendhook/internal/redistest"
	"spendhook/internal/requestmemory"
	"spendhook/internal/seal/sealtest"
	"spendhook/storage"
	"spendhook/storage/storagetest"
	"spendhook/subscribers"
	"spendhook/subscribers/certificate"
	"spendhook/subscribers/health"
	"spendhook/subscribers/registry"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// daemon is the handler of a daemon with everything behind it but the spend data.
type daemon struct {
	url     string
	clients *clients.Store
	company uuid.UUID
}

func startDaemon(t *testing.T) *daemon {
	t.Helper()
	db := storagetest.Open(t, storage.Options{})
	clients := clients.NewStore(db, nil)
	keys, err := keys.Open(t.Context(), keys.Options{Store: keys.Table(db), Keyring: sealtest.Keyring(), Dir: t.TempDir(), Issuer: "https://api.spendhook.test"})
	if err != nil {
		t.Fatal(err)
	}
	verifier, err := auth.NewVerifier(auth.VerifierOptions{Keys: keys, Revoked: clients.Revoked})
	if err != nil {
		t.Fatal(err)
	}
	o := startPipeline(t)
	o.Keys, o.Verifier = keys, verifier
	o.Tokens = tokens.NewEndpoint(tokens.Options{Keys: keys, Clients: clients})
	handler, err := api.New(o)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return &daemon{url: server.URL, clients: clients, company: uuid.New()}
}

// startPipeline starts everything behind the API but authentication.
func startPipeline(t *testing.T) api.Options {
	t.Helper()
	redis, logger := redistest.New(t), slog.New(slog.DiscardHandler)
	policy := delivery.Policy{Schedule: []time.Duration{time.Second}, DeadRetention: time.Hour, Retention: 7 * 24 * time.Hour, FailingAfter: 4, DisableAfter: time.Hour}
	store := history.New(history.Options{Client: redis, Retention: policy.Retention})
	subs := subscribers.NewStore(subscribers.StoreOptions{Client: redis, Keyring: sealtest.Keyring()})
	healths := health.New(health.Options{Client: redis})
	certificates := certificate.New(certificate.Options{Client: redis, Keyring: sealtest.Keyring()})
	sender := webhook.NewSender(webhook.SenderOptions{Guard: egress.New(egress.Options{}), Timeout: time.Second, ConnectTimeout: time.Second, Version: "test"})
	t.Cleanup(sender.Close)
	copies := registry.New(redis, sealtest.Keyring(), 0)
	made := requests.New(requests.Options{Logger: logger})
	d := dispatcher.New(dispatcher.Options{
		Client: redis, Events: store, Operational: operational.New(operational.Options{Client: redis, Retention: policy.Retention}), Subscribers: subs, Certificates: certificates, Health: healths, Sender: sender, Policy: policy, Replica: uuid.NewString(),
		Registry: copies, Requests: made,
		Queue: workqueue.Options{}, Logger: logger, Registerer: prometheus.NewRegistry(),
	})
	publisher := publish.New(publish.Options{Client: redis, Retention: policy.Retention, Wake: d.Queue.Wake, Owner: d.Queue})
	t.Cleanup(publisher.Close)
	if err := d.Start(t.Context(), publisher.Accept); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		d.Stop(ctx)
	})
	inspector := inspect.New(inspect.Options{Events: store, Registry: copies, Deliveries: d.Deliveries, Requests: made, Send: sender.Send})
	reader := feed.New(feed.Options{Numbers: sequence.New(redis), Events: store, Dropped: d.Deliveries.Dropped, Quarantined: d.Quarantine.Events, Registry: copies, Requests: made})
	t.Cleanup(reader.Close)
	return api.Options{
		Subscribers: subs, Registry: copies, Certificates: certificates, Health: healths, Publisher: publisher, Events: store,
		EventTypes: eventtype.NewStore(redis, nil, time.Now), Dispatcher: d, Inspector: inspector, Feed: reader,
		Idempotency: idempotency.New(redis, sealtest.Keyring(), nil),
		Peers:       peer.New(peer.Options{}), Bodies: requestmemory.NewBodies(nil, nil),
		Logger: logger,
	}
}

// credentials are those of a new client of the daemon.
func (d *daemon) credentials(t *testing.T, scopes string) *client.Credentials {
	t.Helper()
	c, secret, err := d.clients.Create(t.Context(), clients.Registration{Name: t.Name(), Company: &d.company, Scopes: strings.Fields(scopes)})
	if err != nil {
		t.Fatal(err)
	}
	return &client.Credentials{ID: c.ID, Secret: secret}
}
