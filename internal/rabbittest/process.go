package rabbittest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"spendhook/internal/child"
	"spendhook/internal/porttest"
)

const startTimeout = 5 * time.Minute

var (
	errNoServer = errors.New("no rabbitmq-server: run scripts/ensure rabbitmq")
	errNoEpmd   = errors.New("no epmd on PATH: install Erlang")
)

// process is a running server with its files in dir. Its epmd, which knows the port of an Erlang node by name, is
// its own, so that it and the other nodes of the machine do not know of each other.
type process struct {
	dir                  string
	port, dist, epmdPort int
	epmd, server         *child.Process
}

func create(tb testing.TB) (*process, error) {
	tb.Helper()
	p := &process{port: porttest.Free(tb), dist: porttest.Free(tb), epmdPort: porttest.Free(tb)}
	var err error
	if p.dir, err = os.MkdirTemp("", "rabbittest-"); err != nil { //nolint:usetesting // a shared server outlives the test
		return nil, err
	}
	if err = p.startEpmd(); err == nil {
		err = p.start()
	}
	if err != nil {
		p.remove()
		return nil, err
	}
	return p, nil
}

func (p *process) startEpmd() error {
	binary, err := exec.LookPath("epmd")
	if err != nil {
		return errNoEpmd
	}
	cmd := exec.CommandContext(context.Background(), binary, "-port", strconv.Itoa(p.epmdPort), "-address", "127.0.0.1") //nolint:gosec // our own arguments
	p.epmd, err = child.Start(cmd)
	return err
}

// findServer returns the script that runs the server as the current user. Debian has another one on the PATH, which
// changes to the user rabbitmq.
func findServer() (string, error) {
	const debian = "/usr/lib/rabbitmq/bin/rabbitmq-server"
	if _, err := os.Stat(debian); err == nil {
		return debian, nil
	}
	path, err := exec.LookPath("rabbitmq-server")
	if err != nil {
		return "", errNoServer
	}
	return path, nil
}

// start runs the server until it answers. settings are further lines of its configuration.
func (p *process) start(settings ...string) error {
	binary, err := findServer()
	if err != nil {
		return err
	}
	if err := p.configure(settings); err != nil {
		return err
	}
	log, err := os.OpenFile(filepath.Join(p.dir, "output"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.CommandContext(context.Background(), binary) //nolint:gosec // one of two names
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = p.dir, p.environment(), log, log
	if p.server, err = child.Start(cmd); err != nil {
		return fmt.Errorf("start %s: %w", binary, err)
	}
	return p.waitReady()
}

func (p *process) configure(settings []string) error {
	settings = append([]string{
		"listeners.tcp.1 = 127.0.0.1:" + strconv.Itoa(p.port),
		"disk_free_limit.absolute = 1MB",
		"log.file.level = info",
	}, settings...)
	for name, content := range map[string]string{
		"rabbitmq.conf": strings.Join(settings, "\n") + "\n",
		// A write that the kernel has survives a killed server.
		"advanced.config": "[{ra, [{wal_sync_method, none}]}].\n",
		"plugins":         "[].\n",
		"env.conf":        "", // instead of the file of the machine
	} {
		if err := os.WriteFile(filepath.Join(p.dir, name), []byte(content), 0o600); err != nil {
			return err
		}
	}
	return nil
}

func (p *process) environment() []string {
	in := func(name string) string { return filepath.Join(p.dir, name) }
	return append(os.Environ(),
		"HOME="+p.dir, // for the cookie
		"ERL_EPMD_PORT="+strconv.Itoa(p.epmdPort),
		"ERL_EPMD_ADDRESS=127.0.0.1",
		// Several nodes may have the name: each asks its own epmd.
		"RABBITMQ_NODENAME=rabbittest"+strconv.Itoa(p.port)+"@localhost",
		"RABBITMQ_DIST_PORT="+strconv.Itoa(p.dist),
		"RABBITMQ_CONF_ENV_FILE="+in("env.conf"),
		"RABBITMQ_CONFIG_FILE="+in("rabbitmq.conf"),
		"RABBITMQ_ADVANCED_CONFIG_FILE="+in("advanced.config"),
		"RABBITMQ_GENERATED_CONFIG_DIR="+in("generated"),
		"RABBITMQ_ENABLED_PLUGINS_FILE="+in("plugins"),
		"RABBITMQ_MNESIA_BASE="+in("mnesia"),
		"RABBITMQ_LOG_BASE="+in("log"),
		// The script becomes the server, instead of a parent that leaves the server behind when it is killed.
		"RABBITMQ_ALLOW_INPUT=true",
		"RABBITMQ_SERVER_START_ARGS=-noinput",
	)
}

func (p *process) waitReady() error {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	err := p.server.Await(ctx, 50*time.Millisecond, func() bool {
		conn, err := amqp.Dial(p.url())
		if err != nil {
			return false
		}
		_ = conn.Close()
		return true
	})
	if err != nil {
		p.server.Kill()
		output, _ := os.ReadFile(filepath.Join(p.dir, "output"))
		return fmt.Errorf("rabbitmq-server does not answer: %w: %s", err, output)
	}
	return nil
}

func (p *process) remove() {
	for _, c := range []*child.Process{p.server, p.epmd} {
		if c != nil {
			c.Kill()
		}
	}
	_ = os.RemoveAll(p.dir)
}

func (p *process) url() string {
	return "amqp://guest:guest@127.0.0.1:" + strconv.Itoa(p.port) + "/"
}
