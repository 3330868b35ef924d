package dispatcher

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"spendhook/dispatcher/delivery"
	"spendhook/dispatcher/delivery/attempt"
	"spendhook/dispatcher/requests"
	"spendhook/dispatcher/workqueue/quarantine"
	"spendhook/internal/partition"
	"spendhook/internal/queues"
	"spendhook/internal/redistest"
	"spendhook/internal/seal"
	"spendhook/internal/seal/sealtest"
	"spendhook/internal/secret"
	"spendhook/subscribers"
	"spendhook/subscribers/callback"
	"spendhook/subscribers/layout"
	"spendhook/subscribers/registry"
	"spendhook/subscribers/subscriberstest"
)

// A daemon without the encryption key of a subscriber's secrets sends it nothing and counts
// no failed attempt; other subscribers are not affected. With the key, it delivers.
func TestDeliveriesWaitForSecretsThatDoNotOpen(t *testing.T) {
	t.Parallel()
	client := redistest.New(t)
	storeOf := func(o *Options, keys *seal.Keyring) {
		o.Subscribers = subscribers.NewStore(subscribers.StoreOptions{
			Client: client, Keyring: keys, Policy: callback.Policy{AllowHTTP: true},
		})
		o.Registry = registry.New(client, keys, 0)
	}
	inbox, other := receive(t, nil), receive(t, nil)
	first := build(t, client, func(o *Options) { storeOf(o, sealtest.Ring("lost")) })
	sub := first.subscribe(inbox.URL)

	h := build(t, client, func(o *Options) { storeOf(o, sealtest.Ring("new")) })
	h.company = first.company
	open := h.subscribe(other.URL)
	h.start()
	ids := h.emit(3)
	for _, id := range ids {
		h.reaches(id, open, delivery.StatusDelivered)
		h.becomes(id, sub, "locked", func(d delivery.Delivery) bool { return d.Reason == delivery.ReasonLocked })
		d := h.deliveryOf(id, sub)
		if wait := time.Until(*d.NextAttemptAt()); d.Status != delivery.StatusPending || d.Count != 0 || wait < 20*time.Second || wait > time.Minute {
			t.Errorf("%s %s, %d attempts, next in %v", d.Status, d.Reason, d.Count, wait)
		}
	}
	if n := inbox.count(); n != 0 {
		t.Errorf("%d deliveries were sent without the secret", n)
	}
	result, err := h.inspector.Test(t.Context(), h.company, sub.UUID)
	if err != nil || result.Delivered || result.Attempt.Error != string(attempt.ClassLocked) || inbox.count() != 0 {
		t.Errorf("a test delivery: %+v, %v", result, err)
	}
	known, err := h.opts.Health.Of(t.Context(), h.company, sub.UUID)
	if err != nil || known[sub.UUID].ConsecutiveFailures != 0 {
		t.Errorf("health %+v, %v", known, err)
	}
	h.stop(5 * time.Second)

	both := build(t, client, func(o *Options) {
		storeOf(o, sealtest.Ring("new", "lost"))
	})
	both.company = h.company
	both.makeDue(sub, ids)
	both.start()
	for _, id := range ids {
		both.reaches(id, sub, delivery.StatusDelivered)
	}
	if got := inbox.ids(); len(got) != 3 {
		t.Errorf("received %v", got)
	}
}

// makeDue ends the waits of deliveries in their retry set, and tells the owner, which may have made them meanwhile.
func (h *harness) makeDue(sub subscribers.Subscriber, ids []string) {
	h.t.Helper()
	queue, due := queues.RetrySetKey(sub.CompanyUUID, sub.UUID), partition.Key(sub.CompanyUUID, "due")
	for _, id := range ids {
		if h.client.ZAddXX(h.t.Context(), queue, redis.Z{Member: id}).Err() != nil {
			h.t.Fatal("the retry set is not written")
		}
	}
	member := "e:" + sub.CompanyUUID.String() + "/" + sub.UUID.String()
	if err := h.client.ZAddXX(h.t.Context(), due, redis.Z{Member: member}).Err(); err != nil {
		h.t.Fatal(err)
	}
	if err := h.client.SAdd(h.t.Context(), partition.Key(sub.CompanyUUID, "told"), member).Err(); err != nil {
		h.t.Fatal(err)
	}
}

