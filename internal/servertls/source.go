package servertls

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

// The two sources are reloaded independently: an invalid bundle must not block the renewal of a
// certificate.
const (
	certificateFiles = "certificate"
	bundleFile       = "client_ca"
)

const maxFile = 4 << 20 // bytes

// source is a group of files that must match.
type source struct {
	what  string
	paths []string
	use   func(contents [][]byte) error

	used     [][]byte // the contents in use
	failures int      // checks in a row that found invalid files
}

// look reads the files and uses them when they have changed.
func (s *source) look() (changed bool, err error) {
	contents, err := s.read()
	if err == nil && !slices.EqualFunc(contents, s.used, bytes.Equal) {
		changed, err = true, s.use(contents)
	}
	if err != nil {
		s.failures++
		return false, fmt.Errorf("%s: %w", strings.Join(s.paths, ", "), err)
	}
	s.used, s.failures = contents, 0
	return changed, nil
}

func (s *source) read() (contents [][]byte, err error) {
	for _, path := range s.paths {
		text, err := readFile(path)
		if err != nil {
			return nil, err
		}
		contents = append(contents, text)
	}
	return contents, nil
}

func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(text) > maxFile {
		err = fmt.Errorf("has more than %d bytes", maxFile)
	}
	return text, err
}

// parsePair refuses a key that is not the certificate's, and a chain that is
// cut off, which the standard library would take for a shorter one.
func parsePair(certs, key []byte) (*tls.Certificate, error) {
	if _, err := ParseCertificates(certs); err != nil {
		return nil, err
	}
	pair, err := tls.X509KeyPair(certs, key)
	if err != nil {
		return nil, err // says nothing of the key's content
	}
	return &pair, nil
}

// ParseCertificates reads all certificates of a PEM bundle, or none of them.
func ParseCertificates(text []byte) ([]*x509.Certificate, error) {
	begun := bytes.Count(text, []byte("-----BEGIN"))
	var certs []*x509.Certificate
	for {
		block, rest := pem.Decode(text)
		if block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			return nil, fmt.Errorf("holds a %s, want certificates only", block.Type)
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, err
		}
		certs, text = append(certs, cert), rest
	}
	if begun == 0 {
		return nil, errors.New("holds no certificate (PEM)")
	}
	if len(certs) != begun { // what the decoder cannot read, it skips
		return nil, errors.New("is cut off or damaged")
	}
	return certs, nil
}
