package main

import (
	"crypto/x509"
	"errors"
	"os"
	"path/filepath"
	"time"

	"spendhook/internal/devca"
)

// certificate has the files of the certificate of the receivers on loopback. The daemon and
// the bare loop trust its CA.
type certificate struct{ ca, cert, key string }

func makeCertificate(dir string) (c certificate, err error) {
	from, until := time.Now().Add(-time.Hour), time.Now().Add(24*time.Hour)
	authority, err := devca.New("bench", from, until)
	if err != nil {
		return c, err
	}
	pair, err := authority.Issue(devca.Leaf{
		Name: "receiver", Hosts: []string{"127.0.0.1"}, Usage: x509.ExtKeyUsageServerAuth, NotBefore: from, NotAfter: until,
	})
	c = certificate{ca: filepath.Join(dir, "ca.pem"), cert: filepath.Join(dir, "cert.pem"), key: filepath.Join(dir, "key.pem")}
	return c, errors.Join(err, os.WriteFile(c.ca, authority.PEM(), 0o600),
		os.WriteFile(c.cert, pair.Cert, 0o600), os.WriteFile(c.key, pair.Key, 0o600))
}
