package api

import (
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/go-json-experiment/json"
	"github.com/google/uuid"
)

// Every query and path parameter, and every field of a body, is taken at its
// published limit and refused, by name, one past it.
func TestEveryPublishedLimitIsKept(t *testing.T) {
	t.Parallel()
	doc, err := openapi3.NewLoader().LoadFromData(documentSource)
	if err != nil {
		t.Fatal(err)
	}
	h := setup(t)
	company, all := h.mint(&h.company, allScopes+" platform"), h.mint(nil, allScopes+" platform")
	h.token = company
	operations := documentedRoutes(t)
	sub := create(h, hooks)
	h.call("POST", "/api/v1/events", event("e")).want(http.StatusAccepted)
	path := func(route string) string {
		id := sub.UUID.String()
		return strings.NewReplacer("{name}", "A", "{clientId}", id, "{uuid}", id, "{jobUuid}", id, "{companyUuid}", id, "{id}", "e", "{month}", "7", "{year}", "2026").Replace(route)
	}
	for _, route := range slices.Sorted(maps.Keys(doc.Paths.Map())) {
		item := doc.Paths.Value(route)
		for method, op := range item.Operations() {
			if op.OperationID == "issueToken" {
				continue // its body is a form, and its errors are OAuth's
			}
			if h.token = company; operations[route][method].ofAll() {
				h.token = all
			}
			for _, p := range slices.Concat(item.Parameters, op.Parameters) {
				h.parameterLimits(method, path, route, p.Value)
			}
			if op.RequestBody != nil {
				h.bodyLimits(method, path(route), op.RequestBody.Value.Content.Get(mediaJSON))
			}
		}
	}
}

func (h *harness) parameterLimits(method string, path func(string) string, route string, p *openapi3.Parameter) {
	h.t.Helper()
	if p.In == openapi3.ParameterInHeader || p.In == openapi3.ParameterInPath && p.Schema.Value.Format == "" && p.Schema.Value.Min == nil {
		return // Idempotency-Key has a test of its own; an id that cannot be one is not found
	}
	target := func(text string) string {
		if p.In == openapi3.ParameterInPath {
			return path(strings.Replace(route, "{"+p.Name+"}", url.PathEscape(text), 1))
		}
		return path(route) + "?" + p.Name + "=" + url.QueryEscape(text)
	}
	good, bad := samples(p.Name, p.Schema.Value, false)
	for _, v := range good {
		// A made-up cursor is none, nor is a number of an event.
		if a := h.call(method, target(v.(string)), ""); p.Name != "cursor" && p.Name != "after" && names(a, p.Name) {
			h.t.Errorf("%s %.200s: %s", method, target(v.(string)), a.Body)
		}
	}
	for _, v := range bad {
		if text := v.(string); (text != "" || p.In == openapi3.ParameterInQuery) && (p.Name != "size" || text != "101") {
			if a := h.call(method, target(text), ""); a.Code != http.StatusBadRequest || !names(a, p.Name) {
				h.t.Errorf("%s %.200s: %d %.200s", method, target(text), a.Code, a.Body)
			}
		}
	}
}

// bodyLimits changes one field of the example at a time.
func (h *harness) bodyLimits(method, target string, media *openapi3.MediaType) {
	h.t.Helper()
	schema := media.Schema.Value
	if len(schema.OneOf) > 0 {
		schema = schema.OneOf[0].Value // one event; arrays have tests of their own
	}
	example, _ := schema.Example.(map[string]any)
	for name, property := range schema.Properties {
		try := func(value any) answer {
			body := map[string]any{}
			maps.Copy(body, example)
			if schema.Properties["format"] != nil {
				body["format"] = "standard" // a transform goes with no other
			}
			body[name] = value
			text, err := json.Marshal(body)
			if err != nil {
				h.t.Fatal(err)
			}
			return h.call(method, target, string(text))
		}
		good, bad := samples(name, property.Value, true)
		for _, v := range good {
			own := name == "status" && strings.HasSuffix(target, "/cancel") // what has ended cannot be cancelled
			if a := try(v); names(a, name) && !own && !strings.Contains(a.Body.String(), "already has 100 events") {
				h.t.Errorf("%s %s %s %.60v: %s", method, target, name, v, a.Body)
			}
		}
		for _, v := range bad {
			if a := try(v); a.Code != http.StatusBadRequest || !names(a, name) {
				h.t.Errorf("%s %s %s %.60v: %d %.300s", method, target, name, v, a.Code, a.Body)
			}
		}
	}
}

// names reports whether a 400 is about the field or a part of it.
func names(a answer, field string) bool {
	if a.Code != http.StatusBadRequest {
		return false
	}
	for _, e := range a.problem().Errors {
		if e.Field == "/"+field || strings.HasPrefix(e.Field, "/"+field+"/") {
			return true
		}
	}
	return false
}

