package api

import (
	"bytes"
	"compress/gzip"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"

	"spendhook/auth"
)

func TestDocumentIsValidWithItsExamples(t *testing.T) {
	t.Parallel()
	doc, err := openapi3.NewLoader().LoadFromData(documentSource)
	if err != nil {
		t.Fatal(err)
	}
	if err := doc.Validate(t.Context()); err != nil {
		t.Error(err)
	}
	for scope := range doc.Components.SecuritySchemes["oauth2"].Value.Flows.ClientCredentials.Scopes {
		if !slices.Contains(auth.KnownScopes(), scope) {
			t.Errorf("scope %s cannot be minted", scope)
		}
	}
}

func TestGeneratedCodeIsCurrent(t *testing.T) {
	t.Parallel()
	for dir, file := range map[string]string{"gen": "openapi.gen.go", "client": "client.gen.go"} {
		out := filepath.Join(t.TempDir(), file)
		cmd := exec.CommandContext(t.Context(), "go", "tool", "-modfile=../../tools.mod", "oapi-codegen", "-config", "config.yaml", "-o", out, "../openapi.yaml")
		cmd.Dir = dir
		if text, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, text)
		}
		want, err := os.ReadFile(out)
		if err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s/%s is not what openapi.yaml gives: run make generate", dir, file)
		}
	}
}

// A client may send any POST again with its Idempotency-Key.
func TestEveryPostTakesAnIdempotencyKey(t *testing.T) {
	t.Parallel()
	doc := parsed(t)
	for route, item := range doc.Paths.Map() {
		if op := item.Post; op != nil && op.Parameters.GetByInAndName("header", idempotencyHeader) == nil &&
			op.OperationID != "issueToken" && op.OperationID != "testSubscriberFilter" { // these change nothing
			t.Errorf("POST %s takes none", route)
		}
	}
}

func TestOperationsParametersAndAnswersAreDescribed(t *testing.T) {
	t.Parallel()
	for route, item := range parsed(t).Paths.Map() {
		for method, op := range item.Operations() {
			if op.Description == "" {
				t.Errorf("%s %s has no description", method, route)
			}
			for _, p := range slices.Concat(item.Parameters, op.Parameters) {
				if p.Value.Description == "" {
					t.Errorf("%s %s: parameter %s has no description", method, route, p.Value.Name)
				}
			}
			for status, answer := range op.Responses.Map() {
				if answer.Value.Description == nil || *answer.Value.Description == "" {
					t.Errorf("%s %s: %s has no description", method, route, status)
				}
			}
		}
	}
}

func TestEveryAnswerHasAnExample(t *testing.T) {
	t.Parallel()
	doc := parsed(t)
	known := codes()
	for route, item := range doc.Paths.Map() {
		for method, op := range item.Operations() {
			for status, answer := range op.Responses.Map() {
				for mediaType, content := range answer.Value.Content {
					if content.Example == nil && content.Examples == nil && content.Schema.Value.Example == nil {
						t.Errorf("%s %s: %s %s has none", method, route, status, mediaType)
					}
					if problem, ok := content.Example.(map[string]any); ok && problem["code"] != nil && known[problem["code"].(string)].Cause == "" {
						t.Errorf("%s %s: %s is an example with the code %v", method, route, status, problem["code"])
					}
				}
			}
		}
	}
}

// The served document has no settings of our code generator, and its examples can be sent.
func TestServedDocument(t *testing.T) {
	t.Parallel()
	at := time.Date(2031, 5, 2, 1, 0, 0, 0, time.UTC)
	h := setup(t, func(o *Options) { o.Now = func() time.Time { return at } })
	first := h.call("GET", "/openapi.json", "", noToken).want(http.StatusOK).Body.String()
	for _, word := range []string{"x-go-", "2026-11-20", "2026-11-19", exampleTime} {
		if strings.Contains(first, word) {
			t.Errorf("the document has %q", word)
		}
	}
	if !strings.Contains(first, `"timestamp":"2031-05-01T19:00:00.000Z"`) || !strings.Contains(first, `"timestamp":1935428400000`) {
		t.Error("its examples are of another day")
	}
	at = at.Add(24 * time.Hour)
	if second := h.call("GET", "/openapi.json", "", noToken).Body.String(); !strings.Contains(second, "2031-05-02T19:00:00.000Z") {
		t.Error("a day later its examples are as before")
	}
}

