package api

import (
	"context"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/go-json-experiment/json"
	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"spendhook/api/gen"
	"spendhook/internal/redistest"
)

const paidType = `{"description":"A payment was paid.\nMore of it.",` +
	`"schema":{"type":"object","required":["amount"],"properties":{"amount":{"$ref":"#/$defs/money"}},"$defs":{"money":{"type":"string","pattern":"^[0-9]+\\.[0-9]{2}$"}}},` +
	`"example":{"amount":"12.50"}}`

func (h *harness) platform() option { return bearer(h.mint(nil, allScopes+" platform")) }

// An event type is documented, read, changed and removed.
func TestEventTypes(t *testing.T) {
	t.Parallel()
	h := setup(t)
	const path = "/api/v1/event-types/PAYMENT_PAID"
	a := h.call("GET", path, "").want(http.StatusOK)
	if known := as[gen.EventType](a); known.Description == "" || len(known.Schema) > 0 {
		t.Errorf("at first: %+v", known)
	}
	a = h.call("PUT", path, paidType, h.platform()).want(http.StatusCreated)
	if kept := as[gen.EventType](a); string(kept.Example) != `{"amount":"12.50"}` || kept.UpdatedAt == nil || kept.Fixed {
		t.Errorf("kept: %+v", kept)
	}
	if got := h.call("GET", path, ""); got.Body.String() != a.Body.String() {
		t.Errorf("read: %s", got.Body)
	}
	h.call("PUT", path, `{"description":"Other."}`, h.platform()).want(http.StatusOK)
	h.call("DELETE", path, "", h.platform()).want(http.StatusNoContent)
	h.call("DELETE", path, "", h.platform()).want(http.StatusNotFound, "NOT_FOUND")
	h.call("GET", path, "").want(http.StatusOK)
	h.call("GET", "/api/v1/event-types/UNHEARD_OF", "").want(http.StatusNotFound, "NOT_FOUND")
	h.call("GET", "/api/v1/event-types/a*", "").want(http.StatusBadRequest, "VALIDATION_ERROR")

	for _, fixed := range []string{"SUBSCRIBER_DISABLED", "DELIVERY_DEAD", "CARD_CREATION_REQUEST_ERROR"} {
		if shown := as[gen.EventType](h.call("GET", "/api/v1/event-types/"+fixed, "").want(http.StatusOK)); !shown.Fixed || len(shown.Schema) == 0 {
			t.Errorf("%+v", shown)
		}
		h.call("PUT", "/api/v1/event-types/"+fixed, paidType, h.platform()).want(http.StatusConflict, "EVENT_TYPE_FIXED")
		h.call("DELETE", "/api/v1/event-types/"+fixed, "", h.platform()).want(http.StatusConflict, "EVENT_TYPE_FIXED")
	}
	var names []string
	for _, e := range h.auditedOf("action=event-type.put") {
		names = append(names, strings.Join(e.Target.Ids, " "))
		if e.CompanyUUID != nil {
			t.Errorf("audited: %+v", e)
		}
	}
	if strings.Join(names, " ") != "PAYMENT_PAID PAYMENT_PAID" {
		t.Errorf("audited: %v", names)
	}
}

// auditedOf reads the audit log of all companies.
func (h *harness) auditedOf(query string) (list []gen.AuditEntry) {
	h.t.Helper()
	eventually(h.t, func() bool {
		list = as[gen.AuditList](h.call("GET", "/api/v1/audit?"+query, "", h.platform()).want(http.StatusOK)).Content
		return len(list) > 0
	})
	return list
}

