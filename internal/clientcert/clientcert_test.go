package clientcert_test

import (
	"crypto/x509"
	"testing"

	"spendhook/internal/clientcert"
)

func TestFromReturnsTheCertificateOfWith(t *testing.T) {
	t.Parallel()
	if clientcert.From(t.Context()) != nil {
		t.Error("a certificate in a context that has none")
	}
	cert := &x509.Certificate{Raw: []byte("abc")}
	if got := clientcert.From(clientcert.With(t.Context(), cert)); got != cert {
		t.Errorf("got %v", got)
	}
}

// TestThumbprint uses the SHA-256 of "abc" from FIPS 180-4's examples.
func TestThumbprint(t *testing.T) {
	t.Parallel()
	const want = "ungWv48Bz-pBQUDeXa4iI7ADYaOWF3qctBD_YfIAFa0"
	if got := clientcert.Thumbprint(&x509.Certificate{Raw: []byte("abc")}); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
