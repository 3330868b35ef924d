package servertls

import (
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
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

	seen   digest // of the files in use
	broken digest // of the invalid files found last
	looks  int    // number of checks that found them
}

type digest [sha256.Size]byte

// look reads the files and uses them when they have changed.
func (s *source) look() (changed bool, err error) {
	contents, now, err := s.read()
	if err == nil && now == s.seen {
		s.looks = 0
		return false, nil
	}
	if err == nil {
		err = s.use(contents)
	}
	if err == nil {
		s.seen, s.looks = now, 0
		return true, nil
	}
	if now != s.broken {
		s.broken, s.looks = now, 0
	}
	s.looks++
	return false, fmt.Errorf("%s: %w", strings.Join(s.paths, ", "), err)
}

// stillBroken is true once, at the second check that finds the same invalid files.
func (s *source) stillBroken() bool { return s.looks == 2 }

// read returns the files with a digest of them, or of why they cannot be read.
func (s *source) read() (contents [][]byte, sum digest, err error) {
	hash := sha256.New()
	for _, path := range s.paths {
		text, err := readFile(path)
		if err != nil {
			return nil, sha256.Sum256([]byte(err.Error())), err
		}
		one := sha256.Sum256(text)
		hash.Write(one[:])
		contents = append(contents, text)
	}
	return contents, digest(hash.Sum(nil)), nil
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
