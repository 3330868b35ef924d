package api

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/google/uuid"

	"spendhook/api/gen"
	"spendhook/events"
	"spendhook/events/publish"
	"spendhook/internal/idempotency"
	"spendhook/internal/redistest"
)

func TestIdempotencyKey(t *testing.T) {
	t.Parallel()
	h := setup(t)
	key := header(idempotencyHeader, "create 1")
	body := `{"name":"x","callbackUrl":"` + hooks + `","events":["A"]}`
	first := h.call("POST", "/api/v1/subscribers", body, key).want(http.StatusCreated)
	again := h.call("POST", "/api/v1/subscribers", body, key).want(http.StatusCreated)
	if first.Body.String() != again.Body.String() || again.Header().Get("Location") != first.Header().Get("Location") {
		t.Errorf("the answers differ: %s, then %s", first.Body, again.Body)
	}
	if first.Header().Get("X-Request-Id") == again.Header().Get("X-Request-Id") {
		t.Error("the second request has the first one's id")
	}
	h.call("POST", "/api/v1/subscribers", strings.Replace(body, "x", "y", 1), key).want(http.StatusUnprocessableEntity, "IDEMPOTENCY_KEY_REUSED")
	h.call("POST", "/api/v1/events", event("e"), key).want(http.StatusUnprocessableEntity)

	other := uuid.New()
	theirs := h.call("POST", "/api/v1/subscribers", body, key, bearer(h.mint(&other, allScopes))).want(http.StatusCreated)
	if as[gen.SubscriberWithSecret](theirs).CompanyUUID != other {
		t.Error("a company was given another's answer")
	}
	h.call("POST", "/api/v1/subscribers", body, header(idempotencyHeader, "create 2")).want(http.StatusConflict, "CALLBACK_URL_TAKEN")
	for _, bad := range []string{"", "é", strings.Repeat("k", 256)} {
		h.call("POST", "/api/v1/subscribers", body, header(idempotencyHeader, bad)).wantField(idempotencyHeader, "INVALID")
	}

	path := "/api/v1/subscribers/" + as[gen.SubscriberWithSecret](first).UUID.String()
	rotate := header(idempotencyHeader, "rotate")
	one, two := h.call("POST", path+"/rotate-secret", "", rotate), h.call("POST", path+"/rotate-secret", "", rotate)
	if one.Code != http.StatusOK || one.Body.String() != two.Body.String() {
		t.Errorf("rotated twice: %s, then %s", one.Body, two.Body)
	}
}

// A failed request can be retried with the same key once its cause is fixed.
func TestOnlySuccessIsKept(t *testing.T) {
	t.Parallel()
	h := setup(t)
	key := header(idempotencyHeader, "k")
	taken := create(h, hooks)
	body := `{"name":"x","callbackUrl":"` + hooks + `","events":["A"]}`
	h.call("POST", "/api/v1/subscribers", body, key).want(http.StatusConflict, "CALLBACK_URL_TAKEN")
	h.call("DELETE", "/api/v1/subscribers/"+taken.UUID.String(), "").want(http.StatusNoContent)
	h.call("POST", "/api/v1/subscribers", body, key).want(http.StatusCreated)
}

// The answer to an array would take much memory to store.
func TestArraysOfEventsTakeNoKey(t *testing.T) {
	t.Parallel()
	client := redistest.New(t)
	h := setupOn(t, client)
	key := header(idempotencyHeader, "k")
	array := "[" + strings.Repeat("{},", 999) + "{}]"
	h.call("POST", "/api/v1/events", array, key).want(http.StatusMultiStatus)
	h.call("POST", "/api/v1/events", "["+event("a")+"]", key).want(http.StatusAccepted)
	if keys := client.Keys(t.Context(), "sh:*:idem:*").Val(); len(keys) > 0 {
		t.Errorf("kept %v", keys)
	}
}

