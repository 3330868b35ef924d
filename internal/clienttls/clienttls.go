// Package clienttls reads the CA certificates and the client certificate of a TLS client from files.
package clienttls

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
)

// Files are PEM files: the CA of the server's certificate ("": the system's CAs), and
// the client certificate with its key ("": none).
type Files struct {
	CA, Cert, Key string
}

// ReadCAs reads the CA certificates of a PEM file.
func ReadCAs(file string) (*x509.CertPool, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read the CA certificates: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("%s has no certificate", file)
	}
	return pool, nil
}

// Apply adds the content of the files to c. The client certificate is read again at each
// handshake, so that it can be renewed. A nil f, or one without files, adds nothing. With files, a
// nil c is an error.
func (f *Files) Apply(c *tls.Config) error {
	if f == nil || *f == (Files{}) {
		return nil
	}
	if c == nil {
		return errors.New("certificates are configured, but the address has no TLS")
	}
	if f.CA != "" {
		var err error
		if c.RootCAs, err = ReadCAs(f.CA); err != nil {
			return err
		}
	}
	if f.Cert == "" {
		return nil
	}
	read := func() (*tls.Certificate, error) {
		pair, err := tls.LoadX509KeyPair(f.Cert, f.Key)
		if err != nil {
			return nil, fmt.Errorf("read the client certificate: %w", err)
		}
		return &pair, nil
	}
	if _, err := read(); err != nil {
		return err
	}
	c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return read() }
	return nil
}
