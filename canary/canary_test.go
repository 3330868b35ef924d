package canary_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"spendhook/audit"
	"spendhook/canary"
	"spendhook/dispatcher/webhook/signature"
	"spendhook/events"
	"spendhook/events/history"
	"spendhook/events/publish"
	"spendhook/internal/redistest"
	"spendhook/internal/secret"
	"spendhook/subscribers"
	"spendhook/subscribers/callback"
	"spendhook/subscribers/health"
	"spendhook/subscribers/registry"
	"spendhook/subscribers/subscriberstest"
)

const url = "https://hooks.example.com/canary"

func TestMain(m *testing.M) { redistest.Main(m) }

// bundle is replicas with a canary on one Redis. No daemon delivers their events.
type bundle struct {
	*subscriberstest.Bundle

	t        *testing.T
	registry *registry.Registry
	owner    int   // the replica that emits
	broken   error // of Accept
	canaries []*canary.Canary
	metrics  []*prometheus.Registry
	emitted  []events.Event
	audited  []string // actor, action and target of each entry
}

func setup(t *testing.T, replicas int, o subscribers.StoreOptions) *bundle {
	t.Helper()
	b := &bundle{Bundle: subscriberstest.New(t, o), t: t}
	b.registry = b.Registry()
	b.start(replicas, url)
	return b
}

// start replaces the replicas, as a restart does.
func (b *bundle) start(replicas int, at string) {
	b.t.Helper()
	b.canaries, b.metrics = nil, nil
	p := publish.New(publish.Options{Client: b.Redis, Retention: time.Hour, Now: b.Now, Wake: func(context.Context, []int) {}})
	b.t.Cleanup(p.Close)
	accept := func(ctx context.Context, batch []events.Event) ([]publish.Result, error) {
		b.emitted = append(b.emitted, batch...)
		if b.broken != nil {
			return nil, b.broken
		}
		return p.Accept(ctx, batch)
	}
	for i := range replicas {
		reg := prometheus.NewRegistry()
		c, err := canary.New(canary.Options{
			Company: b.Company, URL: at, Subscribers: b.Store, Registry: b.registry, Health: health.New(health.Options{Client: b.Redis}), Accept: accept,
			Owns: func() bool { return b.owner == i }, Registerer: reg, Now: b.Now,
			Audit: func(e audit.Entry) {
				b.audited = append(b.audited, fmt.Sprintf("%s/%s %s %s of %s", e.Actor.Kind, e.Actor.Subject, e.Action, e.Target.IDs[0], e.CompanyUUID))
			},
		})
		if err != nil {
			b.t.Fatal(err)
		}
		b.canaries, b.metrics = append(b.canaries, c), append(b.metrics, reg)
	}
}

func (b *bundle) beat() {
	for _, c := range b.canaries {
		canary.Beat(c, b.t.Context())
	}
}

// only returns the one subscriber of the company.
func (b *bundle) only() *subscribers.Subscriber {
	b.t.Helper()
	all, err := b.registry.Current(b.t.Context(), b.Company)
	if err != nil || len(all) != 1 {
		b.t.Fatalf("%d subscribers, %v", len(all), err)
	}
	return all[0]
}

// accepted lists the ids of the accepted events, oldest first.
func (b *bundle) accepted() (ids []string) {
	b.t.Helper()
	page, err := history.New(history.Options{Client: b.Redis, Retention: time.Hour, Now: b.Now}).List(b.t.Context(), history.Filter{Company: &b.Company})
	if err != nil {
		b.t.Fatal(err)
	}
	for _, e := range page.Items {
		ids = append(ids, e.ID)
	}
	slices.Sort(ids)
	return ids
}

func (b *bundle) value(replica int, name string) float64 {
	b.t.Helper()
	families, err := b.metrics[replica].Gather()
	if err != nil {
		b.t.Fatal(err)
	}
	for _, f := range families {
		if m := f.GetMetric()[0]; f.GetName() == "spendhook_canary_"+name {
			return m.GetGauge().GetValue() + m.GetCounter().GetValue() + m.GetHistogram().GetSampleSum()
		}
	}
	b.t.Fatalf("no metric %s", name)
	return 0
}

// message signs a body as deliveries are.
func (b *bundle) message(secret, id, body string) *http.Request {
	b.t.Helper()
	at := b.Now().Unix()
	sum, err := signature.V1(secret, id, at, []byte(body))
	if err != nil {
		b.t.Fatal(err)
	}
	r := httptest.NewRequest(http.MethodPost, "/canary", strings.NewReader(body))
	r.Header.Set(signature.HeaderID, id)
	r.Header.Set(signature.HeaderTimestamp, strconv.FormatInt(at, 10))
	r.Header.Set(signature.HeaderSignature, sum)
	return r
}

func (b *bundle) delivery(e events.Event) *http.Request {
	b.t.Helper()
	body, err := e.Body()
	if err != nil {
		b.t.Fatal(err)
	}
	return b.message(b.only().Secrets[0].Key.Reveal(), e.ID, string(body))
}

