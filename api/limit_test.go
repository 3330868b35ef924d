package api

import (
	"context"
	"encoding/base64"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/redis/go-redis/v9"

	"spendhook/events"
	"spendhook/internal/ratelimit"
	"spendhook/internal/redistest"
	"spendhook/internal/seal/sealtest"
	"spendhook/storage/cards"
	"spendhook/subscribers"
	"spendhook/subscribers/callback"
)

// limited is a harness whose limits hardly refill while a test runs.
func limited(t *testing.T, client redis.UniversalClient, perClient, perCompany int, adjust ...func(*Options)) *harness {
	t.Helper()
	limiter := ratelimit.New(client, nil)
	limiter.LeaseTimeout = time.Minute // a busy machine is no absent Redis
	return setupOn(t, client, append(adjust, func(o *Options) {
		o.Limits = NewLimits(limiter, ratelimit.Limit{PerSecond: 0.001, Burst: perClient}, ratelimit.Limit{PerSecond: 0.001, Burst: perCompany})
	})...)
}

func (h *harness) throttled(limit string) float64 {
	return testutil.ToFloat64(h.options.Metrics.throttled.WithLabelValues(limit))
}

const eventTypes = "/api/v1/event-types"

func TestRequestsOfACredentialAreLimited(t *testing.T) {
	t.Parallel()
	h := limited(t, redistest.New(t), 3, 100)
	for left := 2; left >= 0; left-- {
		a := h.call("GET", eventTypes, "").want(http.StatusOK)
		if got, want := a.Header().Get("RateLimit"), `"client";r=`+strconv.Itoa(left)+`;t=`; !strings.HasPrefix(got, want) {
			t.Errorf("RateLimit %s, want %s", got, want)
		}
	}
	a := h.call("GET", eventTypes, "").want(http.StatusTooManyRequests, "RATE_LIMITED")
	if wait, err := strconv.Atoi(a.Header().Get("Retry-After")); err != nil || wait < 990 || wait > 1000 {
		t.Errorf("Retry-After %q", a.Header().Get("Retry-After"))
	}
	if got := a.Header().Get("RateLimit"); !strings.HasPrefix(got, `"client";r=0;t=`) {
		t.Errorf("RateLimit %s", got)
	}
	if got := a.Header().Get("RateLimit-Policy"); got != `"client";q=3;w=3000` {
		t.Errorf("RateLimit-Policy %s", got)
	}
	if h.throttled(limitClient) != 1 || h.throttled(limitCompany) != 0 {
		t.Error("not counted")
	}
}

// Two credentials of one company share its limit, which does not apply to another company.
func TestACompanyIsLimited(t *testing.T) {
	t.Parallel()
	h := limited(t, redistest.New(t), 100, 4)
	first, second := bearer(h.mintAs("first", &h.company, allScopes)), bearer(h.mintAs("second", &h.company, allScopes))
	for range 2 {
		h.call("GET", eventTypes, "", first).want(http.StatusOK)
		a := h.call("GET", eventTypes, "", second).want(http.StatusOK)
		if got := a.Header().Get("RateLimit-Policy"); got != `"client";q=100;w=100000, "company";q=4;w=4000` {
			t.Errorf("RateLimit-Policy %s", got)
		}
	}
	h.call("GET", eventTypes, "", second).want(http.StatusTooManyRequests, "RATE_LIMITED")
	other := uuid.New()
	h.call("GET", eventTypes, "", bearer(h.mintAs("third", &other, allScopes))).want(http.StatusOK)
	a := h.call("GET", eventTypes, "", bearer(h.mintAs("platform", nil, allScopes))).want(http.StatusOK)
	if got := a.Header().Get("RateLimit-Policy"); strings.Contains(got, "company") {
		t.Errorf("RateLimit-Policy %s of a token without a company", got)
	}
	if h.throttled(limitCompany) != 1 {
		t.Error("not counted")
	}
}

// Every operation that needs a token is limited, before anything else is done.
func TestEveryOperationIsLimited(t *testing.T) {
	t.Parallel()
	h := limited(t, redistest.New(t), 1, 100)
	h.call("GET", eventTypes, "").want(http.StatusOK)
	var group sync.WaitGroup // each refusal is delayed
	for route, operations := range documentedRoutes(t) {
		for method, op := range operations {
			if op.public {
				continue
			}
			group.Go(func() {
				if a := h.call(method, concrete(route), "{"); a.Code != http.StatusTooManyRequests || a.problem().Code != "RATE_LIMITED" {
					t.Errorf("%s %s: %d %s", method, route, a.Code, a.Body)
				}
			})
		}
	}
	group.Wait()
}