func TestUnknownRoutesAndMethods(t *testing.T) {
	t.Parallel()
	h := setup(t)
	for _, path := range []string{"/", "/api", "/api/v1/nothing", "/api/v1//events", "/api/v1/events/", "/api/v1/events/a/b", "/docs/none.js", "/docs/../openapi.json"} {
		h.call("GET", path, "").want(http.StatusNotFound, "NO_SUCH_ROUTE")
	}
	for target, allow := range map[string]string{
		"PUT /api/v1/events":                     "GET, HEAD, POST",
		"DELETE /api/v1/subscribers":             "GET, HEAD, POST",
		"PUT /api/v1/subscribers/x":              "DELETE, GET, HEAD, PATCH",
		"GET /api/v1/subscribers/add-event":      "POST",
		"DELETE /api/v1/subscribers/add-event":   "POST",
		"PATCH /api/v1/subscribers/delete-event": "DELETE",
		"POST /api/v1/subscribers/delete-event":  "DELETE",
		"GET /api/v1/deliveries/x/retry":         "POST",
		"POST /.well-known/jwks.json":            "GET, HEAD",
		"GET /api/v3/cards/bulk-create":          "POST",
		"DELETE /api/v3/cards/bulk-create":       "POST",
		"GET /api/v3/cards/delete":               "POST",
		"DELETE /api/v3/cards/delete":            "POST",
		"PUT /api/v3/cards/x":                    "DELETE, GET, HEAD",
		"POST /api/v3/cards/bulk-create/x":       "GET, HEAD",
		"POST /api/v3/cards/x/lock":              "PATCH",
		"GET /api/v3/cards/x/threshold":          "PATCH",
		"POST /api/v1/locations":                 "GET, HEAD",
		"POST /api/v2/billing-statements/7/2026": "GET, HEAD",
		"POST /openapi.json":                     "GET, HEAD",
		"OPTIONS /api/v1/event-types":            "GET, HEAD",
	} {
		method, path, _ := strings.Cut(target, " ")
		a := h.call(method, path, "").want(http.StatusMethodNotAllowed, "METHOD_NOT_ALLOWED")
		if got := a.Header().Get("Allow"); got != allow {
			t.Errorf("%s: Allow %q, want %q", target, got, allow)
		}
	}
	h.call("HEAD", "/api/v1/event-types", "").want(http.StatusOK)
}

func TestDocsPage(t *testing.T) {
	t.Parallel()
	h := setup(t)
	page := h.call("GET", "/docs", "", noToken).want(http.StatusOK).Body.String()
	if strings.Contains(page, "<script>") || strings.Contains(page, "onload") {
		t.Error("the page has inline script, which its policy forbids")
	}
	for _, path := range []string{"/docs/", "/docs/init.js", "/docs/docs.css", "/docs/swagger-ui-bundle.js", "/docs/swagger-ui.css", "/docs/favicon-32x32.png"} {
		a := h.call("GET", path, "", noToken).want(http.StatusOK)
		if a.Header().Get("X-Content-Type-Options") != "nosniff" || !strings.Contains(a.Header().Get("Content-Security-Policy"), "script-src 'self'") {
			t.Errorf("%s: %v", path, a.Header())
		}
	}
	plain := h.call("GET", "/docs/swagger-ui.css", "", noToken).want(http.StatusOK)
	packed := h.call("GET", "/docs/swagger-ui.css", "", noToken, header("Accept-Encoding", "br, gzip"))
	z, err := gzip.NewReader(packed.Body)
	if err != nil || packed.Header().Get("Content-Encoding") != "gzip" || plain.Header().Get("Content-Encoding") != "" {
		t.Fatal(err, packed.Header(), plain.Header())
	}
	if text, err := io.ReadAll(z); err != nil || !strings.Contains(plain.Body.String(), ".swagger-ui") || string(text) != plain.Body.String() {
		t.Errorf("%d bytes unpacked, %d in plain, %v", len(text), plain.Body.Len(), err)
	}
	a := h.call("GET", "/openapi.json", "", noToken).want(http.StatusOK)
	if _, err := openapi3.NewLoader().LoadFromData(a.Body.Bytes()); err != nil || a.Header().Get("Content-Type") != mediaJSON {
		t.Errorf("%v, %v", err, a.Header())
	}
}

func TestPublicKeys(t *testing.T) {
	t.Parallel()
	h := setup(t)
	jwks := h.call("GET", "/.well-known/jwks.json", "", noToken).want(http.StatusOK)
	if strings.Contains(jwks.Body.String(), `"d"`) {
		t.Error("the private key is shown")
	}
	path := "/.well-known/webhook-keys/" + h.company.String()
	h.call("GET", path, "", noToken).want(http.StatusNotFound, "NO_WEBHOOK_KEYS")
	create(h, hooks)
	first := h.call("GET", path, "", noToken).want(http.StatusOK).Body.String()
	if again := h.call("GET", path, "", noToken).Body.String(); again != first || !strings.Contains(first, `"whpk_`) || strings.Contains(first, `"d"`) {
		t.Errorf("%s, then %s", first, again)
	}
}