func TestDeliveriesWaitForALockedV1aKey(t *testing.T) {
	t.Parallel()
	client := redistest.New(t)
	inbox := receive(t, nil)
	h := build(t, client, func(o *Options) {
		o.Requests = requests.New(requests.Options{SignEd25519: true, Logger: o.Logger})
	})
	sub := h.subscribe(inbox.URL)
	sealed, err := sealtest.Ring("lost").Seal(make([]byte, 32), "company/"+h.company.String()+"/signing-keys")
	if err != nil {
		t.Fatal(err)
	}
	subscriberstest.Overwrite(t, client, h.company, layout.SigningKeysField, sealed)
	h.start()
	id := h.emit(1)[0]
	h.becomes(id, sub, "locked", func(d delivery.Delivery) bool { return d.Reason == delivery.ReasonLocked })
	if n := inbox.count(); n != 0 {
		t.Errorf("%d deliveries were sent without v1a", n)
	}
}

func TestCustomHeadersDoNotReplaceOurs(t *testing.T) {
	t.Parallel()
	inbox := receive(t, nil)
	h := setup(t)
	s, err := h.opts.Subscribers.Create(t.Context(), h.company, subscribers.Settings{
		Name: new("r"), CallbackURL: new(inbox.URL), Events: new([]string{"PAYMENT_PAID"}),
		Headers: map[string]*secret.Text{"authorization": new(secret.Text("Bearer hunter22")), "X-Tenant": new(secret.Text("blue"))},
	})
	if err != nil {
		t.Fatal(err)
	}
	h.reaches(h.emit(1)[0], s, delivery.StatusDelivered)
	got := inbox.got[0].header
	if got.Get("Authorization") != "Bearer hunter22" || got.Get("X-Tenant") != "blue" || got.Get("Content-Type") != "application/json" || got.Get("Idempotency-Key") != "" {
		t.Errorf("received %v", got)
	}
	if _, err := h.opts.Subscribers.Update(t.Context(), h.company, s.UUID, subscribers.Settings{
		Headers: map[string]*secret.Text{"Authorization": nil, "X-Tenant": new(secret.Text("green"))},
	}); err != nil {
		t.Fatal(err)
	}
	h.reaches(h.emit(1)[0], s, delivery.StatusDelivered)
	if got := inbox.got[1].header; got.Get("Authorization") != "" || got.Get("X-Tenant") != "green" {
		t.Errorf("received after the change %v", got)
	}
}

// Pending deliveries of a subscriber whose record is damaged, or has a value of a later release, wait and
// are not cancelled. The company's other subscribers are served.
func TestDeliveriesWaitForADamagedSubscriber(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(record string) string{
		"damaged":        func(string) string { return "{" },
		"unknown format": func(record string) string { return strings.Replace(record, "{", `{"format":"avro2",`, 1) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			deliveriesWaitForADamagedSubscriber(t, change)
		})
	}
}

func deliveriesWaitForADamagedSubscriber(t *testing.T, change func(record string) string) {
	t.Helper()
	h := build(t, redistest.New(t), func(o *Options) { o.Policy.Schedule = slices.Repeat([]time.Duration{200 * time.Millisecond}, 300) })
	h.start()
	broken, other := receive(t, status(http.StatusInternalServerError)), receive(t, nil)
	sub, good := h.subscribe(broken.URL), h.subscribe(other.URL)
	id := h.emit(1)[0]
	h.reaches(id, sub, delivery.StatusRetrying)
	record := h.client.HGet(t.Context(), layout.CompanyKey(h.company), sub.UUID.String()).Val()
	subscriberstest.Overwrite(t, h.client, h.company, sub.UUID.String(), change(record))
	d := h.becomes(id, sub, "locked", func(d delivery.Delivery) bool { return d.Reason == delivery.ReasonLocked })
	if d.Status != delivery.StatusRetrying || d.NextAttemptAt() == nil {
		t.Errorf("%s, next attempt at %v", d.Status, d.NextAttemptAt())
	}
	missed := h.emit(1)[0]
	h.reaches(missed, good, delivery.StatusDelivered)
	deliveries := partition.Key(h.company, "d:"+h.company.String()+"/"+missed)
	if !h.client.HExists(t.Context(), deliveries, "-").Val() {
		t.Error("the event that the damaged subscriber missed is compacted before it can be recovered")
	}
	quarantined, err := h.Quarantine.Has(t.Context(), quarantine.Entry{Company: h.company, Subscriber: &sub.UUID})
	if err != nil || !quarantined {
		t.Errorf("the subscriber is in the quarantine: %v, %v", quarantined, err)
	}
}
