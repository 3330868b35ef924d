package devca_test

import (
	"crypto/x509"
	"testing"
	"time"

	"spendhook/internal/devca"
)

func TestIssuedCertificateVerifies(t *testing.T) {
	t.Parallel()
	now := time.Now()
	ca, err := devca.New("test CA", now, now.Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	other, err := devca.New("test CA", now, now.Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	pair, err := ca.Issue(devca.Leaf{
		Name: "server", Hosts: []string{"localhost", "127.0.0.1"}, Usage: x509.ExtKeyUsageServerAuth,
		NotBefore: now, NotAfter: now.Add(time.Hour),
	})
	if err != nil {
		t.Fatal(err)
	}
	cert, err := pair.TLS()
	if err != nil {
		t.Fatal(err)
	}
	for _, host := range []string{"localhost", "127.0.0.1"} {
		if _, err := cert.Leaf.Verify(x509.VerifyOptions{DNSName: host, Roots: ca.Pool()}); err != nil {
			t.Errorf("%s: %v", host, err)
		}
	}
	for name, options := range map[string]x509.VerifyOptions{
		"another CA":    {Roots: other.Pool()},
		"another usage": {Roots: ca.Pool(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}},
		"another host":  {Roots: ca.Pool(), DNSName: "example.com"},
		"another time":  {Roots: ca.Pool(), CurrentTime: now.Add(2 * time.Hour)},
	} {
		if _, err := cert.Leaf.Verify(options); err == nil {
			t.Errorf("verifies with %s", name)
		}
	}
}