// An error about a type has a pointer into the body.
func TestInvalidEventTypes(t *testing.T) {
	t.Parallel()
	h := setup(t)
	for body, field := range map[string]string{
		strings.Replace(paidType, `"type":"object"`, `"type":"objekt"`, 1):     "/schema/type",
		strings.Replace(paidType, "#/$defs/money", "https://example.com/m", 1): "/schema",
		`{"schema":{}}`:                                                "/description",
		`{"description":"x","schema":true}`:                            "/schema",
		`{"description":"x","example":[]}`:                             "/example",
		`{"description":"x","example":null}`:                           "/example",
		`{"description":"x","metadata":{}}`:                            "/metadata",
		`{"description":"x","companyUuid":"` + uuid.NewString() + `"}`: "/companyUuid",
	} {
		p := h.call("PUT", "/api/v1/event-types/A", body, h.platform()).want(http.StatusBadRequest, "VALIDATION_ERROR").problem()
		if len(p.Errors) == 0 || p.Errors[0].Field != field {
			t.Errorf("%s: %+v", body, p)
		}
	}
}

// Events that do not match the documented schema of their type are accepted.
func TestEventTypesAreNoGate(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.call("PUT", "/api/v1/event-types/PAYMENT_PAID", paidType, h.platform()).want(http.StatusCreated)
	h.call("POST", "/api/v1/events", `{"id":"e","event":"PAYMENT_PAID","timestamp":"`+now()+`","metadata":{"amount":1}}`).want(http.StatusAccepted)
}

// The webhooks are a valid OpenAPI 3.1 document. References within a schema still work in it, and the
// example of each body matches the body's schema.
func TestWebhooksDocument(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.call("PUT", "/api/v1/event-types/PAYMENT_PAID", paidType, h.platform()).want(http.StatusCreated)
	a := h.call("GET", "/webhooks.json", "", noToken).want(http.StatusOK)
	doc, err := openapi3.NewLoader().LoadFromData(a.Body.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	if err := doc.Validate(t.Context()); err != nil {
		t.Error(err)
	}
	var whole struct {
		OpenAPI  string
		Webhooks map[string]struct {
			Post struct {
				Summary     string
				Parameters  []struct{ Name string }
				RequestBody struct {
					Content map[string]struct{ Example any }
				}
			}
		}
	}
	if err := json.Unmarshal(a.Body.Bytes(), &whole, json.MatchCaseInsensitiveNames(true)); err != nil {
		t.Fatal(err)
	}
	if len(whole.Webhooks) != 7 || whole.OpenAPI != "3.1.0" {
		t.Errorf("%s, %d webhooks", whole.OpenAPI, len(whole.Webhooks))
	}
	if paid := whole.Webhooks["PAYMENT_PAID"].Post; paid.Summary != "A payment was paid." || len(paid.Parameters) != 5 {
		t.Errorf("%+v", paid)
	}
	parsed, err := jsonschema.UnmarshalJSON(a.Body)
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("https://hooks.test/webhooks.json", parsed); err != nil {
		t.Fatal(err)
	}
	for name, hook := range whole.Webhooks {
		schema, err := c.Compile("https://hooks.test/webhooks.json#/webhooks/" + name + "/post/requestBody/content/application~1json/schema")
		if err != nil {
			t.Fatal(err)
		}
		example := hook.Post.RequestBody.Content[mediaJSON].Example.(map[string]any)
		if err := schema.Validate(example); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		example["metadata"] = map[string]any{"amount": "much", "companyUuid": 1., "requestUuid": 1.}
		if schema.Validate(example) == nil {
			t.Errorf("%s: its metadata may be anything", name)
		}
	}
}

// While Redis is down, the document has the webhooks that were read last. Before the first read, the answer is 503.
func TestWebhooksWithoutRedis(t *testing.T) {
	t.Parallel()
	var down atomic.Bool
	client := redistest.New(t)
	h := setupOn(t, client)
	client.AddHook(faults{func(redis.Cmder) error {
		if down.Load() {
			return context.DeadlineExceeded
		}
		return nil
	}})
	down.Store(true)
	h.call("GET", "/webhooks.json", "", noToken).want(http.StatusServiceUnavailable, "UNAVAILABLE")
	down.Store(false)
	h.call("GET", "/webhooks.json", "", noToken).want(http.StatusOK)
	down.Store(true)
	h.call("GET", "/webhooks.json", "", noToken).want(http.StatusOK)
}
