package api

import (
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/google/uuid"
	"github.com/gorilla/mux"

	"spendhook/internal/calendar"
	"spendhook/internal/invalid"
	"spendhook/internal/timestamp"
)

// parameter is a query or path parameter of the document. This file reads all parameters by their
// schemas. It replaces each value by its canonical form, which the generated code and the links of a
// list use.
type parameter struct {
	schema  *openapi3.Schema
	pattern *regexp.Regexp // nil when the schema has none
}

func newParameter(p *openapi3.Parameter) *parameter {
	out := &parameter{schema: p.Schema.Value}
	if pattern := out.item().Pattern; pattern != "" {
		out.pattern = regexp.MustCompile(pattern) // a test covers all patterns of the document
	}
	return out
}

func (p *parameter) list() bool { return p.schema.Type.Is(openapi3.TypeArray) }

// item is the schema of the parameter, or of each of its values.
func (p *parameter) item() *openapi3.Schema {
	if p.list() {
		return p.schema.Items.Value
	}
	return p.schema
}

// read returns the canonical form of the given values, or adds a problem with the expected form.
// The values of a list are separated by commas, with white space or not, and a list may be
// given more than once.
func (p *parameter) read(problems *invalid.Error, name string, given []string) string {
	if !p.list() {
		if len(given) > 1 {
			problems.Add(name, "INVALID", "is given more than once")
			return ""
		}
		value, expected := p.value(name, given[0])
		if expected != "" {
			problems.Add(name, "INVALID", "must be %s", expected)
		}
		return value
	}
	values := strings.Split(strings.Join(given, ","), ",")
	if most := p.schema.MaxItems; most != nil && uint64(len(values)) > *most {
		problems.Add(name, "TOO_MANY", "must have at most %d values", *most)
		return ""
	}
	for i, text := range values {
		var expected string
		if values[i], expected = p.value(name, strings.TrimSpace(text)); expected != "" {
			problems.Add(name, "INVALID", "value %d must be %s", i+1, expected)
			return ""
		}
	}
	return strings.Join(values, ",")
}

// value returns the canonical form of one value, or a description of the expected form.
func (p *parameter) value(name, text string) (canonical, expected string) {
	schema := p.item()
	switch {
	case len(schema.Enum) > 0:
		words := make([]string, len(schema.Enum))
		for i, allowed := range schema.Enum {
			if words[i] = fmt.Sprint(allowed); strings.EqualFold(words[i], text) {
				return words[i], ""
			}
		}
		return "", "one of " + strings.Join(words, ", ")
	case schema.Type.Is(openapi3.TypeBoolean):
		if text != "true" && text != "false" {
			return "", "true or false"
		}
		return text, ""
	case schema.Type.Is(openapi3.TypeInteger):
		return integer(schema, name, text)
	}
	switch schema.Format {
	case "uuid":
		id, err := uuid.Parse(text)
		if err != nil || len(text) != len(uuid.UUID{}.String()) || id == uuid.Nil {
			return "", "a UUID that is not all zeros"
		}
		return id.String(), ""
	case "date":
		if _, err := calendar.ParseDate(text); err != nil {
			return "", "a date, yyyy-MM-dd"
		}
		return text, ""
	case "date-time":
		return instant(text)
	default:
		return p.text(text)
	}
}

// integer reads a number in decimal. A size above the maximum is read as the maximum.
func integer(schema *openapi3.Schema, name, text string) (canonical, expected string) {
	low, high := *schema.Min, *schema.Max
	n, err := strconv.ParseInt(text, 10, 64)
	if name == "size" && strings.Trim(text, "0123456789") == "" && text != "" && (err != nil || n > int64(high)) {
		n, err = int64(high), nil
	}
	if err != nil || strings.HasPrefix(text, "+") || n < int64(low) || n > int64(high) {
		return "", fmt.Sprintf("an integer from %.0f to %.0f", low, high)
	}
	return strconv.FormatInt(n, 10), ""
}

func instant(text string) (canonical, expected string) {
	parse := timestamp.Parse
	if strings.Trim(text, "0123456789") == "" {
		parse = timestamp.ParseMillis
	}
	at, err := parse(text)
	if err != nil {
		return "", err.Error()
	}
	return at.Format(time.RFC3339Nano), ""
}

func (p *parameter) text(text string) (canonical, expected string) {
	schema, length := p.item(), utf8.RuneCountInString(text)
	switch {
	case !utf8.ValidString(text):
		return "", "UTF-8"
	case text == "" && schema.MinLength > 0:
		return "", "not empty"
	case schema.MaxLength != nil && uint64(length) > *schema.MaxLength: //nolint:gosec // a length
		return "", fmt.Sprintf("text of at most %d characters", *schema.MaxLength)
	case p.pattern != nil && !p.pattern.MatchString(text):
		return "", "of the form " + schema.Pattern
	default:
		return text, ""
	}
}

// maxProblems bounds the errors in an answer: a query may have thousands of unknown names.
const maxProblems = 20

// readParameters checks the path and the query of a request by its operation, and
// returns the request with them in canonical form. A parameter that the operation
// does not have is refused: a typo in a filter would silently widen a list.
func readParameters(r *http.Request, op *operation) (*http.Request, error) {
	problems := &invalid.Error{}
	for name, text := range mux.Vars(r) {
		mux.Vars(r)[name] = op.path[name].read(problems, name, []string{text})
	}
	if r.URL.RawQuery == "" {
		return r, problems.OrNil()
	}
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return r, newProblem("MALFORMED_QUERY", "The query is not well-formed.")
	}
	for _, name := range slices.Sorted(maps.Keys(query)) {
		if len(problems.Fields) >= maxProblems {
			break
		}
		if p := op.query[name]; p != nil {
			query.Set(name, p.read(problems, name, query[name]))
		} else {
			problems.Add(clipped(name), "UNKNOWN_PARAMETER", "is not a known query parameter")
		}
	}
	if len(problems.Fields) > 0 {
		return r, problems
	}
	clean, at := *r, *r.URL
	at.RawQuery = query.Encode()
	clean.URL = &at
	return &clean, nil
}

// clipped cuts a name of the request to a bounded length.
func clipped(name string) string {
	return strings.ToValidUTF8(name[:min(len(name), 100)], "")
}
