package peer

import (
	"crypto/sha256"
	"crypto/x509"
	"slices"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"spendhook/internal/clock"
)

const cached = 4096 // certificates

// verifier verifies client certificates against the present authorities. It caches successes: a
// signature costs a hundred times as much as a cache look-up. It is safe for concurrent use.
type verifier struct {
	pool  func() *x509.CertPool
	now   func() time.Time
	cache *lru.Cache[certKey, time.Time] // until when the chain is valid
}

// certKey includes the pool, so that a new bundle starts with an empty cache.
type certKey struct {
	pool *x509.CertPool
	hash [sha256.Size]byte
}

// newVerifier trusts what pool returns, which must be the same pointer as long
// as the authorities are the same; nil now means time.Now.
func newVerifier(pool func() *x509.CertPool, now func() time.Time) *verifier {
	cache, err := lru.New[certKey, time.Time](cached)
	if err != nil {
		panic(err) // only for a cache of no size
	}
	return &verifier{pool: pool, now: clock.Or(now), cache: cache}
}

// verify reports whether chain, the client's certificate first and then its
// intermediates, leads to an authority, is in its time and may identify a
// client. The error is of crypto/x509.
func (v *verifier) verify(chain []*x509.Certificate) error {
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
