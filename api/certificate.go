package api

import (
	"crypto/subtle"
	"errors"
	"fmt"
	"net/http"

	"spendhook/auth"
	"spendhook/internal/clientcert"
	"spendhook/internal/peer"
)

// identify adds the client's address and certificate to the request (see package peer). It
// refuses plain HTTP where TLS is required, and invalid certificates.
func (s *server) identify(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r, err := s.opts.Peers.Resolve(r)
		if err == nil {
			next.ServeHTTP(w, r)
			return
		}
		s.observe(noRoute, noMethod, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			s.fail(w, r, peerProblem(err))
		})).ServeHTTP(w, r)
	})
}

// peerProblem also ends the connection: on a new one the client may present
// another certificate.
func peerProblem(err error) *problem {
	p := newProblem(http.StatusForbidden, "TLS_REQUIRED", "This request must come by TLS.")
	switch {
	case errors.Is(err, peer.ErrUntrusted):
		p = newProblem(http.StatusForbidden, "CLIENT_CERTIFICATE_INVALID", "The client certificate is expired or not trusted.")
	case errors.Is(err, peer.ErrMalformed):
		p = newProblem(http.StatusBadRequest, "CLIENT_CERTIFICATE_MALFORMED", "The client certificate that the proxy forwards cannot be read.")
	}
	return p.with("Connection", "close")
}

// hasBoundCertificate reports whether a request may use its token: a token that is bound to a certificate
// needs that certificate (RFC 8705 section 3), an unbound token needs none.
func hasBoundCertificate(r *http.Request, c *auth.Caller) bool {
	return c.Thumbprint == "" ||
		subtle.ConstantTimeCompare([]byte(clientcert.ThumbprintFrom(r.Context())), []byte(c.Thumbprint)) == 1
}

// checkCertificate refuses a request without a client certificate where the group of its
// operation needs one.
func (s *server) checkCertificate(r *http.Request, group string) error {
	if s.opts.CertificateRequired[group] && clientcert.From(r.Context()) == nil {
		return newProblem(http.StatusForbidden, "CLIENT_CERTIFICATE_REQUIRED", "This operation needs a client certificate (mutual TLS).")
	}
	return nil
}

// checkGroups returns an error for an operation that needs a token and has no group, or
// whose group is missing in required.
func checkGroups(all routes, required map[string]bool) error {
	for _, operations := range all {
		for _, op := range operations {
			if op.public {
				continue
			}
			if _, known := required[op.group]; op.group == "" || (required != nil && !known) {
				return fmt.Errorf("%s: its tag %q is no group of client certificates", op.id, op.group)
			}
		}
	}
	return nil
}
