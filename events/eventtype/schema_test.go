package eventtype

import (
	"errors"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"

	"spendhook/internal/invalid"
	"spendhook/internal/redistest"
)

// Each problem of a type is reported with its location.
func TestProblemsAreReportedWithTheirLocation(t *testing.T) {
	t.Parallel()
	s := newStore(redistest.New(t))
	for name, c := range map[string]struct {
		schema, field, message string
	}{
		"no schema at all":       {schema: `[]`, field: "schema", message: "must be an object"},
		"a wrong keyword":        {schema: `{"properties":{"a":{"type":"strange"}}}`, field: "/schema/properties/a/type"},
		"another dialect":        {schema: `{"$schema":"http://json-schema.org/draft-07/schema#"}`, field: "/schema", message: "2020-12"},
		"a dialect of one's own": {schema: `{"$schema":"https://example.com/meta"}`, field: "/schema", message: "2020-12"},
		"elsewhere":              {schema: `{"$ref":"https://example.com/other.json"}`, field: "/schema", message: "nothing is fetched"},
		"a file":                 {schema: `{"$ref":"file:///etc/passwd"}`, field: "/schema", message: "nothing is fetched"},
		"elsewhere by an id":     {schema: `{"$id":"https://example.com/a","properties":{"b":{"$ref":"b"}}}`, field: "/schema", message: "nothing is fetched"},
		"a nested dialect":       {schema: `{"$defs":{"a":{"$id":"urn:x:y","$schema":"https://example.com/meta"}}}`, field: "/schema", message: "nothing is fetched"},
		"nowhere":                {schema: `{"$ref":"#/$defs/none"}`, field: "/schema"},
		"a bad pattern":          {schema: `{"properties":{"a":{"pattern":"("}}}`, field: "/schema/properties/a/pattern", message: "missing closing"},
		"a huge number":          {schema: `{"properties":{"a":{"maximum":1e999999}}}`, field: "/schema/properties/a/maximum", message: "out of range"},
		"a tiny number":          {schema: `{"multipleOf":1e-999999}`, field: "/schema/multipleOf"},
	} {
		_, _, err := s.Put(t.Context(), Type{Name: "A", Description: "x", Schema: jsontext.Value(c.schema)})
		e, ok := errors.AsType[*invalid.Error](err)
		if !ok || len(e.Fields) != 1 || e.Fields[0].Field != c.field || !strings.Contains(e.Fields[0].Message, c.message) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, typ := range map[string]Type{
		"a bad name":         {Name: "payment.*", Description: "x"},
		"no description":     {Name: "A", Description: " "},
		"a long one":         {Name: "A", Description: strings.Repeat("x", maxDescription+1)},
		"too many bytes":     {Name: "A", Description: "x", Example: jsontext.Value(`{"a":"` + strings.Repeat("a", maxTypeBytes) + `"}`)},
		"an example, a list": {Name: "A", Description: "x", Example: jsontext.Value(`[]`)},
	} {
		if _, _, err := s.Put(t.Context(), typ); err == nil {
			t.Errorf("%s was kept", name)
		} else if _, ok := errors.AsType[*invalid.Error](err); !ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A schema may refer to itself, and have costly patterns: nothing is validated against it.
func TestSchemasThatReferToThemselves(t *testing.T) {
	t.Parallel()
	s := newStore(redistest.New(t))
	for name, schema := range map[string]string{
		"a list":        `{"type":"object","properties":{"next":{"$ref":"#"}}}`,
		"to itself":     `{"$ref":"#"}`,
		"in a circle":   `{"$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}},"$ref":"#/$defs/a"}`,
		"large pattern": `{"properties":{"a":{"pattern":"` + strings.Repeat("a{1000}", 30) + `"}}}`,
		"two patterns":  `{"patternProperties":{"^a":{"type":"string"},"^b":{"type":"number"}}}`,
	} {
		kept, _, err := s.Put(t.Context(), Type{Name: "A", Description: "x", Schema: jsontext.Value(schema), Example: jsontext.Value(`{"next":{}}`)})
		if err != nil || string(kept.Schema) != schema {
			t.Errorf("%s: %s, %v", name, kept.Schema, err)
		}
	}
}
