package peer

import (
	"crypto/sha256"
	"crypto/x509"
	"net/http"
	"net/netip"

	"spendhook/internal/servertls"
)

const maxCached = 4096 // certificates

// certKey includes the pool, so that a new bundle starts with an empty cache.
type certKey struct {
	pool *x509.CertPool
	hash [sha256.Size]byte
}

// certificate returns the client's verified certificate, and nil if the request has none. The
// handshake has verified the certificate of a connection, but maybe long ago: since then the
// authorities may have changed, and the certificate may have expired.
func (p *Resolver) certificate(r *http.Request, proxied bool, direct netip.Addr, forwarded []string) (*x509.Certificate, error) {
	authorities := p.opts.Authorities()
	var chain []*x509.Certificate // the client's certificate first
	switch {
	case proxied && len(forwarded) > 0:
		cert, err := p.form.parse(forwarded)
		if cert == nil || err != nil || authorities == nil {
			return cert, err
		}
		chain = []*x509.Certificate{cert}
	case proxied:
	case r.TLS != nil && authorities != nil:
		chain = r.TLS.PeerCertificates
	case r.TLS == nil && p.opts.RefuseClear && !direct.IsLoopback():
		return nil, ErrInClear
	}
	if len(chain) == 0 {
		return nil, nil //nolint:nilnil // no certificate is no error
	}
	if !p.trusted(chain, authorities) {
		return nil, ErrUntrusted
	}
	return chain[0], nil
}

// trusted reports whether the chain leads to an authority, has not expired, and may identify a
// client. It caches successes: to verify a signature costs a hundred times as much as to look it up.
func (p *Resolver) trusted(chain []*x509.Certificate, authorities *x509.CertPool) bool {
	now := p.opts.Now()
	key := certKey{authorities, sha256.Sum256(chain[0].Raw)}
	if until, ok := p.cache.Get(key); ok && !now.After(until) {
		return true
	}
	intermediates := x509.NewCertPool()
	for _, cert := range chain[1:] {
		intermediates.AddCert(cert)
	}
	chains, err := chain[0].Verify(x509.VerifyOptions{
		Roots: authorities, Intermediates: intermediates, CurrentTime: now,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	if err != nil {
		p.cache.Remove(key)
		return false
	}
	p.cache.Add(key, servertls.FirstToExpire(chains[0]).NotAfter)
	return true
}
