package main

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/google/uuid"

	"spendhook/auth/clients"
	"spendhook/config"
	"spendhook/internal/clientcert"
	"spendhook/internal/datadir"
)

// quickstartCerts describes the certificates of --quickstart: in the data directory, for the
// host names by which this machine reaches the daemon.
func quickstartCerts(cfg *config.Config) *certsDevCmd {
	hosts := []string{"localhost", "127.0.0.1", "::1"}
	if host := quickstartHost(cfg.Listen); !slices.Contains(hosts, host) {
		hosts = append(hosts, host)
	}
	return &certsDevCmd{Dir: filepath.Join(cfg.DataDir, "quickstart"), Host: hosts}
}

// quickstartHost returns the host name by which this machine reaches the listener.
func quickstartHost(listen string) string {
	host, _, _ := net.SplitHostPort(listen) // the check of the settings refuses an invalid address
	if ip, err := netip.ParseAddr(host); host == "" || (err == nil && (ip.IsUnspecified() || ip.IsLoopback())) {
		return "localhost"
	}
	return host
}

// prepareQuickstart creates the certificates, or reuses those of an earlier start, and
// configures the daemon to use them.
func (c *serveCmd) prepareQuickstart(overrides map[string]string) error {
	cfg, err := config.Load(c.Config, os.Environ(), overrides)
	if err != nil {
		return err
	}
	tls := cfg.TLS
	if cfg.Dev || c.Demo || tls.CertFile != "" || tls.KeyFile != "" || tls.ClientCAFile != "" || len(tls.TrustedProxies) > 0 || !cfg.Auth.Builtin {
		return usageError("--quickstart serves mutual TLS with its own certificates and its own tokens: leave it out, or leave out --dev, --demo, tls.cert_file, tls.key_file, tls.client_ca_file, tls.trusted_proxies and auth.builtin: false")
	}
	if err := datadir.Make(cfg.DataDir); err != nil {
		return err
	}
	certs := quickstartCerts(&cfg)
	if err := certs.renew(time.Now()); err != nil {
		return fmt.Errorf("quickstart: %w", err)
	}
	overrides["tls.cert_file"], overrides["tls.key_file"] = certs.path("server.pem"), certs.path("server-key.pem")
	overrides["tls.client_ca_file"] = certs.path("ca.pem")
	if _, port, err := net.SplitHostPort(cfg.Listen); cfg.PublicURL == "" && err == nil && port != "0" {
		overrides["public_url"] = "https://" + net.JoinHostPort(quickstartHost(cfg.Listen), port)
	}
	return nil
}

// quickstart creates the first client and prints example requests of that client.
func (d *daemon) quickstart(ctx context.Context, term *stdio) error {
	certs, store := quickstartCerts(d.cfg), clients.NewStore(d.storage, nil)
	client, made, err := firstClient(ctx, store, "quickstart", developerCompany, certs.path("client.pem"))
	if err != nil {
		return fmt.Errorf("quickstart: %w", err)
	}
	if made {
		e := clientCreated(client)
		e.Actor, e.Address = systemUser()
		d.audit.Record(e) //nolint:contextcheck // a shutdown must not lose the entry
	}
	dir, err := filepath.Abs(certs.Dir)
	if err != nil {
		return err
	}
	_, port, err := net.SplitHostPort(d.address)
	if err != nil {
		return err
	}
	s := &show{
		out: term.Out, base: "https://" + net.JoinHostPort(quickstartHost(d.cfg.Listen), port),
		curl: "curl -sS --retry 5 --cacert ca.pem --cert client.pem --key client-key.pem",
	}
	s.firstLook(d.adminAddress, dir, client.ID, d.redis.Check(ctx).Warnings)
	return nil
}

// firstClient finds the client with this name and company among the 500 oldest, or creates it with
// all scopes of a company and without a secret. It sets the client's certificate.
func firstClient(ctx context.Context, store *clients.Store, name string, company uuid.UUID, certificate string) (client clients.Client, made bool, err error) {
	thumbprints, err := clientcert.ThumbprintsOf([]string{certificate})
	if err != nil {
		return client, false, err
	}
	list, _, err := store.List(ctx, "", 500)
	if err != nil {
		return client, false, err
	}
	for _, c := range list {
		if c.Name != name || c.Company == nil || uuid.UUID(*c.Company) != company {
			continue
		}
		if !slices.Contains(c.Certificates, thumbprints[0]) {
			c, err = store.SetCertificates(ctx, c.ID, thumbprints)
		}
		return c, false, err
	}
	client, _, err = store.Create(ctx, clients.Registration{
		Name: name, Company: &company, Scopes: companyScopes, Certificates: thumbprints, NoSecret: true,
	})
	return client, err == nil, err
}
