// Package clientcert provides the client certificate of a request: the one of its TLS
// handshake, or the one that a trusted proxy forwards.
package clientcert

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"slices"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"spendhook/internal/clock"
)

const cached = 4096 // certificates

// Verifier verifies client certificates against the present authorities. It caches successes: a
// signature costs a hundred times as much as a cache look-up. It is safe for concurrent use.
type Verifier struct {
	pool  func() *x509.CertPool
	now   func() time.Time
	cache *lru.Cache[certKey, time.Time] // until when the chain is valid
}

// certKey includes the pool, so that a new bundle starts with an empty cache.
type certKey struct {
	pool *x509.CertPool
	hash [sha256.Size]byte
}

// NewVerifier trusts what pool returns, which must be the same pointer as long
// as the authorities are the same; nil now means time.Now.
func NewVerifier(pool func() *x509.CertPool, now func() time.Time) *Verifier {
	cache, err := lru.New[certKey, time.Time](cached)
	if err != nil {
		panic(err) // only for a cache of no size
	}
	return &Verifier{pool: pool, now: clock.Or(now), cache: cache}
}

// Verify reports whether chain, the client's certificate first and then its
// intermediates, leads to an authority, is in its time and may identify a
// client. The error is of crypto/x509.
func (v *Verifier) Verify(chain []*x509.Certificate) error {
	pool, now := v.pool(), v.now()
	key := certKey{pool, sha256.Sum256(chain[0].Raw)}
	if until, ok := v.cache.Get(key); ok && !now.After(until) {
		return nil
	}
	intermediates := x509.NewCertPool()
	for _, cert := range chain[1:] {
		intermediates.AddCert(cert)
	}
	chains, err := chain[0].Verify(x509.VerifyOptions{
		Roots: pool, Intermediates: intermediates, CurrentTime: now,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	if err != nil {
		v.cache.Remove(key)
		return err
	}
	first := slices.MinFunc(chains[0], func(a, b *x509.Certificate) int { return a.NotAfter.Compare(b.NotAfter) })
	v.cache.Add(key, first.NotAfter)
	return nil
}

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
