package subscriberstest

import (
	"crypto/x509"
	"testing"
	"time"

	"spendhook/internal/devca"
	"spendhook/subscribers/certificate"
)

// ClientCertificate returns a new certificate that is valid from now for 60 days.
func ClientCertificate(tb testing.TB, now time.Time) certificate.Input {
	tb.Helper()
	ca, err := devca.New("test", now.Add(-time.Hour), now.Add(90*24*time.Hour))
	if err != nil {
		tb.Fatal(err)
	}
	pair, err := ca.Issue(devca.Leaf{
		Name: "client", Usage: x509.ExtKeyUsageClientAuth, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(60 * 24 * time.Hour),
	})
	if err != nil {
		tb.Fatal(err)
	}
	return certificate.Input{Chain: string(pair.Cert), PrivateKey: string(pair.Key)}
}
