package api

import (
	"crypto/subtle"
	"io"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"spendhook/auth"
	"spendhook/internal/clientcert"
)

// guard checks a request before its handler runs, by the operation in the document: the
// token and its scopes, the rate limit, the client certificate, the media types, the
// parameters and the size of the body.
func (s *server) guard(op *operation, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != op.route && s.routes[r.URL.Path] != nil {
			s.methodNotAllowed(w, r) // the router matched a fixed path, such as add-event, as a parameter
			return
		}
		q, err := s.admit(w, r, op)
		if err != nil {
			s.fail(w, r, err)
			return
		}
		defer func() {
			q.body = nil // the recorder refers to q while the answer is delayed
			q.bodyMemory.ShrinkTo(0)
		}()
		next.ServeHTTP(w, q.sent)
	})
}

func (s *server) admit(w http.ResponseWriter, r *http.Request, op *operation) (*request, error) {
	q := &request{op: op, w: w}
	if again := requestOf(r); again != nil {
		q.Caller = again.Caller // see readAgain
	} else if !op.public {
		if err := s.admitCaller(w, r, q); err != nil {
			return nil, err
		}
	}
	if accept := r.Header.Get("Accept"); !accepts(accept, "*/*", mediaJSON, "application/*") && (!op.ndjson || !wantsNDJSON(accept)) {
		allowed := mediaJSON
		if op.ndjson {
			allowed += " or " + mediaNDJSON
		}
		return nil, newProblem("NOT_ACCEPTABLE", "The Accept header must allow %s.", allowed)
	}
	r, err := readParameters(r, op)
	if err != nil {
		return nil, err
	}
	if !op.hasBody && r.Method == http.MethodDelete && sendsBody(r) {
		return nil, newProblem("BODY_NOT_ALLOWED", "This operation has no body; its parameters are in the path and the query.")
	}
	if op.hasBody {
		if err := s.receive(w, r, q); err != nil {
			return nil, err
		}
	}
	q.sent = withRequest(r, q)
	return q, nil
}

// admitCaller checks the token, the rate limit, the client certificate and the scopes.
func (s *server) admitCaller(w http.ResponseWriter, r *http.Request, q *request) (err error) {
	if q.Caller, err = s.authenticate(r); err != nil {
		return err
	}
	if rec, ok := w.(*recorder); ok {
		rec.request = q
	}
	if err := s.charge(r.Context(), q, 0, 1); err != nil {
		return err
	}
	if err := s.checkCertificate(r, q.op.group); err != nil {
		return err
	}
	if err := authorize(q.Caller, q.op.scopes); err != nil {
		return err
	}
	if q.Company != nil && slices.Contains(q.op.scopes, auth.ScopePlatform) {
		return newProblem("PLATFORM_ONLY", "The token must be tied to no company.")
	}
	q.entry = s.newAuditEntry(w, r, q)
	return nil
}

// identify adds the client's address and certificate to the request (see package peer). It
// refuses plain HTTP where TLS is required, and invalid certificates.
func (s *server) identify(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r, err := s.opts.Peers.Resolve(r)
		if err == nil {
			next.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Connection", "close") // the client may present another certificate on a new connection
		s.observe(noRoute, noMethod, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			s.fail(w, r, err)
		})).ServeHTTP(w, r)
	})
}

// certificateMatches reports whether a request may use its token: a token that is bound to a certificate
// needs that certificate (RFC 8705 section 3), an unbound token needs none.
func certificateMatches(r *http.Request, c *auth.Caller) bool {
	return c.Thumbprint == "" ||
		subtle.ConstantTimeCompare([]byte(clientcert.ThumbprintFrom(r.Context())), []byte(c.Thumbprint)) == 1
}

// checkCertificate refuses a request without a client certificate if the group of its operation needs
// one. An unknown group needs one too.
func (s *server) checkCertificate(r *http.Request, group string) error {
	required, known := s.opts.CertificateRequired[group]
	if s.opts.CertificateRequired == nil || known && !required || clientcert.From(r.Context()) != nil {
		return nil
	}
	return newProblem("CLIENT_CERTIFICATE_REQUIRED", "This operation needs a client certificate (mutual TLS).")
}

// sendsBody reports whether a request has a body of at least one byte.
func sendsBody(r *http.Request) bool {
	if r.ContentLength >= 0 {
		return r.ContentLength > 0
	}
	n, _ := io.ReadFull(r.Body, make([]byte, 1))
	return n > 0
}

// badParameter answers a request with a header that is given twice. readParameters has checked
// the parameters of the path and the query.
func (s *server) badParameter(w http.ResponseWriter, r *http.Request, name string) {
	s.fail(w, r, fieldProblem(name, "INVALID", "is not of the documented form"))
}

// accepts reports whether an Accept header (RFC 9110 section 12.5.1) names one of the media
// types with a quality value above 0. An absent header names all types.
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

// wantsNDJSON reports whether an Accept header names NDJSON, but not JSON.
func wantsNDJSON(accept string) bool {
	return accept != "" && accepts(accept, mediaNDJSON) && !accepts(accept, mediaJSON)
}
