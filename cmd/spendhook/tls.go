package main

import (
	"context"
	"crypto/tls"

	"spendhook/internal/connlimit"
	"spendhook/internal/peer"
	"spendhook/internal/servertls"
)

// openTLS reads the certificates. It is the first step, so that a bad certificate fails the
// start at once.
func (d *daemon) openTLS(ctx context.Context) (err error) {
	files := d.cfg.TLS
	d.tlsFiles, err = servertls.Open(servertls.Options{
		CertFile: files.CertFile, KeyFile: files.KeyFile, ClientCAFile: files.ClientCAFile,
		Logger: d.log, Registerer: d.registry,
	})
	if err != nil {
		return err
	}
	d.background(ctx, "tls files", d.tlsFiles.Run)
	d.peers = peer.New(peer.Options{
		Proxies: files.TrustedProxies, Header: peer.Header(files.ProxyHeader), Authorities: d.tlsFiles.ClientCAs,
		RefuseClear: !d.cfg.Dev,
	})
	return nil
}

// tlsConfig is nil for a listener in clear.
func (d *daemon) tlsConfig() *tls.Config {
	if d.cfg.TLS.CertFile == "" {
		return nil
	}
	return d.tlsFiles.Config()
}

// base is the address of the API as this machine reaches it.
func (d *daemon) base() string {
	if d.cfg.TLS.CertFile == "" {
		return "http://" + d.address
	}
	return "https://" + d.address
}

// connectionLimits except the proxies, which carry the connections of many clients.
func (d *daemon) connectionLimits() connlimit.Options {
	return connlimit.Options{
		Max: d.cfg.HTTP.MaxConnections, MaxPerAddress: d.cfg.HTTP.MaxConnectionsPerAddress, Exempt: d.peers.Trusts,
	}
}
