package eventtype

import (
	"errors"
	"fmt"
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
		schema, example, field, message string
	}{
		"no schema at all":        {schema: `[]`, field: "schema", message: "must be an object"},
		"a wrong keyword":         {schema: `{"properties":{"a":{"type":"strange"}}}`, field: "/schema/properties/a/type"},
		"another dialect":         {schema: `{"$schema":"http://json-schema.org/draft-07/schema#"}`, field: "/schema", message: "2020-12"},
		"a dialect of one's own":  {schema: `{"$schema":"https://example.com/meta"}`, field: "/schema", message: "2020-12"},
		"elsewhere":               {schema: `{"$ref":"https://example.com/other.json"}`, field: "/schema", message: "nothing is fetched"},
		"a file":                  {schema: `{"$ref":"file:///etc/passwd"}`, field: "/schema", message: "nothing is fetched"},
		"elsewhere by an id":      {schema: `{"$id":"https://example.com/a","properties":{"b":{"$ref":"b"}}}`, field: "/schema", message: "nothing is fetched"},
		"a nested dialect":        {schema: `{"$defs":{"a":{"$id":"urn:x:y","$schema":"https://example.com/meta"}}}`, field: "/schema", message: "nothing is fetched"},
		"nowhere":                 {schema: `{"$ref":"#/$defs/none"}`, field: "/schema"},
		"a bad pattern":           {schema: `{"properties":{"a":{"pattern":"("}}}`, field: "/schema/properties/a/pattern", message: "missing closing"},
		"large patterns":          {schema: `{"properties":{"a":{"pattern":"` + strings.Repeat("a{1000}", 30) + `"}}}`, field: "/schema/properties/a/pattern", message: "too large"},
		"a huge number":           {schema: `{"multipleOf":1e-999999}`, field: "/schema/multipleOf", message: "digits"},
		"a huge number, exampled": {example: `{"a":[1,1E+1000]}`, field: "/example/a/1", message: "digits"},
		"the example is another":  {schema: `{"properties":{"a/b":{"type":"string"}}}`, example: `{"a/b":1}`, field: "/example/a~1b", message: "string"},
		"the example misses one":  {schema: `{"required":["a"]}`, example: `{}`, field: "/example", message: "'a'"},
		"a wrong number":          {schema: `{"properties":{"a":{"multipleOf":0.01}}}`, example: `{"a":0.015}`, field: "/example/a"},
	} {
		_, _, err := s.Put(t.Context(), Type{Name: "A", Description: "x", Schema: jsontext.Value(c.schema), Example: jsontext.Value(c.example)})
		e, ok := errors.AsType[*invalid.Error](err)
		if !ok || len(e.Fields) != 1 || e.Fields[0].Field != c.field || !strings.Contains(e.Fields[0].Message, c.message) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, typ := range map[string]Type{
		"a bad name":         {Name: "lower", Description: "x"},
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

// A schema may refer to itself; its validation cost is bounded.
func TestSchemasThatReferToThemselves(t *testing.T) {
	t.Parallel()
	deep := strings.Repeat(`{"next":`, 50) + `{}` + strings.Repeat(`}`, 50)
	problems := &invalid.Error{}
	checkSchema(problems, jsontext.Value(`{"type":"object","properties":{"next":{"$ref":"#"}}}`), jsontext.Value(deep))
	if err := problems.OrNil(); err != nil {
		t.Error(err)
	}
	var defs strings.Builder
	for i := range 60 {
		fmt.Fprintf(&defs, `"a%d":{"%s":[{"$ref":"#/$defs/a%d"},{"$ref":"#/$defs/a%d"}]},`, i, []string{"allOf", "anyOf", "oneOf"}[i%3], i+1, i+1)
	}
	doubling := `{"$ref":"#/$defs/a0","$defs":{` + defs.String()
	for name, c := range map[string]struct{ schema, example, message string }{
		"to itself":           {`{"$ref":"#"}`, `{}`, ""},
		"in a circle":         {`{"$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}},"$ref":"#/$defs/a"}`, `{}`, ""},
		"doubling":            {doubling + `"a60":{"type":"object"}}}`, `{}`, errCostly.Error()},
		"doubling, and wrong": {doubling + `"a60":{"type":"string"}}}`, `{}`, errCostly.Error()},
		"in each item":        {`{"properties":{"a":{"items":{"$ref":"#/$defs/l"}}},"$defs":{"l":{"items":{"$ref":"#/$defs/l"},"contains":{"$ref":"#/$defs/l"},"unevaluatedItems":{"$ref":"#/$defs/l"}}}}`, `{"a":[` + strings.Repeat(`[`, 40) + strings.Repeat(`]`, 40) + `]}`, errCostly.Error()},
		"a slow pattern":      {`{"properties":{"a":{"pattern":"^(a?){1000}(a?){1000}$"}},"additionalProperties":{"$ref":"#/properties/a"}}`, `{"a":"` + strings.Repeat("a", 60000) + `b","b":"` + strings.Repeat("a", 60000) + `b"}`, ""},
	} {
		problems := &invalid.Error{}
		checkSchema(problems, jsontext.Value(c.schema), jsontext.Value(c.example))
		if err := problems.OrNil(); err == nil || !strings.Contains(err.Error(), c.message) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