func TestReplicasShareTheLimitOfACredential(t *testing.T) {
	t.Parallel()
	client := redistest.New(t)
	a, b := limited(t, client, 30, 100), limited(t, client, 30, 100)
	var admitted atomic.Int64
	var group sync.WaitGroup
	for _, h := range []*harness{a, b} {
		for range 4 {
			group.Go(func() {
				for range 10 {
					// The same issuer and subject on both: the keys differ, the credential does not.
					if h.call("GET", eventTypes, "", bearer(h.mintAs("one", nil, allScopes))).Code == http.StatusOK {
						admitted.Add(1)
					}
				}
			})
		}
	}
	group.Wait()
	if admitted.Load() != 30 {
		t.Errorf("%d admitted of 80, want 30", admitted.Load())
	}
}

func TestAStoredAnswerCountsToo(t *testing.T) {
	t.Parallel()
	h := limited(t, redistest.New(t), 2, 100)
	key := header("Idempotency-Key", "k")
	body := `{"name":"n","callbackUrl":"http://127.0.0.1:9/","events":["A"]}`
	h.call("POST", "/api/v1/subscribers", body, key).want(http.StatusCreated)
	a := h.call("POST", "/api/v1/subscribers", body, key).want(http.StatusCreated)
	if got := a.Header().Get("RateLimit"); !strings.Contains(got, `"client";r=0`) {
		t.Errorf("RateLimit %s: that of the first answer?", got)
	}
	h.call("POST", "/api/v1/subscribers", body, key).want(http.StatusTooManyRequests)
}

// After many bad tokens from an address, a valid new token from there is accepted.
func TestBadTokensBlockNoGoodToken(t *testing.T) {
	t.Parallel()
	h := limited(t, redistest.New(t), 100, 100)
	here := remote("198.51.100.7:4711")
	good := h.mintAs("new", nil, allScopes)
	forged := good[:strings.LastIndex(good, ".")+1] + base64.RawURLEncoding.EncodeToString(make([]byte, 64))
	for range 150 {
		h.call("GET", eventTypes, "", here, bearer(forged)).want(http.StatusUnauthorized)
	}
	h.call("GET", eventTypes, "", here, bearer(good)).want(http.StatusOK)
}

func TestTwoAuthorizationHeadersAreRefused(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.call("GET", eventTypes, "", func(r *http.Request) {
		r.Header.Add("Authorization", "Bearer "+h.mintAs("another", nil, allScopes))
	}).want(http.StatusBadRequest, "AUTHORIZATION_REPEATED")
}

func TestWithoutLimitsNothingIsSaidOfThem(t *testing.T) {
	t.Parallel()
	for _, adjust := range []func(*Options){
		func(*Options) {},
		func(o *Options) { o.Limits = NewLimits(ratelimit.New(nil, nil), ratelimit.Limit{}, ratelimit.Limit{}) },
	} {
		h := setup(t, adjust)
		a := h.call("GET", eventTypes, "").want(http.StatusOK)
		if a.Header().Get("RateLimit") != "" || a.Header().Get("RateLimit-Policy") != "" {
			t.Errorf("%v", a.Header())
		}
	}
}

func TestPolicyOfALimit(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		rate          float64
		burst         int
		quota, window int
	}{
		{1000, 2000, 2000, 2}, {1000, 1500, 1500, 2}, {1000, 10, 1000, 1}, {0.5, 1, 1, 2}, {10, 10, 10, 1},
	} {
		if q, w := policy(ratelimit.Limit{PerSecond: c.rate, Burst: c.burst}); q != c.quota || w != c.window {
			t.Errorf("%v/s, %d at once: q=%d w=%d", c.rate, c.burst, q, w)
		}
	}
}

// Of many creations at once, as many succeed as the quota allows.
func TestQuotaOfSubscribers(t *testing.T) {
	t.Parallel()
	client := redistest.New(t)
	h := setupOn(t, client, func(o *Options) {
		o.Subscribers = subscribers.NewStore(subscribers.StoreOptions{
			Client: client, Policy: callback.Policy{AllowHTTP: true}, MaxPerCompany: 3, Keyring: sealtest.Keyring(),
		})
	})
	var created atomic.Int64
	var group sync.WaitGroup
	for i := range 10 {
		group.Go(func() {
			a := h.call("POST", "/api/v1/subscribers", `{"name":"n","callbackUrl":"http://127.0.0.1:9/`+strconv.Itoa(i)+`","events":["A"]}`)
			if a.Code == http.StatusCreated {
				created.Add(1)
			} else if a.Code != http.StatusConflict || a.problem().Code != "TOO_MANY_SUBSCRIBERS" {
				t.Errorf("%d %s", a.Code, a.Body)
			}
		})
	}
	group.Wait()
	if created.Load() != 3 {
		t.Errorf("%d were created, want 3", created.Load())
	}
	other := uuid.New()
	h.call("POST", "/api/v1/subscribers", `{"name":"n","callbackUrl":"http://127.0.0.1:9/","events":["A"]}`,
		bearer(h.mint(&other, allScopes))).want(http.StatusCreated)
}

