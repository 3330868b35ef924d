// Package peer finds the address and the certificate of a request's client: those of the
// connection or, if a trusted proxy opened it, those in the headers that the proxy sets.
package peer

import (
	"context"
	"crypto/x509"
	"errors"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"spendhook/internal/clientcert"
	"spendhook/internal/clock"
)

// Header is the form in which the proxies forward a client's certificate.
type Header string

// The forms: Client-Cert of RFC 9440, and X-Forwarded-Client-Cert of Envoy.
const (
	ClientCert Header = "client-cert"
	XFCC       Header = "xfcc"
)

// Errors of Resolve.
var (
	// ErrMalformed: the certificate that a trusted proxy forwards cannot be read.
	ErrMalformed = errors.New("the forwarded client certificate is malformed")
	// ErrUntrusted: the certificate is not signed by a current CA, or has expired.
	ErrUntrusted = errors.New("the client certificate is not trusted")
	// ErrInClear: the request came over the network without TLS, and not from
	// a trusted proxy.
	ErrInClear = errors.New("the request is not protected by TLS")
)

// Options are the trusted proxies and CAs. The zero value trusts no proxy and no CA.
type Options struct {
	// Proxies are the trusted proxies: Header and X-Forwarded-For count only on connections
	// from one of them.
	Proxies []netip.Prefix
	Header  Header // "" means ClientCert

	// Authorities returns the present CAs of client certificates: the same pointer as long as they
	// are the same. If it is nil or returns nil, certificates that a trusted proxy forwards are not
	// verified again.
	Authorities func() *x509.CertPool

	// RefuseClear refuses requests without TLS, except from trusted proxies and this machine.
	RefuseClear bool

	Now func() time.Time // nil means time.Now
}

// Resolver finds the client of a request. It is safe for concurrent use.
type Resolver struct {
	opts  Options
	form  headerForm
	cache *lru.Cache[certKey, time.Time] // until when the chain of a certificate is valid
}

// New returns a Resolver for these options.
func New(o Options) *Resolver {
	if o.Authorities == nil {
		o.Authorities = func() *x509.CertPool { return nil }
	}
	o.Now = clock.Or(o.Now)
	cache, _ := lru.New[certKey, time.Time](maxCached) // fails only for a size < 1
	form := headerForm{"Client-Cert", parseHeader}
	if o.Header == XFCC {
		form = headerForm{"X-Forwarded-Client-Cert", parseXFCC}
	}
	return &Resolver{opts: o, form: form, cache: cache}
}

// headerForm is a header with a certificate, and the function that reads its lines.
type headerForm struct {
	name  string
	parse func(lines []string) (*x509.Certificate, error)
}

type contextKey struct{}

// Address is the client's address in a context that Resolve made; the zero
// Addr when it is unknown. An IPv4 address is never in its IPv6 form.
func Address(ctx context.Context) netip.Addr {
	address, _ := ctx.Value(contextKey{}).(netip.Addr)
	return address
}

// AddressText is Address as text, "" when it is unknown.
func AddressText(ctx context.Context) string {
	if address := Address(ctx); address.IsValid() {
		return address.String()
	}
	return ""
}

// Resolve returns the request with the client's address (Address) and verified
// certificate (clientcert.From) in its context. It removes all headers that could claim
// either. On an error, which is one of this package's, the context has the address only.
//
// A trusted proxy's own certificate is never used as a client's: for requests through a
// proxy, only the header counts.
func (p *Resolver) Resolve(r *http.Request) (*http.Request, error) {
	direct := remote(r)
	proxied := p.Trusts(direct)
	address := direct
	if proxied {
		address = p.client(direct, r.Header["X-Forwarded-For"])
	}
	forwarded := r.Header[p.form.name]
	for _, name := range []string{"Client-Cert", "Client-Cert-Chain", "X-Forwarded-Client-Cert", "X-Forwarded-For", "Forwarded", "X-Real-Ip"} {
		delete(r.Header, name)
	}
	ctx := context.WithValue(r.Context(), contextKey{}, address)
	cert, err := p.certificate(r, proxied, direct, forwarded)
	if cert != nil && err == nil {
		ctx = clientcert.With(ctx, cert)
	}
	return r.WithContext(ctx), err
}

// Trusts reports whether address is a trusted proxy's.
func (p *Resolver) Trusts(address netip.Addr) bool {
	return slices.ContainsFunc(p.opts.Proxies, func(proxies netip.Prefix) bool { return proxies.Contains(address) })
}

// client is the last hop of X-Forwarded-For that is not a trusted proxy. Each proxy appends
// the address of its client. The client may have forged the entries before its own.
func (p *Resolver) client(direct netip.Addr, lines []string) netip.Addr {
	address := direct
	hops := strings.Split(strings.Join(lines, ","), ",")
	for _, hop := range slices.Backward(hops) {
		next, ok := parseHop(strings.TrimSpace(hop))
		if !ok {
			break
		}
		if address = next; !p.Trusts(next) {
			break
		}
	}
	return address
}

// parseHop reads an address, with or without a port.
func parseHop(text string) (netip.Addr, bool) {
	if withPort, err := netip.ParseAddrPort(text); err == nil {
		return plain(withPort.Addr()), true
	}
	address, err := netip.ParseAddr(strings.Trim(text, "[]"))
	return plain(address), err == nil
}

// remote is the other end of the connection.
func remote(r *http.Request) netip.Addr {
	address, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return netip.Addr{}
	}
	return plain(address.Addr())
}

// plain drops the IPv6 form of an IPv4 address, and a zone.
func plain(address netip.Addr) netip.Addr { return address.Unmap().WithZone("") }

// Network is the network of an address that is limited as one client: the address itself
// for IPv4, the /64 for IPv6, since one customer usually has a /64. The zero Addr has the
// zero Prefix.
func Network(address netip.Addr) netip.Prefix {
	bits := address.BitLen()
	if address.Is6() {
		bits = 64
	}
	network, _ := address.Prefix(bits) // the zero Prefix for the zero Addr
	return network
}
