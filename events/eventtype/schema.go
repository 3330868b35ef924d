package eventtype

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"regexp/syntax"
	"strings"
	"unicode/utf8"

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

	// maxSteps bounds the work of validating an example: a schema that refers to itself
	// may need any amount. This many steps take at most 200 ms.
	maxSteps = 50_000
	// maxPrograms bounds the regular expressions of a schema, in instructions: a{1000}
	// has a thousand.
	maxPrograms = 20_000
)

var (
	errFetch  = errors.New("nothing is fetched: a $ref may only lead within the schema")
	errCostly = errors.New("validating takes too many steps")
	errRegexp = errors.New("the regular expressions are too large together")
)

// checkSchema adds the problems of a schema and of an example of it. Either may be missing.
func checkSchema(problems *invalid.Error, schema, example jsontext.Value) {
	before := len(problems.Fields)
	checkNumbers(problems, "/schema", schema)
	checkNumbers(problems, "/example", example)
	if len(schema) == 0 || len(problems.Fields) > before {
		return
	}
	m := &meter{}
	compiled, err := m.compile(schema)
	if err != nil {
		addError(problems, "/schema", err)
		return
	}
	if len(example) == 0 {
		return
	}
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(example))
	if err != nil {
		addError(problems, "/example", err)
		return
	}
	if err := m.validate(compiled, value); errors.Is(err, errCostly) {
		addError(problems, "/schema", err)
	} else if err != nil {
		addError(problems, "/example", err)
	}
}

// checkNumbers refuses numbers with too many digits: the validator calculates exactly, and
// 1e999999 has a million digits.
func checkNumbers(problems *invalid.Error, field string, text jsontext.Value) {
	dec := jsontext.NewDecoder(bytes.NewReader(text))
	for {
		token, err := dec.ReadToken()
		if err != nil { // the end, or invalid JSON, which the caller reports
			return
		}
		if token.Kind() != jsontext.KindNumber {
			continue
		}
		mantissa, exponent, _ := strings.Cut(strings.ToLower(token.String()), "e")
		if len(mantissa) > 100 || len(strings.TrimLeft(exponent, "+-0")) > 3 {
			problems.Add(field+string(dec.StackPointer()), "OUT_OF_RANGE", "has too many digits")
			return
		}
	}
}

// meter counts the cost of one schema. Only one goroutine may use it.
type meter struct {
	steps    int
	programs int
}

// compile compiles a schema of JSON Schema 2020-12 that refers to nothing outside itself.
func (m *meter) compile(text jsontext.Value) (*jsonschema.Schema, error) {
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	object, ok := doc.(map[string]any)
	if !ok {
		return nil, errors.New("must be an object")
	}
	if named, ok := object["$schema"]; ok && named != dialect {
		return nil, fmt.Errorf("$schema must be %s", dialect)
	}
	whole, err := jsonschema.NewCompiler().Compile(dialect)
	if err != nil {
		return nil, err
	}
	c := jsonschema.NewCompiler()
	c.DefaultDraft(jsonschema.Draft2020)
	c.UseLoader(nowhere{})
	c.UseRegexpEngine(m.regexp)
	c.RegisterVocabulary(&jsonschema.Vocabulary{URL: schemaURL + ":steps", Schema: whole, Compile: m.count})
	c.AssertVocabs()
	if err := c.AddResource(schemaURL, doc); err != nil {
		return nil, err
	}
	return c.Compile(schemaURL)
}

type nowhere struct{}

// Load returns errFetch.
func (nowhere) Load(string) (any, error) { return nil, errFetch }

// count adds a step counter to each schema within the schema. The validator has no limit of
// its own, but calls extensions of its vocabulary.
func (m *meter) count(_ *jsonschema.CompilerContext, schema map[string]any) (jsonschema.SchemaExt, error) {
	breadth := 1
	for _, value := range schema {
		breadth += sizeOf(value)
	}
	return &step{m, breadth}, nil
}

func sizeOf(value any) int {
	switch value := value.(type) {
	case map[string]any:
		return len(value)
	case []any:
		return len(value)
	}
	return 1
}

type step struct {
	*meter

	breadth int // of the schema
}

// Validate counts the steps of one schema at one value, and ends the validation when
// they are too many.
func (s *step) Validate(_ *jsonschema.ValidatorContext, value any) {
	s.spend(s.breadth + sizeOf(value))
}

func (m *meter) spend(steps int) {
	if m.steps += steps; m.steps > maxSteps {
		panic(errCostly) // validate recovers it: only a panic can stop the validator
	}
}

// validate returns errCostly, or the validation error of the value.
func (m *meter) validate(schema *jsonschema.Schema, value any) (err error) {
	defer func() {
		if r := recover(); r == errCostly { //nolint:errorlint // the panic value is errCostly itself
			err = errCostly
		} else if r != nil {
			panic(r)
		}
	}()
	return schema.Validate(value)
}

// regexp compiles a regular expression in Go's syntax, and counts its instructions.
func (m *meter) regexp(text string) (jsonschema.Regexp, error) {
	tree, err := syntax.Parse(text, syntax.Perl)
	if err != nil {
		return nil, err
	}
	program, err := syntax.Compile(tree.Simplify())
	if err != nil {
		return nil, err
	}
	if m.programs += len(program.Inst); m.programs > maxPrograms {
		return nil, errRegexp
	}
	compiled, err := regexp.Compile(text)
	return &pattern{compiled, m, len(program.Inst)}, err
}

// pattern is a regular expression that counts what matching costs.
type pattern struct {
	*regexp.Regexp

	meter   *meter
	program int // instructions
}

// MatchString executes at most program instructions for each byte. Ten thousand of them cost as
// much as one step of the validator.
func (p *pattern) MatchString(text string) bool {
	p.meter.spend(1 + len(text)*p.program/10_000)
	return p.Regexp.MatchString(text)
}

// addError adds an error of the validator, at the location of its first cause.
func addError(problems *invalid.Error, field string, err error) {
	if e, ok := errors.AsType[*jsonschema.SchemaValidationError](err); ok {
		err = e.Err
	}
	e, ok := errors.AsType[*jsonschema.ValidationError](err)
	if !ok {
		problems.Add(field, "INVALID", "%s", short(err.Error()))
		return
	}
	for len(e.Causes) > 0 {
		e = e.Causes[0]
	}
	place := jsontext.Pointer(field)
	for _, name := range e.InstanceLocation {
		place = place.AppendToken(name)
	}
	problems.Add(short(string(place)), "INVALID", "%s", short(e.ErrorKind.LocalizedString(message.NewPrinter(language.English))))
}

// short cuts a message that may repeat parts of the request.
func short(text string) string {
	const most = 300
	if len(text) <= most {
		return text
	}
	end := most
	for !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + "…"
}
