package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"spendhook/config"
	"spendhook/internal/clienttls"
	"spendhook/internal/invalid"
	"spendhook/internal/redisx"
	"spendhook/internal/terminal"
	"spendhook/relay"
	"spendhook/relay/outbox"
)

type relayCmd struct {
	Run    relayRunCmd    `cmd:"" default:"withargs" help:"Carry records until SIGTERM. It is what relay does without a command." example:"spendhook relay --config relay.yml"`
	Test   relayTestCmd   `cmd:"" help:"Show the event that a record becomes. Nobody is called." example:"spendhook relay test --config relay.yml --source payments record.json"`
	Doctor relayDoctorCmd `cmd:"" help:"Check the settings, the daemon and each source, and print a remedy for each problem." example:"spendhook relay doctor --config relay.yml"`
	Schema relaySchemaCmd `cmd:"" help:"Print the SQL that creates an outbox table." example:"spendhook relay schema --table sales.spendhook_outbox"`
}

// relayFlags are the flags of the commands that read the settings of a relay.
type relayFlags struct {
	Config string `required:"" placeholder:"FILE" help:"Settings of the relay (YAML)."`
}

func (f relayFlags) load() (*config.Relay, error) {
	cfg, err := config.LoadRelay(f.Config, os.Environ(), true)
	return &cfg, err
}

type relayRunCmd struct{ relayFlags }

// Run carries records until SIGINT or SIGTERM. A second signal ends the process at once.
func (c *relayRunCmd) Run(ctx context.Context, term *stdio) error {
	cfg, err := c.load()
	if err != nil {
		return err
	}
	ctx, restore := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer restore()
	context.AfterFunc(ctx, restore)
	log := newLogger(term.Err, cfg.Log, logLevel(cfg.Log))
	registry := newRegistry()
	list, err := openSources(cfg, log, relay.NewMetrics(registry))
	if err != nil {
		return err
	}
	checks := &admin{registry: registry, check: func(context.Context) redisx.Status { return readySources(list) }, warnings: func() []string { return nil }}
	checks.unready.Store(new(func() error { return ctx.Err() }))
	address, stop, err := serveRelayAdmin(ctx, cfg.AdminListen, checks, log)
	if err != nil {
		return err
	}
	defer stop()
	log.LogAttrs(ctx, slog.LevelInfo, "listening",
		slog.String("admin_address", address), slog.String("service.version", readBuild().Version))
	var running sync.WaitGroup
	for _, s := range list {
		running.Go(func() { s.sender.Serve(ctx, s.source) })
	}
	running.Wait()
	log.Info("shut down")
	return nil
}

// readySources names the sources that are not open.
func readySources(list []relaySource) (status redisx.Status) {
	for _, s := range list {
		if s.sender.Failed() {
			status.Problems = append(status.Problems, "the source "+s.settings.Name+" is not open; the log says why")
		}
	}
	return status
}

// serveRelayAdmin serves health and metrics. On a loopback address it answers only requests to localhost.
func serveRelayAdmin(ctx context.Context, listen string, a *admin, log *slog.Logger) (address string, stop func(), err error) {
	l, err := bind(ctx, "admin_listen", listen)
	if err != nil {
		return "", nil, err
	}
	handler := a.handler()
	if tcp, ok := l.Addr().(*net.TCPAddr); ok && tcp.IP.IsLoopback() {
		handler = loopbackOnly(handler)
	}
	server := &http.Server{
		Handler: http.MaxBytesHandler(handler, adminBody), ReadTimeout: 10 * time.Second, WriteTimeout: answerTimeout,
		MaxHeaderBytes: maxHeader, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			log.Error("a listener failed", "exception.message", err)
		}
	}()
	return l.Addr().String(), func() {
		_ = server.Close() // only scrapes are cut off
		<-done
	}, nil
}

type relayTestCmd struct {
	relayFlags
	Source string            `help:"Source whose mapping is used (default: the only one)."`
	Key    string            `help:"Key of the record."`
	Header map[string]string `mapsep:"none" placeholder:"NAME=VALUE" help:"Header of the record; may repeat."`
	From   map[string]string `mapsep:"none" placeholder:"NAME=VALUE" help:"What from has in an expression, such as topic=payments; a whole number becomes one. May repeat."`
	Time   time.Time         `help:"Time of the record, RFC 3339 (default: it has none)."`
	File   string            `arg:"" optional:"" default:"-" help:"File with the record (default: standard input)."`
}

// Run prints the event, or fails with the reason why the record would be dead.
func (c *relayTestCmd) Run(ctx context.Context, term *stdio) error {
	cfg, err := config.LoadRelay(c.Config, os.Environ(), false)
	if err != nil {
		return err
	}
	var names []string
	for _, s := range cfg.Sources {
		names = append(names, s.Name)
	}
	i := slices.Index(names, c.Source)
	if c.Source == "" && len(names) == 1 {
		i = 0
	}
	if i < 0 {
		return usageError("--source must be one of " + strings.Join(names, ", "))
	}
	problems := &invalid.Error{}
	mapped := newMapping(cfg.Sources[i], problems)
	if err := problems.OrNil(); err != nil {
		return err
	}
	in, _, err := terminal.Open(c.File, term.In)
	if err != nil {
		return err
	}
	defer in.Close()
	value, err := io.ReadAll(io.LimitReader(in, 64<<20))
	if err != nil {
		return err
	}
	event, key, err := mapped.Event(ctx, &relay.Record{Value: value, Key: c.Key, Headers: c.Header, Time: c.Time, From: fromFlags(c.From)})
	if err != nil {
		return fmt.Errorf("the record would be dead: %w", err)
	}
	text, err := json.Marshal(map[string]any{"key": key, "event": event}, jsontext.WithIndent("  "), json.Deterministic(true))
	if err == nil {
		_, err = fmt.Fprintln(term.Out, terminal.Escape(string(text), "\n"))
	}
	return err
}

// fromFlags makes whole numbers of texts that are some.
func fromFlags(texts map[string]string) map[string]any {
	from := make(map[string]any, len(texts))
	for name, text := range texts {
		var n int64
		if json.Unmarshal([]byte(text), &n) == nil {
			from[name] = n
		} else {
			from[name] = text
		}
	}
	return from
}

type relaySchemaCmd struct {
	Table string `help:"Name of the table, also with a schema (default: spendhook_outbox)."`
}

// Run prints the SQL.
func (c *relaySchemaCmd) Run(term *stdio) error {
	text, err := outbox.Schema(c.Table)
	if err != nil {
		return usageError("--table: " + err.Error())
	}
	_, err = fmt.Fprint(term.Out, text)
	return err
}

// tlsFiles are the files of a section of the settings.
func tlsFiles(f config.TLSFiles) *clienttls.Files {
	return &clienttls.Files{CA: f.CAFile, Cert: f.CertFile, Key: f.KeyFile}
}