// A retry whose stored answer would be too large reads the created resource instead.
func TestALargeAnswerIsNotKept(t *testing.T) {
	t.Parallel()
	const receivers = 250
	client := redistest.New(t)
	h := setupOn(t, client, func(o *Options) { o.Timeout = time.Minute }) // it makes many deliveries
	h.call("POST", "/api/v1/events", event("e")).want(http.StatusAccepted)
	eventually(t, func() bool { return as[gen.Event](h.call("GET", "/api/v1/events/e", "")).Status != "PENDING" })
	var wg sync.WaitGroup
	for worker := range 8 {
		wg.Go(func() {
			for i := worker; i < receivers; i += 8 {
				create(h, fmt.Sprintf("http://127.0.0.1:1/%d", i))
			}
		})
	}
	wg.Wait()
	key, writer := header(idempotencyHeader, "k"), bearer(h.mint(&h.company, "deliveries:write"))
	first := h.call("POST", "/api/v1/events/e/replay", "", key, writer).want(http.StatusAccepted)
	if first.Body.Len() <= maxStored {
		t.Fatalf("it has %d bytes only", first.Body.Len())
	}
	for _, kept := range client.Keys(t.Context(), "sh:*:idem:*").Val() {
		if n := client.MemoryUsage(t.Context(), kept).Val(); n > 4096 {
			t.Errorf("%d bytes are kept", n)
		}
	}
	again := h.call("POST", "/api/v1/events/e/replay", "", key, writer).want(http.StatusAccepted)
	if n := len(as[gen.EventDeliveries](again).Content); n != receivers || again.Header().Get("Location") != "/api/v1/events/e/deliveries" ||
		again.Header().Get("X-Request-Id") == first.Header().Get("X-Request-Id") {
		t.Errorf("%d deliveries, %v", n, again.Header())
	}
	if list := h.audited("action=event.replay"); len(list) != 1 {
		t.Errorf("%d audit entries of one replay", len(list))
	}
}

func TestIdempotencyKeyOfConcurrentRequests(t *testing.T) {
	t.Parallel()
	h := setup(t)
	body := `{"name":"x","callbackUrl":"` + hooks + `","events":["A"]}`
	var mu sync.Mutex
	bodies := map[string]bool{}
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			a := h.call("POST", "/api/v1/subscribers", body, header(idempotencyHeader, "k"))
			mu.Lock()
			defer mu.Unlock()
			switch a.Code {
			case http.StatusCreated:
				bodies[a.Body.String()] = true
			case http.StatusConflict:
				if a.problem().Code != "IDEMPOTENCY_KEY_IN_PROGRESS" {
					t.Errorf("%s", a.Body)
				}
			default:
				t.Errorf("%d: %s", a.Code, a.Body)
			}
		})
	}
	wg.Wait()
	if len(bodies) != 1 {
		t.Errorf("%d different subscribers were answered", len(bodies))
	}
}

var creationCrashTests = suite{
	"contract no crash creates a card twice: single create": func(h *spendHarness) {
		h.crashBeforeTheAnswerIsKept(cardsPath, h.plainCard(), strings.Replace(h.plainCard(), "Travel", "Fuel", 1))
	},
	"contract no crash creates a card twice: bulk create": func(h *spendHarness) {
		h.crashBeforeTheAnswerIsKept(bulkPath, bulkOf(h.plainCard()), bulkOf(h.plainCard(), h.plainCard()))
	},
}

