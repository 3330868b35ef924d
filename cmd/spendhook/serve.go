package main

import (
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"maps"
	"math"
	"net"
	"os"
	"os/signal"
	"strconv"
	"syscall"

	"github.com/lmittmann/tint"

	"spendhook/config"
	"spendhook/internal/terminal"
	"spendhook/internal/tracing"
)

type serveCmd struct {
	configFlags

	Listen      string `placeholder:"HOST:PORT" help:"Address of the API; port 0 picks a free port."`
	AdminListen string `placeholder:"HOST:PORT" help:"Address for health, metrics and profiles."`
	TLSCert     string `placeholder:"FILE" help:"Certificate of the API's listener (PEM)."`
	TLSKey      string `placeholder:"FILE" help:"Key of the certificate (PEM)."`
	ClientCA    string `placeholder:"FILE" help:"CA certificates for client certificates (PEM)."`
	LogLevel    string `placeholder:"LEVEL" help:"Log level: debug, info, warn or error."`
	LogFormat   string `placeholder:"FORMAT" help:"Log format: auto, json, text or color."`
	Dev         bool   `help:"Development mode, on loopback only: allow http and loopback callbacks, print a token."`
	Quickstart  bool   `help:"First look: create certificates and a client in the data directory, serve mutual TLS, and print example requests."`
	Demo        bool   `help:"With --dev: create a subscriber with a receiver in this process, send a few events, and print their deliveries."`
}

// Run serves until SIGINT or SIGTERM, and then shuts down. A second signal ends the process at
// once.
func (c *serveCmd) Run(ctx context.Context, term *stdio) error {
	overrides := c.overrides()
	maps.Copy(overrides, map[string]string{
		"listen": c.Listen, "admin_listen": cmp.Or(c.AdminListen, c.adminBeside()), "log.level": c.LogLevel, "log.format": c.LogFormat,
		"tls.cert_file": c.TLSCert, "tls.key_file": c.TLSKey, "tls.client_ca_file": c.ClientCA,
	})
	if c.Dev {
		overrides["dev"] = "true"
	}
	hangups := make(chan os.Signal, 1) // before anything else, because an unhandled SIGHUP would end the process
	signal.Notify(hangups, syscall.SIGHUP)
	defer signal.Stop(hangups)
	if c.Quickstart {
		if err := c.prepareQuickstart(overrides); err != nil {
			return err
		}
	}
	load := func() (*config.Config, error) {
		cfg, err := config.LoadDaemon(c.Config, os.Environ(), overrides)
		return &cfg, err
	}
	cfg, err := load()
	if err != nil {
		return err
	}
	if c.Demo && !cfg.Dev {
		return usageError("--demo needs --dev")
	}
	keepFilesPrivate()
	ctx, restore := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer restore()
	context.AfterFunc(ctx, restore) // a second signal ends the process
	level := new(slog.LevelVar)
	level.Set(logLevel(cfg.Log))
	d := &daemon{cfg: cfg, load: load, log: newLogger(term.Err, cfg.Log, level), level: level, allowMemory: cfg.Dev || c.Quickstart}
	if err := d.start(ctx); err != nil {
		if stoppedBy(ctx, err) {
			return nil
		}
		return err
	}
	d.background(ctx, func(ctx context.Context) {
		for {
			select {
			case <-hangups:
				_, _ = d.reload(systemUser()) //nolint:contextcheck // reload logs its error; the shutdown must not lose its audit entry
			case <-ctx.Done():
				return
			}
		}
	})
	if err := c.greet(ctx, d, term); err != nil && !stoppedBy(ctx, err) {
		return errors.Join(err, d.close(ctx))
	}
	return d.wait(ctx)
}

// stoppedBy reports whether an error is due to a signal that came meanwhile, which ended ctx.
func stoppedBy(ctx context.Context, err error) bool {
	return ctx.Err() != nil && errors.Is(err, ctx.Err())
}