func (b *bundle) answer(replica int, r *http.Request) int {
	w := httptest.NewRecorder()
	b.canaries[replica].ServeHTTP(w, r)
	return w.Code
}

func (b *bundle) wantAccepted(want ...string) {
	b.t.Helper()
	if got := b.accepted(); !slices.Equal(got, want) {
		b.t.Errorf("accepted %v, want %v", got, want)
	}
}

// Whoever owns the partition emits, once a minute. A change of the owner and a restart within a minute add nothing.
func TestOneEventAMinute(t *testing.T) {
	t.Parallel()
	b := setup(t, 2, subscribers.StoreOptions{})
	for range 3 {
		b.beat()
	}
	b.wantAccepted("spendhook-canary-20260301T1200")
	if len(b.emitted) != 1 {
		t.Errorf("emitted %d times in a minute", len(b.emitted))
	}
	b.owner = 1
	b.Advance(10 * time.Second)
	b.beat()
	b.start(2, url)
	b.beat()
	b.wantAccepted("spendhook-canary-20260301T1200")
	if b.value(1, "failures_total") != 0 {
		t.Error("an event that was emitted before counts as a failure")
	}
	b.Advance(time.Minute)
	b.beat()
	b.wantAccepted("spendhook-canary-20260301T1200", "spendhook-canary-20260301T1201")
}

// A subscriber that somebody else has created at its URL waits for no challenge.
func TestAnUnverifiedSubscriberIsVerified(t *testing.T) {
	t.Parallel()
	b := setup(t, 1, subscribers.StoreOptions{Challenge: subscribers.ChallengeNew})
	theirs, err := b.Store.Create(t.Context(), b.Company, subscribers.Settings{Name: new("theirs"), CallbackURL: new(url), Events: new([]string{"OTHER"})})
	if err != nil || !theirs.Unverified() {
		t.Fatalf("%+v, %v", theirs, err)
	}
	b.beat()
	if mine := b.only(); mine.UUID != theirs.UUID || mine.Unverified() || !mine.Wants(canary.EventType) {
		t.Errorf("%+v", mine)
	}
}

