// Package certificate keeps the client certificate of each company, for receivers that ask
// for one (mutual TLS).
package certificate

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"time"

	"spendhook/internal/clientcert"
	"spendhook/internal/invalid"
)

const (
	maxChainBytes = 32 << 10
	maxChain      = 10
	maxKeyBytes   = 16 << 10
	minRSA        = 2048 // bits
	maxRSA        = 8192 // bits: each handshake costs a signature
)

// Certificate is the client certificate of a company, for receivers that ask for one (TLS, RFC
// 8446 section 4.4.2). It is immutable.
type Certificate struct {
	Subject, Issuer     string
	Thumbprint          string // SHA-256 of the certificate, base64url (RFC 8705, x5t#S256)
	NotBefore, NotAfter time.Time
	UpdatedAt           time.Time

	// TLS is for the handshake: chain and private key. It is nil when Locked.
	TLS    *tls.Certificate
	Locked error // why the key does not open; else nil
}

// Input is a certificate as it is given: the chain in PEM, its own
// certificate first, and its private key in PEM, PKCS #8 and not encrypted.
type Input struct{ Chain, PrivateKey string }

// parse checks a new certificate. Its *invalid.Error never repeats any part of the key.
func (in Input) parse(now time.Time) (*Certificate, error) {
	var problems invalid.Error
	chain := parseChain(&problems, in.Chain)
	key := parsePrivateKey(&problems, in.PrivateKey)
	if err := problems.OrNil(); err != nil {
		return nil, err
	}
	checkLeaf(&problems, chain[0], now)
	if public, ok := chain[0].PublicKey.(interface{ Equal(crypto.PublicKey) bool }); !ok || !public.Equal(key.Public()) {
		problems.Add("privateKey", "MISMATCH", "is not the key of the first certificate of the chain")
	}
	for i, c := range chain[1:] {
		if chain[i].CheckSignatureFrom(c) != nil {
			problems.Add("certificateChain", "INVALID", "certificate %d of the chain is not signed by the next one", i+1)
		}
	}
	if err := problems.OrNil(); err != nil {
		return nil, err
	}
	c := newCertificate(chain, now)
	c.TLS.PrivateKey = key
	return c, nil
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

func parseChain(problems *invalid.Error, text string) []*x509.Certificate {
	chain, err := readChain(text)
	switch {
	case text == "":
		problems.Add("certificateChain", "REQUIRED", "is required")
	case len(text) > maxChainBytes:
		problems.Add("certificateChain", "TOO_LONG", "must be at most %d bytes", maxChainBytes)
	case err != nil:
		problems.Add("certificateChain", "INVALID", "%v", err)
	case len(chain) > maxChain:
		problems.Add("certificateChain", "TOO_MANY", "must be at most %d certificates", maxChain)
	}
	return chain
}

var errChain = errors.New("must be PEM blocks CERTIFICATE and nothing else, the client's own certificate first")

func readChain(text string) ([]*x509.Certificate, error) {
	if len(text) > maxChainBytes {
		return nil, errChain
	}
	var chain []*x509.Certificate
	for rest := []byte(text); len(bytes.TrimSpace(rest)) > 0; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil || block.Type != "CERTIFICATE" {
			return nil, errChain
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, errChain
		}
		chain = append(chain, c)
	}
	if len(chain) == 0 {
		return nil, errChain
	}
	return chain, nil
}

func parsePrivateKey(problems *invalid.Error, text string) crypto.Signer {
	if text == "" {
		problems.Add("privateKey", "REQUIRED", "is required")
		return nil
	}
	if len(text) > maxKeyBytes {
		problems.Add("privateKey", "TOO_LONG", "must be at most %d bytes", maxKeyBytes)
		return nil
	}
	key, err := readPrivateKey([]byte(text))
	if err != nil {
		problems.Add("privateKey", "INVALID", "%v", err)
	}
	return key
}

func readPrivateKey(text []byte) (crypto.Signer, error) {
	block, rest := pem.Decode(text)
	if block == nil || block.Type != "PRIVATE KEY" || len(bytes.TrimSpace(rest)) > 0 {
		return nil, errors.New("must be one PEM block PRIVATE KEY (PKCS #8, not encrypted), as from: openssl pkcs8 -topk8 -nodes")
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, errors.New("is not a PKCS #8 private key")
	}
	switch key := parsed.(type) {
	case *ecdsa.PrivateKey:
		return key, nil
	case ed25519.PrivateKey:
		return key, nil
	case *rsa.PrivateKey:
		if bits := key.N.BitLen(); bits < minRSA || bits > maxRSA {
			return nil, fmt.Errorf("is an RSA key of %d bits, must be of %d to %d", bits, minRSA, maxRSA)
		}
		return key, nil
	}
	return nil, errors.New("must be an ECDSA, Ed25519 or RSA key")
}

func checkLeaf(problems *invalid.Error, leaf *x509.Certificate, now time.Time) {
	switch {
	case !now.Before(leaf.NotAfter):
		problems.Add("certificateChain", "EXPIRED", "expired on %s", leaf.NotAfter.UTC().Format(time.RFC3339))
	case now.Before(leaf.NotBefore):
		problems.Add("certificateChain", "NOT_YET_VALID", "is valid from %s on", leaf.NotBefore.UTC().Format(time.RFC3339))
	}
	usages := leaf.ExtKeyUsage
	if len(usages)+len(leaf.UnknownExtKeyUsage) > 0 &&
		!slices.Contains(usages, x509.ExtKeyUsageClientAuth) && !slices.Contains(usages, x509.ExtKeyUsageAny) {
		problems.Add("certificateChain", "INVALID", "its extended key usage does not include client authentication")
	}
}
