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
	"io"
	"slices"
	"sync"
	"time"

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

// parse checks a new certificate. Its *invalid.Error never repeats any part of the key.
func (in Input) parse(now time.Time) (*Certificate, error) {
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
	for i, c := range chain[1:] {
		if chain[i].CheckSignatureFrom(c) != nil {
			problems.Add("certificateChain", "INVALID", "certificate %d of the chain is not signed by the next one", i+1)
		}
	}
	if err := problems.OrNil(); err != nil {
		return nil, err
	}
	c := newCertificate(chain, now)
	return c, c.setKey(pair.PrivateKey)
}

// setKey sets the private key. It signs one handshake at a time: a signature by RSA takes milliseconds,
// and a receiver can ask a company for as many as it has attempts.
func (c *Certificate) setKey(key crypto.PrivateKey) error {
	signer, ok := key.(crypto.Signer)
	if !ok {
		return errors.New("the private key cannot sign")
	}
	c.TLS.PrivateKey = &oneByOne{Signer: signer}
	return nil
}

// oneByOne makes one signature at a time. It is safe for concurrent use.
type oneByOne struct {
	crypto.Signer

	mu sync.Mutex
}

// Sign implements crypto.Signer.
func (k *oneByOne) Sign(random io.Reader, digest []byte, opts crypto.SignerOpts) ([]byte, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.Signer.Sign(random, digest, opts)
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
	if key, ok := leaf.PublicKey.(*rsa.PublicKey); ok && (key.N.BitLen() < minRSA || key.N.BitLen() > maxRSA) {
		problems.Add("certificateChain", "INVALID", "has an RSA key of %d bits, must be of %d to %d", key.N.BitLen(), minRSA, maxRSA)
	}
	usages := leaf.ExtKeyUsage
	if len(usages)+len(leaf.UnknownExtKeyUsage) > 0 &&
		!slices.Contains(usages, x509.ExtKeyUsageClientAuth) && !slices.Contains(usages, x509.ExtKeyUsageAny) {
		problems.Add("certificateChain", "INVALID", "its extended key usage does not include client authentication")
	}
}
