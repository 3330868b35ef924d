package receiver

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net/http"
	"os"
	"time"
)

// feedClient returns a client that presents the certificate in SPENDHOOK_CLIENT_CERT, if that is
// set. Spendhook may require a certificate for the feed.
func feedClient() (*http.Client, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if name := os.Getenv("SPENDHOOK_CLIENT_CERT"); name != "" {
		pair, err := tls.LoadX509KeyPair(name, os.Getenv("SPENDHOOK_CLIENT_KEY"))
		if err != nil {
			return nil, err
		}
		config.Certificates = []tls.Certificate{pair}
	}
	if name := os.Getenv("SPENDHOOK_CACERT"); name != "" {
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(text) {
			return nil, errors.New(name + " contains no certificate")
		}
	}
	return &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{TLSClientConfig: config}}, nil
}
