package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"syscall"
	"time"

	"github.com/prometheus/exporter-toolkit/web"

	"spendhook/internal/connlimit"
	"spendhook/internal/peer"
	"spendhook/internal/servertls"
)

// The time to answer a request that was read. A feed waits up to 30 s for events. A CPU profile
// takes as long as the request says.
const (
	answerTimeout  = 40 * time.Second
	profileTimeout = 5 * time.Minute
)

const (
	adminConnections = 256       // of the admin listener and the demo's receiver, each
	adminPerAddress  = 64        // of those, from one address
	adminBody        = 64 << 10  // bytes of a request body; no admin request needs one
	maxHeader        = 96 << 10  // bytes; more than the 64 KiB of the API, so that the API itself answers with 431
	maxStreams       = 128       // requests at once on one HTTP/2 connection
	receiveBuffer    = 256 << 10 // unread bytes of an HTTP/2 connection
)

// service is an HTTP handler with the options of its listener.
type service struct {
	name    string
	handler http.Handler
	answer  time.Duration // time to answer a request
	limits  connlimit.Options
	web     string                                          // path of a web configuration file; "": none
	tls     *tls.Config                                     // nil: no TLS
	context func(context.Context, net.Conn) context.Context // returns the context of a connection's requests; nil: not called
}

// listen serves on address until the daemon stops, and returns the bound address.
func (d *daemon) listen(ctx context.Context, address string, s service) (string, error) {
	l, err := bind(ctx, s.name, address)
	if err != nil {
		return "", err
	}
	s.limits = connlimit.Options{Max: adminConnections, MaxPerAddress: adminPerAddress}
	d.serve(l, s)
	return l.Addr().String(), nil
}

// listenFlags are the flags of serve for the addresses of listeners.
var listenFlags = map[string]string{"intake": "--listen", "admin": "--admin-listen"}

func bind(ctx context.Context, name, address string) (net.Listener, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	switch flag := listenFlags[name]; {
	case err == nil:
		return l, nil
	case flag != "" && errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("%s: %w; choose another address with %s", name, err, flag)
	default:
		return nil, fmt.Errorf("%s: %w", name, err)
	}
}

// serve answers on l until the daemon stops.
func (d *daemon) serve(l net.Listener, s service) {
	limits := d.cfg.HTTP
	server := &http.Server{
		Handler:           s.handler,
		ReadHeaderTimeout: limits.HeaderTimeout, // also bounds the TLS handshake
		ReadTimeout:       limits.RequestTimeout,
		WriteTimeout:      limits.RequestTimeout + s.answer,
		IdleTimeout:       limits.IdleTimeout,
		MaxHeaderBytes:    maxHeader,
		// The handler answers OPTIONS *, not net/http.
		DisableGeneralOptionsHandler: true,
		TLSConfig:                    s.tls,
		ConnContext:                  s.context,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams:          maxStreams,
			MaxReceiveBufferPerConnection: receiveBuffer,
			MaxReceiveBufferPerStream:     receiveBuffer,
			SendPingTimeout:               limits.RequestTimeout, // pings an idle connection
			WriteByteTimeout:              limits.RequestTimeout,
		},
		ErrorLog: slog.NewLogLogger(d.log.Handler(), slog.LevelDebug),
	}
	s.limits.Name, s.limits.Metrics = s.name, d.connections
	l = connlimit.Limit(l, s.limits)
	go func() {
		serve := func() error { return server.Serve(l) }
		switch {
		case s.web != "":
			serve = func() error {
				return web.Serve(l, server, &web.FlagConfig{WebConfigFile: &s.web}, slog.New(slog.DiscardHandler))
			}
		case s.tls != nil:
			serve = func() error { return server.ServeTLS(l, "", "") }
		}
		if err := serve(); !errors.Is(err, http.ErrServerClosed) {
			d.failed <- fmt.Errorf("%s: %w", s.name, err)
		}
	}()
	d.stop.add(s.name, func(ctx context.Context) error { return shutdown(ctx, server) })
}

// shutdown waits for running requests for at most half of the remaining time. The other half is
// for the workers.
func shutdown(ctx context.Context, server *http.Server) error {
	if deadline, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Until(deadline)/2)
		defer cancel()
	}
	err := server.Shutdown(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		return server.Close()
	}
	return err
}

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
	d.background(ctx, d.tlsFiles.Run)
	d.peers = peer.New(peer.Options{
		Proxies: files.TrustedProxies, Header: peer.Header(files.ProxyHeader), Authorities: d.tlsFiles.ClientCAs,
		RefuseClear: !d.cfg.Dev,
	})
	return nil
}

// tlsConfig returns nil if the listener has no TLS.
func (d *daemon) tlsConfig() *tls.Config {
	if d.cfg.TLS.CertFile == "" {
		return nil
	}
	return d.tlsFiles.Config()
}

// base returns the URL at which this machine reaches the API.
func (d *daemon) base() string {
	if d.cfg.TLS.CertFile == "" {
		return "http://" + d.address
	}
	return "https://" + d.address
}
