// Package certificate keeps the client certificates of companies, and of single subscribers, for receivers that
// ask for one (mutual TLS).
package certificate

import (
	"bytes"
	"crypto"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"slices"
	"time"

	"github.com/google/uuid"

	"spendhook/internal/clientcert"
	"spendhook/internal/invalid"
)

const (
	maxChainBytes = 32 << 10
	maxChain      = 10
	maxKeyBytes   = 16 << 10
	minRSA        = 2048 // bits
	maxRSA        = 4096 // bits: each handshake costs a signature, of 244 ms with 8192 bits
)

// Certificate is the client certificate of a company or a subscriber (RFC 8446 section 4.4.2). It is immutable.
type Certificate struct {
	Subject, Issuer     string
	Thumbprint          string // SHA-256 of the certificate, base64url (RFC 8705, x5t#S256)
	NotBefore, NotAfter time.Time
	UpdatedAt           time.Time

	// TLS is for the handshake: chain and private key. It is nil when Locked.
	TLS    *tls.Certificate
	Locked error // why the key cannot be decrypted; else nil
}

// Input is a new certificate: the chain in PEM, the client's own certificate first, and the
// unencrypted private key in PEM.
type Input struct{ Chain, PrivateKey string }

// parse checks a new certificate of a company or its subscriber. Its *invalid.Error never repeats any part of the key.
func (in Input) parse(company uuid.UUID, now time.Time) (*Certificate, error) {
	var problems invalid.Error
	chain := parseChain(&problems, in.Chain)
	checkLength(&problems, "privateKey", in.PrivateKey, maxKeyBytes)
	if err := problems.OrNil(); err != nil {
		return nil, err
	}
	pair, err := tls.X509KeyPair([]byte(in.Chain), []byte(in.PrivateKey))
	if err != nil {
		problems.Add("privateKey", "INVALID", "must be the key of the first certificate of the chain, in PEM and not encrypted")
	}
	checkLeaf(&problems, chain[0], now)
	checkLinks(&problems, chain)
	if err := problems.OrNil(); err != nil {
		return nil, err
	}
	c := newCertificate(chain, now)
	return c, c.setKey(company, pair.PrivateKey)
}

// setKey sets the private key of a company or its subscriber.
func (c *Certificate) setKey(company uuid.UUID, key crypto.PrivateKey) error {
	signer, ok := key.(crypto.Signer)
	if !ok {
		return errors.New("the private key cannot sign")
	}
	c.TLS.PrivateKey = &oneByOne{Signer: signer, company: company}
	return nil
}

func newCertificate(chain []*x509.Certificate, updated time.Time) *Certificate {
	leaf := chain[0]
	c := &Certificate{
		Subject: leaf.Subject.String(), Issuer: leaf.Issuer.String(),
		Thumbprint: clientcert.Thumbprint(leaf),
		NotBefore:  leaf.NotBefore.UTC(), NotAfter: leaf.NotAfter.UTC(), UpdatedAt: updated,
		TLS: &tls.Certificate{Leaf: leaf},
	}
	for _, link := range chain {
		c.TLS.Certificate = append(c.TLS.Certificate, link.Raw)
	}
	return c
}

func checkLength(problems *invalid.Error, field, text string, most int) bool {
	switch {
	case text == "":
		problems.Add(field, "REQUIRED", "is required")
	case len(text) > most:
		problems.Add(field, "TOO_LONG", "must be at most %d bytes", most)
	}
	return text != "" && len(text) <= most
}

func parseChain(problems *invalid.Error, text string) []*x509.Certificate {
	if !checkLength(problems, "certificateChain", text, maxChainBytes) {
		return nil
	}
	chain, err := readChain(text)
	switch {
	case err != nil:
		problems.Add("certificateChain", "INVALID", "%v", err)
	case len(chain) > maxChain:
		problems.Add("certificateChain", "TOO_MANY", "must be at most %d certificates", maxChain)
	}
	return chain
}

var errChain = errors.New("must be PEM blocks CERTIFICATE and nothing else, the client's own certificate first")

func readChain(text string) ([]*x509.Certificate, error) {
	var der []byte
	for rest := []byte(text); len(bytes.TrimSpace(rest)) > 0; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil || block.Type != "CERTIFICATE" {
			return nil, errChain
		}
		der = append(der, block.Bytes...)
	}
	chain, err := x509.ParseCertificates(der)
	if err != nil || len(chain) == 0 {
		return nil, errChain
	}
	return chain, nil
}

func checkLeaf(problems *invalid.Error, leaf *x509.Certificate, now time.Time) {
	switch {
	case !now.Before(leaf.NotAfter):
		problems.Add("certificateChain", "EXPIRED", "expired on %s", leaf.NotAfter.UTC().Format(time.RFC3339))
	case now.Before(leaf.NotBefore):
		problems.Add("certificateChain", "NOT_YET_VALID", "is valid from %s on", leaf.NotBefore.UTC().Format(time.RFC3339))
	}
	if bits, ok := rsaBits(leaf); ok && (bits < minRSA || bits > maxRSA) {
		problems.Add("certificateChain", "INVALID", "has an RSA key of %d bits, must be of %d to %d", bits, minRSA, maxRSA)
	}
	usages := leaf.ExtKeyUsage
	if len(usages)+len(leaf.UnknownExtKeyUsage) > 0 &&
		!slices.Contains(usages, x509.ExtKeyUsageClientAuth) && !slices.Contains(usages, x509.ExtKeyUsageAny) {
		problems.Add("certificateChain", "INVALID", "its extended key usage does not include client authentication")
	}
}

// checkLinks checks that each certificate of a chain is signed by the next one. It verifies nothing by a large key, which
// may take seconds.
func checkLinks(problems *invalid.Error, chain []*x509.Certificate) {
	for i, c := range chain[1:] {
		if bits, ok := rsaBits(c); ok && bits > maxRSA {
			problems.Add("certificateChain", "INVALID", "certificate %d of the chain has an RSA key of %d bits, must be of at most %d", i+2, bits, maxRSA)
			return
		}
	}
	for i, c := range chain[1:] {
		if chain[i].CheckSignatureFrom(c) != nil {
			problems.Add("certificateChain", "INVALID", "certificate %d of the chain is not signed by the next one", i+1)
		}
	}
}

// rsaBits is the size of the certificate's RSA key. It reports whether it has one.
func rsaBits(c *x509.Certificate) (bits int, ok bool) {
	key, ok := c.PublicKey.(*rsa.PublicKey)
	if !ok {
		return 0, false
	}
	return key.N.BitLen(), true
}