// The subscriber that somebody has deleted is created again, and one that was changed is restored.
func TestTheSubscriberIsRestored(t *testing.T) {
	t.Parallel()
	b := setup(t, 1, subscribers.StoreOptions{})
	b.beat()
	first := b.only()
	if first.CallbackURL != url || !slices.Equal(first.Events, []string{canary.EventType}) {
		t.Errorf("created %+v", first)
	}
	if err := b.Store.Delete(t.Context(), b.Company, first.UUID); err != nil {
		t.Fatal(err)
	}
	b.Advance(time.Minute)
	b.beat()
	second := b.only()
	if second.UUID == first.UUID || second.CallbackURL != url {
		t.Errorf("created again: %+v", second)
	}
	_, err := b.Store.Update(t.Context(), b.Company, second.UUID, subscribers.Settings{
		Name: new("mine"), Enabled: new(false), Events: new([]string{"OTHER"}), Filter: new("false"), Transform: new(`{"a": id}`), Ordered: new(true),
		Headers: map[string]*secret.Text{"X-Key": new(secret.Text("k"))},
		OAuth:   &callback.OAuthChange{TokenURL: new("https://login.example.com/token"), ClientID: new("c"), ClientSecret: new(secret.Text("s"))},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Store.Pause(t.Context(), b.Company, second.UUID); err != nil {
		t.Fatal(err)
	}
	b.Advance(time.Minute)
	b.beat()
	third := b.only()
	if third.UUID != second.UUID || third.Name != second.Name || !third.Enabled || !third.Wants(canary.EventType) || third.Filter+third.Transform != "" || third.Ordered || third.OAuth != nil || len(third.Headers) > 0 {
		t.Errorf("restored: %+v", third)
	}
	if states, err := health.New(health.Options{Client: b.Redis}).Of(t.Context(), b.Company, third.UUID); err != nil || states[third.UUID].PausedAt != nil {
		t.Errorf("its pause goes on: %+v, %v", states, err)
	}
	b.Advance(time.Minute)
	b.beat()
	if b.only().Revision != third.Revision {
		t.Error("the subscriber was written although nothing was to be restored")
	}
	want := []string{
		"service/canary subscriber.create " + first.UUID.String() + " of " + b.Company.String(),
		"service/canary subscriber.create " + second.UUID.String() + " of " + b.Company.String(),
		"service/canary subscriber.update " + second.UUID.String() + " of " + b.Company.String(),
		"service/canary subscriber.resume " + second.UUID.String() + " of " + b.Company.String(),
	}
	if !slices.Equal(b.audited, want) {
		t.Errorf("audited: %q", b.audited)
	}
}

// With another public_url, the same subscriber moves. It needs no challenge.
func TestTheSubscriberMovesWithTheService(t *testing.T) {
	t.Parallel()
	b := setup(t, 1, subscribers.StoreOptions{Challenge: subscribers.ChallengeAll})
	b.beat()
	if _, err := b.Store.ApplyChallenge(t.Context()); err != nil {
		t.Fatal(err)
	}
	first := b.only()
	b.start(1, "https://moved.example.com/canary")
	b.Advance(time.Minute)
	b.beat()
	moved := b.only()
	if first.Unverified() || moved.Unverified() || moved.UUID != first.UUID || moved.CallbackURL != "https://moved.example.com/canary" {
		t.Errorf("%+v, moved %+v", first, moved)
	}
}

func TestArrivalIsMeasured(t *testing.T) {
	t.Parallel()
	b := setup(t, 2, subscribers.StoreOptions{})
	b.beat()
	b.Advance(1500 * time.Millisecond)
	for range 2 {
		if code := b.answer(1, b.delivery(b.emitted[0])); code != http.StatusNoContent {
			t.Fatalf("answered %d", code)
		}
	}
	at := float64(b.Now().UnixMilli()) / 1000
	if got, latency := b.value(1, "last_arrival_timestamp_seconds"), b.value(1, "latency_seconds"); got != at || latency != 3 {
		t.Errorf("arrived at %v after %v, want %v after 1.5 s twice", got, latency, at)
	}
	if got := b.value(0, "last_arrival_timestamp_seconds"); got != 0 {
		t.Errorf("another replica says %v", got)
	}
	if problems, err := testutil.GatherAndLint(b.metrics[0]); err != nil || len(problems) > 0 {
		t.Errorf("metrics: %v, %v", problems, err)
	}
}

// Only a delivery of the canary's own event moves the gauge.
func TestForgeriesAreRefused(t *testing.T) {
	t.Parallel()
	b := setup(t, 1, subscribers.StoreOptions{})
	b.beat()
	e, secret := b.emitted[0], b.only().Secrets[0].Key.Reveal()
	unsigned, tampered := b.delivery(e), b.delivery(e)
	unsigned.Header.Del(signature.HeaderSignature)
	tampered.Header.Set(signature.HeaderID, "another")
	large := b.message(secret, e.ID, strings.Repeat(" ", 1<<20))
	forged := b.message("whsec_"+strings.Repeat("A", 40), e.ID, "{}")
	own := e
	own.ID = "test-1"
	for what, tc := range map[string]struct {
		request *http.Request
		want    int
	}{
		"no signature":             {unsigned, http.StatusUnauthorized},
		"another id":               {tampered, http.StatusUnauthorized},
		"another secret":           {forged, http.StatusUnauthorized},
		"a megabyte":               {large, http.StatusRequestEntityTooLarge},
		"signed, of another event": {b.delivery(own), http.StatusNoContent},
		"signed, but not an event": {b.message(secret, e.ID, "[]"), http.StatusNoContent},
	} {
		if got := b.answer(0, tc.request); got != tc.want {
			t.Errorf("%s: answered %d, want %d", what, got, tc.want)
		}
	}
	late := b.delivery(e)
	b.Advance(6 * time.Minute)
	if got := b.answer(0, late); got != http.StatusUnauthorized {
		t.Errorf("repeated 6 minutes later: answered %d", got)
	}
	if got := b.value(0, "last_arrival_timestamp_seconds"); got != 0 {
		t.Errorf("the gauge was moved to %v", got)
	}
	present := b.delivery(e)
	if err := b.Store.Delete(t.Context(), b.Company, b.only().UUID); err != nil {
		t.Fatal(err)
	}
	if got := b.answer(0, present); got != http.StatusUnauthorized {
		t.Errorf("without a subscriber: answered %d", got)
	}
}

// A delivery that was signed with a secret that was rotated since counts as long as receivers accept it.
func TestSecretsRotate(t *testing.T) {
	t.Parallel()
	b := setup(t, 1, subscribers.StoreOptions{SecretOverlap: time.Minute})
	b.beat()
	before := b.delivery(b.emitted[0])
	if _, err := b.Store.RotateSecret(t.Context(), b.Company, b.only().UUID); err != nil {
		t.Fatal(err)
	}
	again := before.Clone(t.Context())
	again.Body = b.delivery(b.emitted[0]).Body
	if got := b.answer(0, before); got != http.StatusNoContent {
		t.Errorf("with the former secret: answered %d", got)
	}
	b.Advance(time.Minute)
	if got := b.answer(0, again); got != http.StatusUnauthorized {
		t.Errorf("with an expired secret: answered %d", got)
	}
}

func TestFailuresAreCounted(t *testing.T) {
	t.Parallel()
	b := setup(t, 1, subscribers.StoreOptions{})
	b.broken = errors.New("full")
	b.beat()
	b.beat() // the same minute
	b.Advance(time.Minute)
	b.beat()
	if got := b.value(0, "failures_total"); got != 2 {
		t.Errorf("%v failures, want 2", got)
	}
	b.broken = nil
	b.Advance(time.Minute)
	b.beat()
	if got := b.value(0, "failures_total"); got != 2 || len(b.accepted()) != 1 {
		t.Errorf("%v failures, accepted %v", got, b.accepted())
	}
}