// adminBeside is the address of the admin listener with --dev and another --listen: as far from it as the default is from
// that of the API, so that a second daemon needs only one flag. It is "" if a setting may have an address.
func (c *serveCmd) adminBeside() string {
	host, port, err := net.SplitHostPort(c.Listen)
	n, bad := strconv.Atoi(port)
	if err != nil || bad != nil || !c.Dev || c.Config != "" || os.Getenv("SPENDHOOK_ADMIN_LISTEN") != "" {
		return ""
	}
	if n == 0 || n+adminAway > math.MaxUint16 {
		return net.JoinHostPort(host, "0")
	}
	return net.JoinHostPort(host, strconv.Itoa(n+adminAway))
}

// adminAway is the default port of the admin listener less that of the API.
const adminAway = 9090 - 8080

// greet prints the addresses of the daemon, and example requests for developers.
func (c *serveCmd) greet(ctx context.Context, d *daemon, term *stdio) error {
	d.log.LogAttrs(ctx, slog.LevelInfo, "listening",
		slog.String("address", d.address), slog.String("admin_address", d.adminAddress),
		slog.String("service.version", readBuild().Version), slog.String("service.instance.id", d.replica))
	if c.Quickstart {
		return d.quickstart(ctx, term)
	}
	if !d.cfg.Dev {
		return nil
	}
	token, err := d.developerToken(ctx)
	switch {
	case err != nil && c.Demo:
		return err
	case err != nil:
		token = "none, because of an error: " + err.Error()
	}
	link, err := d.developerLink(ctx)
	if err != nil { // the Redis shard of the console's keys may be down
		link = "none, because of an error: " + err.Error()
	}
	s := &show{out: term.Out, base: d.base(), curl: "curl -sS"}
	s.welcome(d.adminAddress, link)
	if c.Demo {
		return d.demo(ctx, s, token)
	}
	s.hints(token, "")
	return nil
}

// wait returns once the daemon has shut down, after a signal or a failed listener.
func (d *daemon) wait(ctx context.Context) error {
	var failure error
	select {
	case <-ctx.Done():
		d.log.Info("shutting down", "grace_ms", d.cfg.ShutdownGrace.Milliseconds())
	case failure = <-d.failed:
		d.log.Error("a listener failed", "exception.message", failure)
	}
	err := errors.Join(failure, d.close(ctx))
	if err == nil {
		d.log.Info("shut down")
	}
	return err
}

// logLevel returns the level of the settings.
func logLevel(cfg config.Log) slog.Level {
	var level slog.Level
	_ = level.UnmarshalText([]byte(cfg.Level)) // config refuses an unknown level
	return level
}

// escaped replaces control characters in what receivers and emitters wrote: in colour, tint passes on those
// that change a terminal.
func escaped(_ []string, a slog.Attr) slog.Attr {
	if kind := a.Value.Kind(); kind != slog.KindString && kind != slog.KindAny {
		return a
	}
	if text := a.Value.String(); terminal.Escape(text, "") != text {
		return slog.String(a.Key, terminal.Escape(text, ""))
	}
	return a
}

// escaping writes lines of JSON without the characters that JSON allows in a string and a terminal obeys.
type escaping struct{ io.Writer }

// Write implements io.Writer.
func (w escaping) Write(line []byte) (int, error) {
	if _, err := io.WriteString(w.Writer, terminal.Escape(string(line), "\n")); err != nil {
		return 0, err
	}
	return len(line), nil
}

// newLogger returns a logger with the configured format and level. The format "auto" is
// coloured text on a terminal, and JSON elsewhere. If spans are exported, log records have the ids
// of their spans.
func newLogger(out io.Writer, cfg config.Log, level slog.Leveler) *slog.Logger {
	var handler slog.Handler = slog.NewJSONHandler(escaping{out}, &slog.HandlerOptions{Level: level})
	if cfg.Format == "text" || cfg.Format == "color" || cfg.Format == "auto" && terminal.Is(out) {
		colors := cfg.Format == "color" || cfg.Format == "auto" && terminal.Colors(out)
		handler = tint.NewTextHandler(out, &tint.Options{Level: level, TimeFormat: "15:04:05.000", NoColor: !colors, ReplaceAttr: escaped})
	}
	if tracing.Enabled() {
		handler = tracing.LogHandler(handler)
	}
	return slog.New(handler)
}