// samples are values at the limits of a schema, and past them; texts when they are
// for a parameter.
func samples(name string, s *openapi3.Schema, typed bool) (good, bad []any) {
	if typed && !s.Nullable {
		bad = append(bad, nil)
	}
	switch {
	case s.Type.Is(openapi3.TypeArray):
		list := func(n int) any { return listOf(s, n, typed) }
		if s.MaxItems != nil {
			good, bad = append(good, list(int(*s.MaxItems))), append(bad, list(int(*s.MaxItems)+1))
		}
		if s.MinItems > 0 || !typed {
			bad = append(bad, list(0))
		}
	case len(s.Enum) > 0:
		good, bad = append(good, s.Enum...), append(bad, "NONE", "")
		if !typed {
			good = append(good, strings.ToLower(s.Enum[0].(string)))
		}
	case s.Type.Is(openapi3.TypeBoolean) && typed:
		good, bad = append(good, true, false), append(bad, "true", 1)
	case s.Type.Is(openapi3.TypeBoolean):
		good, bad = append(good, "true", "false"), append(bad, "1", "TRUE", "yes", "")
	case s.Type.Is(openapi3.TypeInteger) && typed:
		good, bad = append(good, *s.Min, *s.Max), append(bad, *s.Min-1, *s.Max+1, "1", 1.5)
	case s.Type.Is(openapi3.TypeInteger):
		good = append(good, fmt.Sprintf("%.0f", *s.Min), fmt.Sprintf("%.0f", *s.Max))
		bad = append(bad, fmt.Sprintf("%.0f", *s.Min-1), fmt.Sprintf("%.0f", *s.Max+1), "x", "1.5", "1e1", "+1")
	case s.Format == "uuid":
		id := uuid.NewString()
		good, bad = append(good, id, strings.ToUpper(id)), append(bad, "x", "", id[1:], "{"+id+"}", "urn:uuid:"+id, strings.ReplaceAll(id, "-", ""))
	case s.Format == "date":
		good, bad = append(good, "2026-02-28"), append(bad, "2026-02-30", "2026-2-1", "2026-02-28T00:00:00Z", "")
	case s.Format == "date-time":
		good, bad = append(good, "2026-11-20t19:00:00.5z", "2026-11-20T19:00:00+01:00"), append(bad, "2026-11-20", "2026-11-20T19:00:00,5Z", "2026-11-20T19:00:00", "")
		if typed {
			good = append(good, 1795201200000)
		} else {
			good = append(good, "1795201200000")
		}
	case s.Type.Is(openapi3.TypeString):
		good, bad = texts(name, s, bad)
	}
	switch name {
	case "certificateChain", "privateKey":
		good = nil // they say more than their length
	case "wait":
		good, bad = []any{"0s", "1s"}, []any{"31s", "1", "1m", "-1s", ""}
	}
	return good, bad
}

// listOf has n items, as one text when it is for a parameter.
func listOf(s *openapi3.Schema, n int, typed bool) any {
	values, texts := make([]any, n), make([]string, n)
	for i := range values {
		values[i] = sample(s.Items.Value, i)
		texts[i] = fmt.Sprint(values[i])
	}
	if typed {
		return values
	}
	return strings.Join(texts, ", ")
}

// texts returns samples of a string without a format. Bad begins with the given ones.
func texts(name string, s *openapi3.Schema, before []any) (good, bad []any) {
	bad = before
	if s.MaxLength != nil {
		good, bad = append(good, sized(name, int(*s.MaxLength))), append(bad, sized(name, int(*s.MaxLength)+1))
	}
	if s.Pattern != "" {
		good, bad = append(good, "A"), append(bad, "not of the form.", "")
	}
	if s.MinLength > 0 {
		bad = append(bad, "")
	}
	return good, bad
}

// sized is a text of that many characters.
func sized(name string, n int) any {
	start, end := "", ""
	switch name {
	case "callbackUrl":
		start = "https://hooks.example.com/"
	case "filter", "orderedBy":
		start, end = `event == "`, `"`
	case "transform":
		start, end = `{"a": "`, `"}`
	}
	return start + strings.Repeat("x", n-len(start)-len(end)) + end
}

// sample is the i-th of many items.
func sample(s *openapi3.Schema, i int) any {
	switch {
	case len(s.Enum) > 0:
		return s.Enum[i%len(s.Enum)]
	case s.Format == "uuid":
		return uuid.NewString()
	case s.Type.Is(openapi3.TypeInteger) && s.Min != nil:
		return int(*s.Min) + i
	case s.Type.Is(openapi3.TypeInteger):
		return i
	case strings.Contains(s.Pattern, "{43}"): // a thumbprint
		return fmt.Sprintf("%043d", i)
	case s.Pattern != "":
		return fmt.Sprint("E", i)
	case s.Type.Is(openapi3.TypeString):
		return "x"
	default:
		return map[string]any{"type": "VIRTUAL", "alias": "x", "userUuid": uuid.NewString()}
	}
}
