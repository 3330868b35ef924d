package peer

import (
	"bytes"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"net/url"
	"strings"
	"testing"
	"time"

	"spendhook/internal/devca"
)

func authority(tb testing.TB) *devca.Authority {
	tb.Helper()
	ca, err := devca.New("test CA", time.Now().Add(-time.Hour), time.Now().Add(24*time.Hour))
	if err != nil {
		tb.Fatal(err)
	}
	return ca
}

// issue is a client's certificate, valid from an hour ago for an hour or so.
func issue(tb testing.TB, ca *devca.Authority, edit ...func(*devca.Leaf)) *x509.Certificate {
	tb.Helper()
	leaf := devca.Leaf{
		Name: "client", Usage: x509.ExtKeyUsageClientAuth,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	for _, e := range edit {
		e(&leaf)
	}
	pair, err := ca.Issue(leaf)
	if err != nil {
		tb.Fatal(err)
	}
	cert, err := pair.TLS()
	if err != nil {
		tb.Fatal(err)
	}
	return cert.Leaf
}

func TestParseHeader(t *testing.T) {
	t.Parallel()
	cert := issue(t, authority(t))
	good := ":" + base64.StdEncoding.EncodeToString(cert.Raw) + ":"
	for _, lines := range [][]string{{good}, {" " + good + " "}, {good + ";a=1"}} {
		got, err := parseHeader(lines)
		if err != nil || !got.Equal(cert) {
			t.Errorf("%q: %v", lines, err)
		}
	}
	for name, lines := range map[string][]string{
		"empty":            {""},
		"no bytes":         {"::"},
		"not a sequence":   {base64.StdEncoding.EncodeToString(cert.Raw)},
		"text":             {`"abc"`},
		"not base64":       {":***:"},
		"not DER":          {":aHVudGVyMg==:"},
		"trailing DER":     {":" + base64.StdEncoding.EncodeToString(append(bytes.Clone(cert.Raw), 0)) + ":"},
		"two in a line":    {good + ", " + good},
		"two lines":        {good, good},
		"good after bad":   {"x", good},
		"PEM":              {url.PathEscape(pemOf(cert))},
		"cut off":          {good[:len(good)/2]},
		"inner list":       {"(" + good + ")"},
		"followed by more": {good + " x"},
	} {
		if got, err := parseHeader(lines); !errors.Is(err, ErrMalformed) || got != nil {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
}

func pemOf(cert *x509.Certificate) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw}))
}

// escaped is the certificate as Envoy writes it.
func escaped(cert *x509.Certificate) string {
	return strings.NewReplacer("\n", "%0A", " ", "%20", "+", "%2B", "/", "%2F", "=", "%3D").Replace(pemOf(cert))
}

func hashOf(cert *x509.Certificate) string {
	sum := sha256.Sum256(cert.Raw)
	return hex.EncodeToString(sum[:])
}

