package api

import (
	"errors"
	"io"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"spendhook/api/gen"
)

// guard checks a request before its handler runs, by the operation in the document: the
// token and its scopes, the rate limit, the client certificate, the media types, the
// parameters and the size of the body.
func (s *server) guard(op *operation, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != op.route && s.routes[r.URL.Path] != nil {
			s.methodNotAllowed(w, r) // a fixed path such as add-event, which the router read as a parameter
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
		if err := s.checkCertificate(r, op.group); err != nil {
			return r, err
		}
		if err := authorize(c, op.scopes); err != nil {
			return r, err
		}
		c.entry, c.answerBytes = s.newAuditEntry(w, r, c, op), op.answerBytes
		r = withCaller(r, c)
	}
	if accept := r.Header.Get("Accept"); !acceptsJSON(accept) && (!op.ndjson || !wantsNDJSON(accept)) {
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
		return r, newProblem(http.StatusBadRequest, "BODY_NOT_ALLOWED", "This operation has no body; its parameters are in the path and the query.")
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

// badParameter answers a request with a parameter that the generated code refuses: a header
// that is given twice. readParameters has checked the parameters of the path and the query.
func (s *server) badParameter(w http.ResponseWriter, r *http.Request, err error) {
	name := ""
	if e, ok := errors.AsType[*gen.InvalidParamFormatError](err); ok {
		name = e.ParamName
	} else if e, ok := errors.AsType[*gen.TooManyValuesForParamError](err); ok {
		name = e.ParamName
	}
	s.fail(w, r, fieldProblem(name, "INVALID", "is not of the documented form"))
}

// accepts reports whether an Accept header (RFC 9110 section 12.5.1) names one of the media
// types with a quality value above 0. A header that is absent names all.
func accepts(accept string, types ...string) bool {
	if accept == "" || slices.Contains(types, accept) {
		return true
	}
	for part := range strings.SplitSeq(accept, ",") {
		kind, params, _ := mime.ParseMediaType(part)
		q, err := strconv.ParseFloat(params["q"], 64)
		if slices.Contains(types, kind) && (err != nil || q > 0) {
			return true
		}
	}
	return false
}

func acceptsJSON(accept string) bool {
	return accepts(accept, "*/*", mediaJSON, "application/*")
}

// wantsNDJSON reports whether an Accept header names NDJSON, and not JSON too.
func wantsNDJSON(accept string) bool {
	return accept != "" && accepts(accept, mediaNDJSON) && !accepts(accept, mediaJSON)
}
