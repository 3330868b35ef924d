// Package clientcert provides the client certificate of a request: the one of its TLS
// handshake, or the one that a trusted proxy forwards.
package clientcert

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
)

type contextKey struct{}

// With returns a context that carries cert, which must be verified: whoever
// reads it with From relies on that.
func With(ctx context.Context, cert *x509.Certificate) context.Context {
	return context.WithValue(ctx, contextKey{}, cert)
}

// From is the verified client certificate of a request, nil when none was
// presented. It must not be modified.
func From(ctx context.Context) *x509.Certificate {
	cert, _ := ctx.Value(contextKey{}).(*x509.Certificate)
	return cert
}

// ThumbprintFrom is the Thumbprint of the client certificate of a request, "" when none was
// presented.
func ThumbprintFrom(ctx context.Context) string {
	if cert := From(ctx); cert != nil {
		return Thumbprint(cert)
	}
	return ""
}

// Thumbprint is the "x5t#S256" of a certificate (RFC 8705 section 3.1): the
// SHA-256 of its DER form as base64url without padding.
func Thumbprint(cert *x509.Certificate) string {
	sum := sha256.Sum256(cert.Raw)
	return base64.RawURLEncoding.EncodeToString(sum[:])
}