// crashBeforeTheAnswerIsKept sends the body with a key whose record in Redis is then lost.
// The same request again must change nothing.
func (h *spendHarness) crashBeforeTheAnswerIsKept(path, body, other string) {
	h.t.Helper()
	client := redistest.New(h.t)
	o := h.options
	o.Idempotency = idempotency.New(client, nil, nil)
	crashing := *h.harness
	var err error
	if crashing.handler, err = New(o); err != nil {
		h.t.Fatal(err)
	}
	key := header(idempotencyHeader, "once")
	first := crashing.call("POST", path, body, key)
	if first.Code != http.StatusCreated && first.Code != http.StatusAccepted {
		h.t.Fatalf("%d: %s", first.Code, first.Body)
	}
	if err := client.FlushDB(context.Background()).Err(); err != nil { // the answer was not stored, and the claim has expired
		h.t.Fatal(err)
	}
	jobs := h.jobs.Load()
	before := h.state()
	for range 2 { // the second answer is Redis's again
		crashing.call("POST", path, other, key).want(http.StatusUnprocessableEntity, keyReused)
	}
	again := crashing.call("POST", path, body, key).want(first.Code)
	if again.Body.String() != first.Body.String() || again.Header().Get("Location") != first.Header().Get("Location") {
		h.t.Errorf("%s, then %s", first.Body, again.Body)
	}
	crashing.call("POST", path, other, key).want(http.StatusUnprocessableEntity, keyReused)
	h.jobs.Store(jobs) // the same job was stored once more, to no effect
	if after := h.state(); after != before {
		h.t.Errorf("before %s, after %s", before, after)
	}
}

// keyless are the POSTs that take no Idempotency-Key, each with the reason.
var keyless = map[string]string{
	"testSubscriberFilter": "it changes nothing and sends nothing",
	"issueToken":           "RFC 6749 has its own rules",
}

// Every POST that creates or sends something documents Idempotency-Key, and is carried out once for a key.
func TestEveryPostHonoursAKey(t *testing.T) {
	t.Parallel()
	w := setupTwo(t)
	all := w.routes()
	for i, line := range table {
		method, route, _ := strings.Cut(line.route, " ")
		op := all[line.route]
		if method != http.MethodPost || op == nil {
			continue
		}
		declared := slices.Contains(documentedHeaders(t, route, method), idempotencyHeader)
		if reason := keyless[op.id]; declared != (reason == "") {
			t.Errorf("%s: the document has the key: %v, the reason to have none is %q", line.route, declared, reason)
		}
		if !declared {
			continue
		}
		c := &check{twoCompanies: w, access: line, op: op, method: method}
		key, right := header(idempotencyHeader, fmt.Sprintf("key %d", i)), bearer(w.acme.token)
		if line.kind == global {
			right = bearer(w.mint(nil, allScopes+" platform"))
		}
		first := c.send(right, key, header("X-Request-Id", "first")).want(line.status)
		again := c.send(right, key, header("X-Request-Id", "again")).want(line.status)
		if first.Body.String() != again.Body.String() || first.Header().Get("Location") != again.Header().Get("Location") {
			t.Errorf("%s: the answers differ: %s, then %s", line.route, first.Body, again.Body)
		}
		if first.Header().Get("X-Request-Id") != "first" || again.Header().Get("X-Request-Id") != "again" {
			t.Errorf("%s: an answer has the id of another request", line.route)
		}
		other := strings.Replace(c.acme.fill(line.body), "{", "{ ", 1)
		if line.body == "" {
			other = "{}"
		}
		c.sendTo("", other, right, key).want(http.StatusUnprocessableEntity, keyReused)
	}
}

// documentedHeaders are the headers that the document has for an operation.
func documentedHeaders(t *testing.T, route, method string) (names []string) {
	t.Helper()
	doc := parsed(t)
	for _, ref := range doc.Paths.Find(route).GetOperation(method).Parameters {
		if ref.Value.In == openapi3.ParameterInHeader {
			names = append(names, ref.Value.Name)
		}
	}
	return names
}

// panicking fails once.
type panicking struct {
	publisher
	done bool
}

func (p *panicking) Accept(ctx context.Context, list []events.Event) ([]publish.Result, error) {
	if !p.done {
		p.done = true
		panic("broken")
	}
	return p.publisher.Accept(ctx, list)
}

func TestAPanicReleasesTheKey(t *testing.T) {
	t.Parallel()
	h := setup(t, func(o *Options) { o.Publisher = &panicking{publisher: o.Publisher} })
	body, key := event("e"), header(idempotencyHeader, "k")
	h.call("POST", "/api/v1/events", body, key).want(http.StatusInternalServerError)
	h.call("POST", "/api/v1/events", body, key).want(http.StatusAccepted)
}
