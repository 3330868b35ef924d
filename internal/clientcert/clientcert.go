// Package clientcert carries the verified client certificate of a request in its context, and
// computes the thumbprints of certificates.
package clientcert

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"regexp"

	"spendhook/internal/servertls"
)

type contextKey struct{}

// With returns a context that carries cert. The caller must have verified cert: users of From rely
// on that.
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

var thumbprint = regexp.MustCompile(`^[A-Za-z0-9_-]{43}$`)

// IsThumbprint reports whether text has the form of a thumbprint: 43 characters of base64url.
func IsThumbprint(text string) bool { return thumbprint.MatchString(text) }

// ThumbprintsOf returns the thumbprints of certificates, each given as a PEM file or as its
// thumbprint. Of a file with a chain, the first certificate counts.
func ThumbprintsOf(certificates []string) ([]string, error) {
	list := make([]string, len(certificates))
	for i, text := range certificates {
		if list[i] = text; IsThumbprint(text) {
			continue
		}
		chain, err := servertls.ReadCertificates(text)
		if err != nil {
			return nil, fmt.Errorf("certificate: %w", err)
		}
		list[i] = Thumbprint(chain[0])
	}
	return list, nil
}