func TestParseXFCC(t *testing.T) {
	t.Parallel()
	ca := authority(t)
	cert, other := issue(t, ca), issue(t, ca)
	c, hash := `Cert="`+escaped(cert)+`"`, "Hash="+hashOf(cert)
	foreign := `Hash=` + hashOf(other) + `;Cert="` + escaped(other) + `"`
	for name, lines := range map[string][]string{
		"cert alone":          {c},
		"with its hash":       {hash + ";" + c},
		"upper-case hash":     {"Hash=" + strings.ToUpper(hashOf(cert)) + ";" + c},
		"as Envoy documents":  {`By=http://frontend.example.com;` + hash + `;` + c + `;Subject="/C=US/ST=CA/L=San Francisco/OU=Lyft/CN=Test Client";URI=http://testclient.example.com;DNS=a.example.com;DNS=b.example.com`},
		"quotes in a subject": {hash + `;Subject="CN=\"a\\\",Cert=\"x\"";` + c},
		"unquoted":            {"Cert=" + escaped(cert)},
		"last element":        {foreign + "," + hash + ";" + c},
		"last line":           {foreign, c},
		"any case":            {"hash=" + hashOf(cert) + ";CERT=" + escaped(cert)},
	} {
		got, err := parseXFCC(lines)
		if err != nil || !got.Equal(cert) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, value := range map[string]string{
		"hash alone":            hash,
		"last element has none": c + `,By=spiffe://proxy;` + hash,
	} {
		if got, err := parseXFCC([]string{value}); got != nil || err != nil {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
	for name, value := range map[string]string{
		"empty":                   "",
		"only a comma":            ",",
		"ends in a comma":         c + ",",
		"ends in a semicolon":     c + ";",
		"no pairs":                "abc",
		"no key":                  "=x",
		"open quote":              `Cert="` + escaped(cert),
		"quote inside":            `Hash=a"b;` + c,
		"text after the quote":    c + "x",
		"another's hash":          "Hash=" + hashOf(other) + ";" + c,
		"no hash":                 "Hash=zz;" + c,
		"two certificates":        c + `;Cert="` + escaped(other) + `"`,
		"two in one PEM":          `Cert="` + escaped(cert) + escaped(other) + `"`,
		"a key, not a cert":       `Cert="-----BEGIN PRIVATE KEY-----%0AaHVudGVyMg==%0A-----END PRIVATE KEY-----%0A"`,
		"not PEM":                 `Cert="aHVudGVyMg=="`,
		"bad escape":              `Cert="%zz"`,
		"empty cert":              `Cert=""`,
		"an earlier one is wrong": `Cert="x,` + c,
	} {
		if got, err := parseXFCC([]string{value}); !errors.Is(err, ErrMalformed) || got != nil {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
}

// FuzzParseXFCC searches for values that cause a panic, or that replace the last element with
// an earlier one.
func FuzzParseXFCC(f *testing.F) {
	ca := authority(f)
	cert, mine := issue(f, ca), issue(f, ca)
	for _, seed := range []string{
		`Hash=` + hashOf(cert) + `;Cert="` + escaped(cert) + `"`, `By=a;Subject="CN=\"x\",O=y"`, `a="\`, `a=b,c="d";e=f`, ``,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, value string) {
		if got, err := parseXFCC([]string{value}); err != nil && got != nil {
			t.Error("a certificate and an error")
		}
		got, err := parseXFCC([]string{value, `Cert="` + escaped(mine) + `"`})
		if err == nil && !got.Equal(mine) {
			t.Errorf("a client's value replaced the proxy's own element: %q", value)
		}
	})
}

func FuzzParseHeader(f *testing.F) {
	f.Add(":aGVsbG8=:")
	f.Add("(:aGVsbG8=:);a")
	f.Fuzz(func(t *testing.T, value string) {
		if got, err := parseHeader([]string{value}); (got == nil) == (err == nil) {
			t.Errorf("%v, %v", got, err)
		}
	})
}

func TestOnlyCertificatesOfTheAuthoritiesAreTrusted(t *testing.T) {
	t.Parallel()
	ca, otherCA := authority(t), authority(t)
	clock, pool := time.Now(), ca.Pool()
	p := New(Options{Now: func() time.Time { return clock }})
	trusted := func(certs ...*x509.Certificate) bool { return p.trusted(certs, pool) }
	good := issue(t, ca)
	for range 2 {
		if !trusted(good) {
			t.Fatal("a certificate of the authority is not trusted")
		}
	}
	for name, cert := range map[string]*x509.Certificate{
		"another authority": issue(t, otherCA),
		"a server's":        issue(t, ca, func(l *devca.Leaf) { l.Usage = x509.ExtKeyUsageServerAuth }),
		"expired":           issue(t, ca, func(l *devca.Leaf) { l.NotAfter = clock.Add(-time.Second) }),
		"not yet valid":     issue(t, ca, func(l *devca.Leaf) { l.NotBefore = clock.Add(time.Minute) }),
	} {
		if trusted(cert) {
			t.Errorf("%s: trusted", name)
		}
	}
	clock = clock.Add(2 * time.Hour)
	if trusted(good) {
		t.Error("expired meanwhile, but still trusted")
	}
	clock = clock.Add(-2 * time.Hour)
	if !trusted(good) {
		t.Fatal("not trusted, although it is valid again")
	}
	pool = otherCA.Pool()
	if trusted(good) {
		t.Error("its authority is gone, but it is still trusted")
	}
}
