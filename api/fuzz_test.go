package api

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"spendhook/api/gen"
	"spendhook/auth"
	"spendhook/events"
	"spendhook/events/publish"
	"spendhook/internal/invalid"
	"spendhook/internal/redistest"
	"spendhook/internal/syntax"
)

// stubPublisher accepts all valid events and keeps none.
type stubPublisher struct{}

func (stubPublisher) Accept(_ context.Context, list []events.Event) ([]publish.Result, error) {
	results := make([]publish.Result, len(list))
	for i, e := range list {
		results[i] = publish.Result{ID: e.ID, Status: publish.Accepted}
		if results[i].Err = e.Validate(time.Now(), 24*time.Hour, nil); results[i].Err == nil {
			_, results[i].Err = e.Body()
		}
	}
	return results, nil
}

// stubbed is a handler that keeps no events, and a token for it.
func stubbed(tb testing.TB) (http.Handler, string) {
	tb.Helper()
	keys := newKeys(tb)
	company := uuid.New()
	token, err := auth.Mint(keys, auth.Grant{Company: &company, Scopes: strings.Fields(allScopes), TTL: 24 * time.Hour}, time.Now())
	if err != nil {
		tb.Fatal(err)
	}
	o := domainOf(tb, redistest.New(tb), slog.New(slog.DiscardHandler))
	o.Publisher, o.Keys, o.Verifier = stubPublisher{}, keys, verifierOf(keys)
	handler, err := New(o)
	if err != nil {
		tb.Fatal(err)
	}
	return handler, token
}

func exchange(handler http.Handler, token, method, target, body string) *httptest.ResponseRecorder {
	r := httptest.NewRequestWithContext(context.Background(), method, "/", strings.NewReader(body))
	r.URL.Path, r.URL.RawQuery, _ = strings.Cut(target, "?")
	r.Header.Set("Authorization", "Bearer "+token)
	r.Header.Set("Content-Type", "application/json")
	rec := httptest.NewRecorder()
	handler.ServeHTTP(rec, r)
	return rec
}

func FuzzIngestEvents(f *testing.F) {
	handler, token := stubbed(f)
	for _, seed := range []string{
		event("a"), "[" + event("a") + "]", `[1,{"id":"x"},null]`, `{"id":"a.b","metadata":{"k":[[[]]]}}`, "", "[", "\xff",
		`{"id":"x","timestamp":1e400}`, `{"id":"x","timestamp":-1}`, `[{"id":"` + "\xff" + `"}]`, `{"metadata":{"a":1,"a":2}}`,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, body string) {
		rec := exchange(handler, token, "POST", "/api/v1/events", body)
		switch rec.Code {
		case http.StatusAccepted, http.StatusMultiStatus, http.StatusBadRequest, http.StatusForbidden, http.StatusRequestEntityTooLarge:
		default:
			t.Errorf("%d: %s", rec.Code, rec.Body)
		}
	})
}

func FuzzCreateSubscriber(f *testing.F) {
	handler, token := stubbed(f)
	for _, seed := range []string{
		`{"name":"x","callbackUrl":"https://x.example","events":["A"],"enabled":null,"companyUuid":null}`,
		`{"name":"x","name":"y"}`, `{"events":[1]}`, `[]`, `null`, `{"":1}`, `{"companyUuid":"{00000000-0000-0000-0000-000000000000}"}`,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, body string) {
		rec := exchange(handler, token, "POST", "/api/v1/subscribers", body)
		switch rec.Code {
		case http.StatusCreated, http.StatusConflict, http.StatusBadRequest, http.StatusForbidden, http.StatusRequestEntityTooLarge:
		default:
			t.Errorf("%d: %s", rec.Code, rec.Body)
		}
	})
}

func FuzzCards(f *testing.F) {
	handler, token := stubbed(f)
	for _, seed := range []string{
		`{"type":"virtual","alias":"x","userUUID":"6ba7b810-9dad-11d1-80b4-00c04fd430c8","threshold":1e3,"periodicityType":"DAILY"}`,
		`{"cardsRequests":[{"type":"VIRTUAL","alias":"x"},null,{"threshold":[1]},7]}`, `{"cardsRequests":[{"a":{"a":1,"a":2}}]}`,
		`{"threshold":1e-99999999999}`, `{"threshold":-0}`, `{"uuids":[null,"x"]}`, `{"lock":null}`, `{"uuids":{}}`, "\xff",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, body string) {
		one := "/api/v3/cards/" + uuid.NewString()
		for target, method := range map[string]string{
			"/api/v3/cards": "POST", "/api/v3/cards/bulk-create": "POST", "/api/v3/cards/delete": "POST", one + "/threshold": "PATCH", one + "/lock": "PATCH",
		} {
			rec := exchange(handler, token, method, target, body)
			switch rec.Code {
			case http.StatusOK, http.StatusUnprocessableEntity, http.StatusNotFound, http.StatusBadRequest, http.StatusForbidden, http.StatusRequestEntityTooLarge:
			default:
				t.Errorf("%s: %d: %s", target, rec.Code, rec.Body)
			}
		}
	})
}

