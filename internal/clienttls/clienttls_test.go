package clienttls_test

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"spendhook/internal/clienttls"
	"spendhook/internal/devca"
)

// The client trusts the CA in the file, and presents the certificate that is in the file at
// that moment.
func TestFiles(t *testing.T) {
	t.Parallel()
	dir, now := t.TempDir(), time.Now()
	write := func(name string, text []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	ca, err := devca.New("test", now.Add(-time.Hour), now.Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	issue := func(name string, usage x509.ExtKeyUsage) devca.Pair {
		pair, err := ca.Issue(devca.Leaf{Name: name, Hosts: []string{"127.0.0.1"}, Usage: usage, NotBefore: now.Add(-time.Minute), NotAfter: now.Add(time.Hour)})
		if err != nil {
			t.Fatal(err)
		}
		return pair
	}
	server := issue("server", x509.ExtKeyUsageServerAuth)
	pair, err := tls.X509KeyPair(server.Cert, server.Key)
	if err != nil {
		t.Fatal(err)
	}
	authorities := x509.NewCertPool()
	authorities.AppendCertsFromPEM(ca.PEM())
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: authorities, MinVersion: tls.VersionTLS12})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	names := make(chan string, 4)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			name := ""
			if c := conn.(*tls.Conn); c.HandshakeContext(t.Context()) == nil {
				name = c.ConnectionState().PeerCertificates[0].Subject.CommonName
			}
			names <- name
			_ = conn.Close()
		}
	}()
	f := &clienttls.Files{CA: write("ca.pem", ca.PEM())}
	for _, name := range []string{"first", "renewed"} {
		client := issue(name, x509.ExtKeyUsageClientAuth)
		f.Cert, f.Key = write("cert.pem", client.Cert), write("key.pem", client.Key)
		config := &tls.Config{MinVersion: tls.VersionTLS12}
		if err := f.Apply(config); err != nil {
			t.Fatal(err)
		}
		conn, err := (&tls.Dialer{Config: config}).DialContext(t.Context(), "tcp", l.Addr().(*net.TCPAddr).String())
		if err != nil {
			t.Fatal(err)
		}
		if got := <-names; got != name {
			t.Errorf("presented %q, want %q", got, name)
		}
		_ = conn.Close()
	}
	for want, bad := range map[string]*clienttls.Files{
		"no such file":   {CA: filepath.Join(dir, "none")},
		"no certificate": {CA: f.Key},
		"no key":         {Cert: f.Cert, Key: f.CA},
	} {
		if err := bad.Apply(&tls.Config{MinVersion: tls.VersionTLS12}); err == nil {
			t.Errorf("%s: no error", want)
		}
	}
	if err := f.Apply(nil); err == nil {
		t.Error("certificates for an address without TLS: no error")
	}
	if err := (*clienttls.Files)(nil).Apply(nil); err != nil {
		t.Error(err)
	}
}
