package api

import (
	"bytes"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"spendhook/events/eventtype"
)

const (
	// webhooksLifetime is how long the document of the webhooks is cached. The route needs no
	// token, so its requests are not rate-limited.
	webhooksLifetime = 5 * time.Second

	webhooksCache = "public, max-age=5"
)

// webhookFrame builds an OpenAPI 3.1 document in which each event type is a webhook. Its fields are the
// same for all webhooks. The operation is the callback in the document of the API.
type webhookFrame struct {
	Info     map[string]any
	Delivery map[string]any // the operation
	Event    map[string]any // the schema of the body
	Example  map[string]any // of the body
}

// aboutDeliveries is the heading of the part about deliveries in the document's description.
const aboutDeliveries = "## What a subscriber receives\n"

func newWebhookFrame(document []byte) (*webhookFrame, error) {
	var doc struct {
		Info  map[string]any
		Paths map[string]struct {
			Post struct {
				Callbacks map[string]map[string]struct{ Post map[string]any }
			}
		}
		Components struct{ Schemas map[string]map[string]any }
	}
	if err := json.Unmarshal(document, &doc, json.MatchCaseInsensitiveNames(true)); err != nil {
		return nil, err
	}
	f := &webhookFrame{Info: doc.Info, Event: doc.Components.Schemas["WebhookEvent"]}
	for _, callback := range doc.Paths["/api/v1/subscribers"].Post.Callbacks["event"] {
		f.Delivery = callback.Post
	}
	description, _ := doc.Info["description"].(string)
	_, about, _ := strings.Cut(description, aboutDeliveries)
	f.Info["title"], f.Info["description"] = "Spendhook webhooks", about
	f.Example, _ = f.Event["example"].(map[string]any)
	if f.Delivery == nil || f.Example == nil || about == "" {
		return nil, fmt.Errorf("the document has no callback of a subscriber, no WebhookEvent, or no %q", aboutDeliveries)
	}
	return f, nil
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
		"info":       f.Info,
		"servers":    []any{map[string]any{"url": "/", "description": "This daemon. It sends the webhooks to the callback URLs of subscribers."}},
		"webhooks":   hooks,
		"components": map[string]any{"schemas": schemas},
	}, json.Deterministic(true))
}

// embedded returns the schema of a type as a part of the document. It rewrites local references such
// as "#/$defs/money" to the place of the schema in the document. A schema with an id keeps its
// references. A schema with anchors gets an id, and keeps them too. The others get no id, because fewer
// tools support references to ids.
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

// moveTo rewrites the local references of a schema to its new place in the document. It leaves a
// subschema with an id as it is, because the local references there are to the subschema.
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
	summary, _, _ := strings.Cut(strings.TrimSpace(t.Description), "\n")
	op["operationId"], op["tags"] = t.Name, []string{"Event types"}
	op["summary"], op["description"] = summary, t.Description
	op["security"] = []any{} // receivers verify signatures
	op["requestBody"] = map[string]any{
		"required": true,
		"content":  map[string]any{mediaJSON: map[string]any{"schema": f.body(t), "example": f.example(t)}},
	}
	return op
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
