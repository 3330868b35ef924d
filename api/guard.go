package api

import (
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"

	"spendhook/api/gen"
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
	if !op.public && callerOf(r) == nil {
		c, err := s.authenticate(r)
		if err != nil {
			return r, err
		}
		if rec, ok := w.(*recorder); ok {
			rec.caller = c
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
		c.change, c.bytes = s.newChange(w, r, c, op), op.answer
		r = withCaller(r, c)
	}
	if accept := r.Header.Get("Accept"); !acceptsJSON(accept) && (!op.lines || !wantsLines(accept)) {
		return r, newProblem(http.StatusNotAcceptable, "NOT_ACCEPTABLE", "Only application/json can be answered.")
	}
	r, err := readParameters(r, op)
	if err != nil {
		return r, err
	}
	if op.hasBody {
		return r, s.receive(w, r, op)
	}
	if r.Method == http.MethodDelete && sendsBody(r) {
		return r, newProblem(http.StatusBadRequest, "BODY_NOT_ALLOWED", "This operation has no body; what it needs is in the path and the query.")
	}
	return r, nil
}

// sendsBody reports whether a request has a body of at least one byte.
func sendsBody(r *http.Request) bool {
	if r.ContentLength >= 0 {
		return r.ContentLength > 0
	}
	n, _ := io.ReadFull(r.Body, make([]byte, 1))
	return n > 0
}

// badParameter answers when the generated code cannot read a parameter that readParameters
// accepted. This should not happen.
func (s *server) badParameter(w http.ResponseWriter, r *http.Request, err error) {
	name := ""
	if e, ok := errors.AsType[*gen.InvalidParamFormatError](err); ok {
		name = e.ParamName
	} else if e, ok := errors.AsType[*gen.TooManyValuesForParamError](err); ok {
		name = e.ParamName
	}
	s.fail(w, r, fieldProblem(name, "INVALID", "is not of the documented form"))
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