func array(n int) string {
	return "[" + strings.TrimSuffix(strings.Repeat(`{"id":"x"},`, n), ",") + "]"
}

// subscribed creates n subscribers, of which two get events of type A, and accepts the events A and C of these types.
func (o *Options) subscribed(t *testing.T, company uuid.UUID, n int) (subs []string) {
	t.Helper()
	for i := range n {
		sub, err := o.Subscribers.Create(t.Context(), company, subscribers.Settings{
			Name: new("n"), CallbackURL: new("http://127.0.0.1:9/" + strconv.Itoa(i)), Events: &[]string{[]string{"A", "A", "B"}[min(i, 2)]},
		})
		if err != nil {
			t.Fatal(err)
		}
		subs = append(subs, `"`+sub.UUID.String()+`"`)
	}
	var list []events.Event
	for _, kind := range []string{"A", "C"} {
		list = append(list, events.Event{ID: kind, CompanyUUID: company, Type: kind, Timestamp: time.Now()})
	}
	if _, err := o.Publisher.Accept(t.Context(), list); err != nil {
		t.Fatal(err)
	}
	return subs
}

// A request takes a token for each item from the limits of its credential and of
// its company, 20 and 14 at first, and nothing when it is refused.
func TestItemsAreCounted(t *testing.T) {
	t.Parallel()
	const ingest, cards, replay = "/api/v1/events", "/api/v3/cards/bulk-create", "/api/v1/events/A/replay"
	card := `{"type":"VIRTUAL","alias":"a","userUuid":"` + uuid.NewString() + `"}`
	type request struct {
		path, body      string
		status          int
		client, company int // what is left
	}
	for name, requests := range map[string][]request{
		"events": {
			{ingest, array(4), 207, 16, 10},
			{ingest, array(11), 429, 16, 10},
			{ingest, array(1), 207, 15, 9},
			{ingest, `{"id":"x"}`, 400, 14, 8},
			{ingest, `[{"id":"x"`, 400, 13, 7},
			{ingest, array(7), 207, 6, 0},
			{ingest, array(1), 429, 6, 0},
		},
		"more events than a bucket holds": {
			{ingest, array(15), 207, 5, 0},
			{ingest, array(15), 429, 5, 0},
		},
		"more events than both hold": {
			{ingest, array(50), 207, 0, 0},
		},
		"more events than there are": {
			{ingest, array(1), 207, 19, 13},
			{ingest, array(50), 429, 19, 13},
		},
		"bulk": {
			{cards, bulkOf(card, card, card), 202, 17, 11},
			{cards, bulkOf(card, `{"x":1}`), 400, 16, 10},
			{cards, bulkOf(slices.Repeat([]string{card}, 12)...), 429, 16, 10},
		},
		"replay": {
			{replay, "", 202, 18, 12},   // there are eleven subscribers
			{replay, "5", 202, 16, 10},  // as many deliveries as were made
			{replay, "11", 429, 16, 10}, // as many as there may be
		},
		"replay to nobody":  {{"/api/v1/events/C/replay", "", 202, 19, 13}},
		"replay that fails": {{"/api/v1/events/D/replay", "", 404, 19, 13}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client := redistest.New(t)
			var subs []string
			h := limited(t, client, 20, 14, func(o *Options) {
				o.CardJobs = acceptAll{}
				subs = o.subscribed(t, someCompany, 11)
			})
			token := bearer(h.mintAs("one", &someCompany, allScopes))
			for i, r := range requests {
				if n, err := strconv.Atoi(r.body); err == nil { // as many named subscribers
					r.body = `{"subscriberUuids":[` + strings.Join(subs[:n], ",") + `]}`
				}
				a := h.call("POST", r.path, r.body, token)
				want := fmt.Sprintf(`"client";r=%d;`, r.client)
				company := fmt.Sprintf(`"company";r=%d;`, r.company)
				got := a.Header().Get("RateLimit")
				if a.Code != r.status || !strings.HasPrefix(got, want) || !strings.Contains(got, company) {
					t.Fatalf("request %d: %d, RateLimit %s, want %d, %s %s: %s", i, a.Code, got, r.status, want, company, a.Body)
				}
				if policy := a.Header().Get("RateLimit-Policy"); policy != `"client";q=20;w=20000, "company";q=14;w=14000` {
					t.Errorf("RateLimit-Policy %s", policy)
				}
				if wait, _ := strconv.Atoi(a.Header().Get("Retry-After")); r.status == 429 && wait == 0 {
					t.Error("no Retry-After")
				}
			}
		})
	}
}

var someCompany = uuid.New()

// acceptAll stores no bulk creation.
type acceptAll struct{}

func (acceptAll) Submit(context.Context, uuid.UUID, []cards.Request, cards.Once) (cards.Job, error) {
	return cards.Job{UUID: uuid.New(), Status: cards.JobQueued}, nil
}
