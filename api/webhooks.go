package api

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"spendhook/events/eventtype"
)

const (
	// webhooksFor is how long the document of the webhooks is cached. The route needs no
	// token, so its requests are not rate-limited.
	webhooksFor = 5 * time.Second

	webhooksCache = "public, max-age=5"
)

// webhooks serves an OpenAPI 3.1 document in which each event type is a webhook. The
// operation comes from the callback in the API's own document.
type webhooks struct {
	server *server
	frame  webhookFrame

	mu    sync.Mutex // guards what follows, and is held while the document is made
	made  time.Time
	asset asset
}

// webhookFrame is what all webhooks have in common.
type webhookFrame struct {
	Version, About string
	Delivery       map[string]any // the operation
	Event          map[string]any // the schema of the body
	Example        map[string]any // of the body
}

// aboutDeliveries begins the part of the document's description that is about them.
const aboutDeliveries = "## What a subscriber receives\n"

func newWebhooks(s *server) (*webhooks, error) {
	var doc struct {
		Info  struct{ Version, Description string }
		Paths map[string]struct {
			Post struct {
				Callbacks map[string]map[string]struct{ Post map[string]any }
			}
		}
		Components struct{ Schemas map[string]map[string]any }
	}
	if err := json.Unmarshal(s.document, &doc, json.MatchCaseInsensitiveNames(true)); err != nil {
		return nil, err
	}
	f := webhookFrame{Version: doc.Info.Version, Event: doc.Components.Schemas["WebhookEvent"]}
	for _, callback := range doc.Paths["/api/v1/subscribers"].Post.Callbacks["event"] {
		f.Delivery = callback.Post
	}
	_, f.About, _ = strings.Cut(doc.Info.Description, aboutDeliveries)
	f.Example, _ = f.Event["example"].(map[string]any)
	if f.Delivery == nil || f.Example == nil || f.About == "" {
		return nil, fmt.Errorf("the document has no callback of a subscriber, no WebhookEvent, or no %q", aboutDeliveries)
	}
	return &webhooks{server: s, frame: f}, nil
}

// ServeHTTP answers with the document. When the event types cannot be read, it answers with
// the last document.
func (h *webhooks) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), h.server.opts.Timeout)
	defer cancel()
	a, err := h.current(ctx)
	if err != nil {
		h.server.fail(w, r, err)
		return
	}
	a.ServeHTTP(w, r)
}

func (h *webhooks) current(ctx context.Context) (asset, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := h.server.opts.Now()
	if age := now.Sub(h.made); h.asset.data != nil && age >= 0 && age < webhooksFor {
		return h.asset, nil
	}
	types, err := h.server.opts.EventTypes.List(ctx)
	if err == nil {
		var text []byte
		text, err = h.frame.document(types)
		h.asset = asset{contentType: mediaJSON, data: text, cache: webhooksCache}
	}
	if err != nil && h.asset.data == nil {
		return asset{}, err
	}
	h.made = now
	return h.asset, nil
}

// document is the OpenAPI 3.1 document of the types.
func (f *webhookFrame) document(types []eventtype.Type) ([]byte, error) {
	hooks, schemas := map[string]any{}, map[string]any{}
	for _, t := range types {
		if len(t.Schema) > 0 {
			schema, err := embedded(t)
			if err != nil {
				return nil, fmt.Errorf("schema of %s: %w", t.Name, err)
			}
			schemas[t.Name] = schema
		}
		hooks[t.Name] = map[string]any{"post": f.webhook(t)}
	}
	return json.Marshal(map[string]any{
		"openapi":    "3.1.0",
		"info":       map[string]any{"title": "Spendhook webhooks", "version": f.Version, "description": f.About},
		"webhooks":   hooks,
		"components": map[string]any{"schemas": schemas},
	}, json.Deterministic(true))
}

// embedded returns the schema of a type as a part of the document. It rewrites local
// references such as "#/$defs/money" to the schema's place in the document. A schema with an
// id keeps its references. So does a schema with anchors, which gets an id. Fewer tools
// support references to ids.
func embedded(t eventtype.Type) (map[string]any, error) {
	schema := map[string]any{}
	if err := json.Unmarshal(t.Schema, &schema); err != nil {
		return nil, err
	}
	switch {
	case schema["$id"] != nil:
	case bytes.Contains(t.Schema, []byte(`"$anchor"`)), bytes.Contains(t.Schema, []byte(`"$dynamicAnchor"`)):
		schema["$id"] = "/webhooks.json/" + t.Name
	default:
		moveTo(schema, schemaPlace+t.Name)
	}
	return schema, nil
}

// schemaPlace is where the document has the schemas of the types.
const schemaPlace = "#/components/schemas/"

// moveTo rewrites the local references of a schema to its new place in the document. In a
// subschema with an id, they are to the subschema itself.
func moveTo(schema map[string]any, place string) {
	eachObject(schema, func(object map[string]any) bool {
		if _, hasID := object["$id"].(string); hasID {
			return false
		}
		for _, keyword := range []string{"$ref", "$dynamicRef"} {
			if ref, ok := object[keyword].(string); ok && (ref == "#" || strings.HasPrefix(ref, "#/")) {
				object[keyword] = place + ref[1:]
			}
		}
		return true
	})
}

func (f *webhookFrame) webhook(t eventtype.Type) map[string]any {
	op := maps.Clone(f.Delivery)
	op["operationId"], op["tags"] = t.Name, []string{"Event types"}
	op["summary"], op["description"] = summaryOf(t.Description), t.Description
	delete(op, "security")
	op["requestBody"] = map[string]any{
		"required": true,
		"content":  map[string]any{mediaJSON: map[string]any{"schema": f.body(t), "example": f.example(t)}},
	}
	return op
}

// summaryOf is the first line of a description, or as much of it as fits on one.
func summaryOf(description string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(description), "\n")
	if text := []rune(line); len(text) > 120 {
		return string(text[:119]) + "…"
	}
	return line
}

// body is the schema of an event of the type.
func (f *webhookFrame) body(t eventtype.Type) map[string]any {
	event := maps.Clone(f.Event)
	properties, _ := event["properties"].(map[string]any)
	properties = maps.Clone(properties)
	properties["event"] = map[string]any{"const": t.Name}
	if len(t.Schema) > 0 {
		properties["metadata"] = map[string]any{"$ref": schemaPlace + t.Name}
	}
	event["properties"] = properties
	delete(event, "example")
	return event
}

func (f *webhookFrame) example(t eventtype.Type) map[string]any {
	event := maps.Clone(f.Example)
	event["event"], event["metadata"] = t.Name, jsontext.Value(`{}`)
	if len(t.Example) > 0 {
		event["metadata"] = t.Example
	}
	return event
}
