package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"

	"spendhook/internal/clienttls"
	"spendhook/internal/datadir"
	"spendhook/internal/devca"
)

type certsCmd struct {
	Dev certsDevCmd `cmd:"" help:"Create a CA, a server certificate and a client certificate for use on this machine." example:"spendhook certs dev --dir certs"`
}

type certsDevCmd struct {
	Dir  string   `default:"./spendhook-certs" help:"Output directory, missing or empty."`
	Host []string `default:"localhost,127.0.0.1,::1" help:"DNS names and IP addresses of the server."`
}

// Validate rejects an empty host.
func (c *certsDevCmd) Validate() error {
	if len(c.Host) == 0 || slices.Contains(c.Host, "") {
		return errors.New("--host must not be empty")
	}
	return nil
}

const devCertLifetime = 90 * 24 * time.Hour

// Run writes the files and prints how to use them. It does not store the CA's key: nothing
// more can be signed with this CA, and a second run makes another CA.
func (c *certsDevCmd) Run(term *stdio) error {
	if entries, err := os.ReadDir(c.Dir); err == nil && len(entries) > 0 {
		return fmt.Errorf("%s is not empty: remove it, or name another directory with --dir", c.Dir)
	}
	if err := c.write(time.Now()); err != nil {
		return err
	}
	_, err := fmt.Fprintf(term.Out, devCertUse, c.path("ca.pem"), c.path("server.pem"), c.path("server-key.pem"),
		c.path("client.pem"), c.path("client-key.pem"), net.JoinHostPort(c.Host[0], "8443"))
	return err
}

const devCertUse = `created, valid for 90 days on this machine: %[1]s, %[2]s, %[3]s, %[4]s, %[5]s

# the daemon
spendhook serve --listen 127.0.0.1:8443 --tls-cert %[2]s --tls-key %[3]s --client-ca %[1]s

# a client
curl -sS --cacert %[1]s --cert %[4]s --key %[5]s -H "Authorization: Bearer $TOKEN" https://%[6]s/api/v1/subscribers
`

// renew creates the files, or keeps valid ones.
func (c *certsDevCmd) renew(now time.Time) error {
	if c.valid(now) {
		return nil
	}
	return c.write(now)
}

// valid reports whether both certificates match their keys, are signed by the CA and are valid for
// another day. The server certificate must also have all hosts.
func (c *certsDevCmd) valid(now time.Time) bool {
	pool, err := clienttls.ReadCAs(c.path("ca.pem"))
	if err != nil {
		return false
	}
	for name, usage := range map[string]x509.ExtKeyUsage{"server": x509.ExtKeyUsageServerAuth, "client": x509.ExtKeyUsageClientAuth} {
		pair, err := tls.LoadX509KeyPair(c.path(name+".pem"), c.path(name+"-key.pem"))
		if err != nil {
			return false
		}
		options := x509.VerifyOptions{Roots: pool, KeyUsages: []x509.ExtKeyUsage{usage}, CurrentTime: now.AddDate(0, 0, 1)}
		if _, err := pair.Leaf.Verify(options); err != nil {
			return false
		}
		if name == "server" && slices.ContainsFunc(c.Host, func(host string) bool { return pair.Leaf.VerifyHostname(host) != nil }) {
			return false
		}
	}
	return true
}

func (c *certsDevCmd) write(now time.Time) error {
	from, to := now.Add(-time.Minute), now.Add(devCertLifetime) // valid from a minute ago, because clocks differ
	ca, err := devca.New("spendhook dev CA", from, to)
	if err != nil {
		return err
	}
	server, err := ca.Issue(devca.Leaf{Name: c.Host[0], Hosts: c.Host, Usage: x509.ExtKeyUsageServerAuth, NotBefore: from, NotAfter: to})
	if err != nil {
		return err
	}
	client, err := ca.Issue(devca.Leaf{Name: "spendhook dev client", Usage: x509.ExtKeyUsageClientAuth, NotBefore: from, NotAfter: to})
	if err != nil {
		return err
	}
	if err := os.MkdirAll(c.Dir, 0o700); err != nil {
		return err
	}
	for name, content := range map[string][]byte{
		"ca.pem": ca.PEM(), "server-key.pem": server.Key, "server.pem": server.Cert, "client-key.pem": client.Key, "client.pem": client.Cert,
	} {
		if err := datadir.Replace(c.path(name), content); err != nil {
			return err
		}
	}
	return nil
}

func (c *certsDevCmd) path(name string) string { return filepath.Join(c.Dir, name) }