func FuzzQuery(f *testing.F) {
	handler, token := stubbed(f)
	for _, seed := range []string{
		"page=1&size=2", "page=-1", "size=1e3", "events=A,,B&enabled=1", "from=2026-01-01T00:00:00Z&to=x", "cursor=%00", "a=%zz", "uuid=",
		"status=DEAD&subscriberUuid=x", "name=%ff", ";", "page=1&page=2", "companyUuid=urn:uuid:6ba7b810-9dad-11d1-80b4-00c04fd430c8",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, query string) {
		for _, path := range []string{
			"/api/v1/subscribers", "/api/v1/events", "/api/v1/deliveries", "/api/v3/cards", "/api/v3/reimbursements", "/api/v1/locations", "/api/v2/locations",
		} {
			rec := exchange(handler, token, "GET", path+"?"+query, "")
			switch rec.Code {
			case http.StatusOK, http.StatusBadRequest, http.StatusForbidden:
			default:
				t.Errorf("%s: %d: %s", path, rec.Code, rec.Body)
			}
		}
	})
}

func FuzzToken(f *testing.F) {
	handler, token := stubbed(f)
	f.Add(token[:len(token)-1])
	f.Add("a.b.c")
	f.Add(`{"payload":"","signature":""}`)
	f.Fuzz(func(t *testing.T, forged string) {
		if rec := exchange(handler, forged, "GET", "/api/v1/events", ""); forged != token && rec.Code != http.StatusUnauthorized {
			t.Errorf("%d: %s", rec.Code, rec.Body)
		}
	})
}

// TestUnknownFieldsAreNamed: a misspelt field is refused by name, and not ignored.
func TestUnknownFieldsAreNamed(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.StringMatching(`[a-zA-Z]{1,20}`).Draw(t, "name")
		var in gen.SubscriberUpdate
		err := decodeJSON([]byte(`{"`+name+`":null}`), &in)
		switch name {
		case "name", "callbackUrl", "events", "enabled", "headers", "companyUuid":
			return
		}
		e, ok := err.(*invalid.Error) //nolint:errorlint // made by decodeJSON itself
		if !ok || len(e.Fields) != 1 || e.Fields[0].Field != "/"+name || e.Fields[0].Code != "UNKNOWN_FIELD" {
			t.Fatalf("%v does not name %s", err, name)
		}
	})
}

// TestNestingIsCountedOutsideStrings checks the scan against a recursive one.
func TestNestingIsCountedOutsideStrings(t *testing.T) {
	t.Parallel()
	var value func(depth int) *rapid.Generator[string]
	value = func(depth int) *rapid.Generator[string] {
		return rapid.Custom(func(t *rapid.T) string {
			if depth == 0 {
				return rapid.SampledFrom([]string{`1`, `"[[[["`, `"\"{{"`, `"\\"`, `null`}).Draw(t, "leaf")
			}
			inner := value(depth-1).Draw(t, "inner")
			return rapid.SampledFrom([]string{"[1," + inner + "]", `{"a[":` + inner + "}"}).Draw(t, "outer")
		})
	}
	rapid.Check(t, func(t *rapid.T) {
		depth := rapid.IntRange(0, 9).Draw(t, "depth")
		text := []byte(value(depth).Draw(t, "value"))
		if syntax.NestsDeeper(text, depth) || depth > 0 && !syntax.NestsDeeper(text, depth-1) {
			t.Fatalf("%s does not nest %d deep", text, depth)
		}
	})
}

// TestCursorsAreNotTrusted sends made-up and bent cursors.
func TestCursorsAreNotTrusted(t *testing.T) {
	t.Parallel()
	h := setup(t)
	for _, id := range []string{"a", "b", "c"} {
		h.call("POST", "/api/v1/events", event(id)).want(http.StatusAccepted)
	}
	genuine := as[gen.EventList](h.call("GET", "/api/v1/events?size=1", "")).NextCursor
	rapid.Check(t, func(t *rapid.T) {
		bent := []byte(genuine)
		bent[rapid.IntRange(0, len(bent)-1).Draw(t, "at")] = rapid.Byte().Draw(t, "byte")
		cursor := rapid.SampledFrom([]string{string(bent), rapid.StringMatching(`[A-Za-z0-9_-]{0,80}`).Draw(t, "made up")}).Draw(t, "cursor")
		path := rapid.SampledFrom([]string{"/api/v1/events", "/api/v1/deliveries"}).Draw(t, "path")
		r := httptest.NewRequestWithContext(context.Background(), http.MethodGet, path, nil)
		r.URL.RawQuery = "cursor=" + strings.ReplaceAll(cursor, "%", "%25")
		bearer(h.token)(r)
		rec := httptest.NewRecorder()
		h.handler.ServeHTTP(rec, r)
		if rec.Code != http.StatusOK && rec.Code != http.StatusBadRequest {
			t.Fatalf("cursor %q: %d %s", cursor, rec.Code, rec.Body)
		}
	})
}

func BenchmarkIngestOne(b *testing.B) {
	handler, token := stubbed(b)
	body := event("a")
	b.ReportAllocs()
	for b.Loop() {
		if rec := exchange(handler, token, "POST", "/api/v1/events", body); rec.Code != http.StatusAccepted {
			b.Fatal(rec.Body)
		}
	}
}
