package eventtype

import (
	"errors"
	"regexp/syntax"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"golang.org/x/text/language"
	"golang.org/x/text/message"

	"spendhook/internal/invalid"
)

const (
	// dialect is the only dialect that a schema may name, and the default.
	dialect = "https://json-schema.org/draft/2020-12/schema"
	// schemaURL is the base URL of a schema. Nothing is fetched from it.
	schemaURL = "urn:spendhook:event-type"
	// maxMessage bounds a message that may repeat parts of the request, in bytes.
	maxMessage = 300
)

// compile returns an error unless an object is a schema of JSON Schema 2020-12 without references to
// other documents. The daemon does not validate events against a schema.
func compile(text jsontext.Value) error {
	// Numbers become floats of 64 bits. The compiler would calculate 1e999999 exactly, with a million digits.
	var doc any
	if err := json.Unmarshal(text, &doc); err != nil {
		return err
	}
	if named, ok := doc.(map[string]any)["$schema"]; ok && named != dialect {
		return errors.New("$schema must be " + dialect)
	}
	c := jsonschema.NewCompiler()
	c.DefaultDraft(jsonschema.Draft2020)
	c.UseLoader(noLoader{})
	c.UseRegexpEngine(parseRegexp)
	if err := c.AddResource(schemaURL, doc); err != nil {
		return err
	}
	_, err := c.Compile(schemaURL)
	return err
}

type noLoader struct{}

// Load fails.
func (noLoader) Load(string) (any, error) {
	return nil, errors.New("nothing is fetched: a $ref may only lead within the schema")
}

// pattern is a regular expression in Go's syntax. It is never matched, so it is not compiled.
type pattern string

func parseRegexp(text string) (jsonschema.Regexp, error) {
	_, err := syntax.Parse(text, syntax.Perl)
	return pattern(text), err
}

// MatchString is for the compiler, which does not call it.
func (pattern) MatchString(string) bool { return true }

// String is the expression.
func (p pattern) String() string { return string(p) }

// addError adds an error of the compiler, at the location of its first cause.
func addError(problems *invalid.Error, err error) {
	place, text := jsontext.Pointer("/schema"), err.Error()
	if e, ok := errors.AsType[*json.SemanticError](err); ok {
		place, text = place+e.JSONPointer, "is out of range"
	}
	if e, ok := errors.AsType[*jsonschema.SchemaValidationError](err); ok {
		err = e.Err
	}
	if e, ok := errors.AsType[*jsonschema.ValidationError](err); ok {
		for len(e.Causes) > 0 {
			e = e.Causes[0]
		}
		for _, name := range e.InstanceLocation {
			place = place.AppendToken(name)
		}
		text = e.ErrorKind.LocalizedString(message.NewPrinter(language.English))
	}
	problems.Add(short(string(place)), "INVALID", "%s", short(text))
}

func short(text string) string {
	if len(text) <= maxMessage {
		return text
	}
	return strings.ToValidUTF8(text[:maxMessage], "") + "…"
}
