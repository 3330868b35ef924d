package api

import (
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/gorilla/mux"

	"spendhook/api/gen"
	"spendhook/internal/invalid"
)

// guard enforces, before a handler runs, what the document says of its
// operation: the token and its scopes, the client certificate, how often the
// token may be used, the media types, the query parameters and the size of the
// body.
func (s *server) guard(op *operation, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != op.route && s.routes[r.URL.Path] != nil {
			s.methodNotAllowed(w, r) // a fixed path such as add-event, taken for a parameter
			return
		}
		r, err := s.admit(w, r, op)
		if err != nil && op.form {
			s.failToken(w, r, err)
			return
		}
		if err != nil {
			s.fail(w, r, err)
			return
		}
		if b, ok := r.Body.(body); ok {
			defer b.memory.Close()
		}
		next.ServeHTTP(w, r)
	})
}

func (s *server) admit(w http.ResponseWriter, r *http.Request, op *operation) (*http.Request, error) {
	if !op.public {
		c, err := s.authenticate(r)
		if err != nil {
			return r, err
		}
		if err := s.throttle.charge(r.Context(), w.Header(), c, 0, 1); err != nil {
			return r, err
		}
		if err := s.checkCertificate(r, op); err != nil {
			return r, err
		}
		if err := authorize(c, op.scopes); err != nil {
			return r, err
		}
		c.change = s.newChange(w, r, c, op)
		r = withCaller(r, c)
	}
	if accept := r.Header.Get("Accept"); !acceptsJSON(accept) && (!op.lines || !wantsLines(accept)) {
		return r, newProblem(http.StatusNotAcceptable, "NOT_ACCEPTABLE", "Only application/json can be answered.")
	}
	if err := checkQuery(r, op.query); err != nil {
		return r, err
	}
	if op.hasBody {
		return r, s.receive(w, r, op)
	}
	return r, nil
}

// maxProblems bounds an answer about a query of thousands of made-up names.
const maxProblems = 20

// checkQuery refuses parameters that the operation does not have: a typo in a
// filter would silently widen a list.
func checkQuery(r *http.Request, allowed map[string]bool) error {
	if r.URL.RawQuery == "" {
		return nil
	}
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return newProblem(http.StatusBadRequest, "MALFORMED_QUERY", "The query is not well-formed.")
	}
	problems := &invalid.Error{}
	for name, values := range query {
		if len(problems.Fields) == maxProblems {
			break
		}
		repeatable, known := allowed[name]
		switch {
		case !known:
			problems.Add(shown(name), "UNKNOWN_PARAMETER", "is not a known query parameter")
		case len(values) > 1 && !repeatable:
			problems.Add(name, "INVALID", "is given more than once")
		case !utf8.ValidString(strings.Join(values, "")):
			problems.Add(name, "INVALID", "is not UTF-8")
		}
	}
	return problems.OrNil()
}

// shown cuts a name that was sent to a sane length.
func shown(name string) string {
	return strings.ToValidUTF8(name[:min(len(name), 100)], "")
}

// badParameter answers for a parameter that the generated code could not read.
func (s *server) badParameter(w http.ResponseWriter, r *http.Request, err error) {
	name := ""
	if e, ok := errors.AsType[*gen.InvalidParamFormatError](err); ok {
		name = e.ParamName
	} else if e, ok := errors.AsType[*gen.TooManyValuesForParamError](err); ok {
		name = e.ParamName
	}
	path, _ := mux.CurrentRoute(r).GetPathTemplate()
	what := kinds[s.routes[path][r.Method].params[name]]
	s.fail(w, r, fieldProblem(name, "INVALID", "must be %s", what))
}

var kinds = map[string]string{
	"integer": "an integer", "boolean": "true or false", "uuid": "a UUID",
	"date-time": "an RFC 3339 date-time", "array": "a comma-separated list", "string": "a single value",
}

// acceptsJSON reports whether an Accept header (RFC 9110 section 12.5.1) allows
// JSON; quality values only matter where they are 0.
func acceptsJSON(accept string) bool {
	if accept == "" || accept == "*/*" || accept == mediaJSON {
		return true
	}
	for part := range strings.SplitSeq(accept, ",") {
		kind, params, _ := strings.Cut(part, ";")
		switch strings.ToLower(strings.TrimSpace(kind)) {
		case mediaJSON, "application/*", "*/*":
			if !refused(params) {
				return true
			}
		}
	}
	return false
}

func refused(params string) bool {
	for param := range strings.SplitSeq(params, ";") {
		name, value, _ := strings.Cut(strings.TrimSpace(param), "=")
		if q, err := strconv.ParseFloat(value, 64); strings.EqualFold(name, "q") && err == nil {
			return q == 0
		}
	}
	return false
}
