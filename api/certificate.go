package api

import (
	"crypto/subtle"
	"net/http"

	"spendhook/auth"
	"spendhook/internal/clientcert"
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
		w.Header().Set("Connection", "close") // on a new connection the client may present another certificate
		s.observe(noRoute, noMethod, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			s.fail(w, r, err)
		})).ServeHTTP(w, r)
	})
}

// hasBoundCertificate reports whether a request may use its token: a token that is bound to a certificate
// needs that certificate (RFC 8705 section 3), an unbound token needs none.
func hasBoundCertificate(r *http.Request, c *auth.Caller) bool {
	return c.Thumbprint == "" ||
		subtle.ConstantTimeCompare([]byte(clientcert.ThumbprintFrom(r.Context())), []byte(c.Thumbprint)) == 1
}

// checkCertificate refuses a request without a client certificate where the group of its
// operation needs one. A group without a switch needs one too.
func (s *server) checkCertificate(r *http.Request, group string) error {
	required, known := s.opts.CertificateRequired[group]
	if s.opts.CertificateRequired == nil || known && !required || clientcert.From(r.Context()) != nil {
		return nil
	}
	return newProblem("CLIENT_CERTIFICATE_REQUIRED", "This operation needs a client certificate (mutual TLS).")
}
