package clientcert

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"regexp"
)

var thumbprint = regexp.MustCompile(`^[A-Za-z0-9_-]{43}$`)

// IsThumbprint reports whether text has the form of a thumbprint: 43 characters of base64url.
func IsThumbprint(text string) bool { return thumbprint.MatchString(text) }

// ThumbprintsOf returns the "x5t#S256" of each certificate: of one in a PEM file, or the text
// itself when it is one.
func ThumbprintsOf(certificates []string) ([]string, error) {
	list := make([]string, len(certificates))
	for i, text := range certificates {
		if list[i] = text; IsThumbprint(text) {
			continue
		}
		data, err := os.ReadFile(text)
		if err != nil {
			return nil, fmt.Errorf("certificate: %w", err)
		}
		block, _ := pem.Decode(data)
		if block == nil || block.Type != "CERTIFICATE" {
			return nil, fmt.Errorf("certificate: %s is not a PEM certificate", text)
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("certificate: %s: %w", text, err)
		}
		list[i] = Thumbprint(cert)
	}
	return list, nil
}
