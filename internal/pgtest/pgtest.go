// Package pgtest starts a PostgreSQL for tests: one server for a test binary with a database for
// each test, or a private server that a test may stop.
package pgtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"spendhook/internal/child"
)

// shared is the server of this test binary. made counts its databases.
var shared struct {
	sync.Mutex
	server *process
	made   int
}

// template is the database that Copy copies.
var template struct {
	sync.Once
	name string
	err  error
}

// New returns the URL of an empty database for this test only, which is dropped when the test
// ends. It is safe with t.Parallel.
func New(tb testing.TB) string {
	tb.Helper()
	return makeDatabase(tb, "template1")
}

// Copy returns the URL of a copy of a template database. The first call in a test binary makes
// the template with prepare, which must leave no connection open.
func Copy(tb testing.TB, prepare func(url string) error) string {
	tb.Helper()
	template.Do(func() {
		var p *process
		if p, template.name, template.err = nextDatabase(); template.err != nil {
			return
		}
		if template.err = p.exec(`CREATE DATABASE ` + template.name); template.err == nil {
			template.err = prepare(p.url(template.name))
		}
	})
	if template.err != nil {
		tb.Fatalf("pgtest: %v", template.err)
	}
	return makeDatabase(tb, template.name)
}

func makeDatabase(tb testing.TB, template string) string {
	tb.Helper()
	p, name, err := nextDatabase()
	if err == nil {
		err = p.exec(`CREATE DATABASE ` + name + ` TEMPLATE ` + template)
	}
	if err != nil {
		tb.Fatalf("pgtest: %v", err)
	}
	tb.Cleanup(func() {
		if err := p.exec(`DROP DATABASE ` + name + ` WITH (FORCE)`); err != nil {
			tb.Errorf("pgtest: %v", err)
		}
	})
	return p.url(name)
}

// Launch starts a server outside of a test, with further settings as name=value. remove ends the
// server and removes its files.
func Launch(settings ...string) (url string, remove func(), err error) {
	p, err := create(settings...)
	if err != nil {
		return "", nil, err
	}
	return p.url("postgres"), p.remove, nil
}

// Main is the body of a TestMain. It runs the tests, stops the shared server, and fails if a
// goroutine still runs. m is a *testing.M, or wraps one to clean up after it.
func Main(m goleak.TestingM) {
	goleak.VerifyTestMain(Stopping(m))
}

// Stopping wraps m for a TestMain that also starts other servers. Its Run runs the tests and then
// stops the shared server.
func Stopping(m goleak.TestingM) goleak.TestingM { return stopping{m} }

type stopping struct{ m goleak.TestingM }

// Run runs the tests and then stops the server, before goleak searches for goroutines.
func (s stopping) Run() int {
	defer stopShared()
	return s.m.Run()
}

// nextDatabase returns the shared server, which the first call starts, and the name for a new
// database.
func nextDatabase() (*process, string, error) {
	shared.Lock()
	defer shared.Unlock()
	if shared.server == nil {
		p, err := create()
		if err != nil {
			return nil, "", err
		}
		shared.server = p
	}
	shared.made++
	return shared.server, fmt.Sprintf("test%d", shared.made), nil
}

func stopShared() {
	shared.Lock()
	defer shared.Unlock()
	if shared.server != nil {
		shared.server.remove()
	}
}

// Server is a private PostgreSQL that its test may stop and start again.
type Server struct {
	tb      testing.TB
	process *process
}

// Start runs a private server that ends with the test.
func Start(tb testing.TB) *Server {
	tb.Helper()
	p, err := create()
	if err != nil {
		tb.Fatalf("pgtest: %v", err)
	}
	tb.Cleanup(p.remove)
	return &Server{tb: tb, process: p}
}

// URL returns the URL of the server's database, which is the same after a restart.
func (s *Server) URL() string { return s.process.url("postgres") }

// Stop ends the server at once, like a crash.
func (s *Server) Stop() { s.process.stop() }

// Restart starts a stopped server on the same data and waits until it answers.
func (s *Server) Restart() {
	s.tb.Helper()
	if err := s.process.start(); err != nil {
		s.tb.Fatalf("pgtest: %v", err)
	}
}

// exec runs one statement outside of any test's database.
func (p *process) exec(statement string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	conn, err := pgx.Connect(ctx, p.url("postgres"))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }() // its error does not matter
	_, err = conn.Exec(ctx, statement)
	return err
}

const startTimeout = 2 * time.Minute

var errNoServer = errors.New("no initdb in /usr/lib/postgresql/*/bin or on PATH: install postgresql")

// process is one running server with its socket and data in dir.
type process struct {
	bin, dir string
	prefix   []string // of each command, so that it runs as another user: initdb refuses to run as root
	settings []string // as name=value, besides those in start
	child    *child.Process
}

// create makes a data directory and starts a server on it.
func create(settings ...string) (*process, error) {
	p := &process{settings: settings}
	var err error
	if p.bin, err = findBin(); err != nil {
		return nil, err
	}
	if p.dir, err = os.MkdirTemp("", "pgtest-"); err != nil {
		return nil, err
	}
	if err = p.prepare(); err == nil {
		err = p.start()
	}
	if err != nil {
		p.remove()
		return nil, err
	}
	return p, nil
}

// findBin returns the newest of Debian's versioned directories, or else the directory of initdb on
// PATH.
func findBin() (string, error) {
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/initdb") // the pattern is well formed
	if len(found) > 0 {
		return filepath.Dir(slices.Max(found)), nil
	}
	path, err := exec.LookPath("initdb")
	if err != nil {
		return "", errNoServer
	}
	return filepath.Dir(path), nil
}

func (p *process) prepare() error {
	if err := p.dropRoot(); err != nil {
		return err
	}
	cmd := p.command(context.Background(), "initdb", "-D", p.data(),
		"-U", "spendhook", "--auth=trust", "--no-sync", "-E", "UTF8", "--locale=C.UTF-8")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	c, err := child.Start(cmd) // keeps the thread that starts initdb: the end of the thread would kill initdb
	if err != nil {
		return err
	}
	<-c.Done()
	if err := c.Err(); err != nil {
		return fmt.Errorf("initdb: %w: %s", err, &out)
	}
	return nil
}

// dropRoot makes the server run as an ordinary user, who becomes the owner of the directory.
// setpriv sets the signal for the death of our process again, because the change of user clears it.
func (p *process) dropRoot() error {
	if os.Geteuid() != 0 {
		return nil
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		u, err = user.Lookup("nobody")
	}
	if err != nil {
		return err
	}
	uid, _ := strconv.Atoi(u.Uid) // numeric on every unix
	gid, _ := strconv.Atoi(u.Gid)
	p.prefix = []string{"setpriv", "--reuid", u.Uid, "--regid", u.Gid, "--clear-groups", "--pdeathsig", "KILL"}
	return os.Chown(p.dir, uid, gid)
}

func (p *process) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	argv := append(slices.Clone(p.prefix), filepath.Join(p.bin, name))
	argv = append(argv, args...)
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...) //nolint:gosec // our own arguments
	cmd.Dir = p.dir
	return cmd
}

// start runs the server, without syncing to disk, until it answers.
func (p *process) start() error {
	args := []string{"-D", p.data(), "-k", p.dir}
	for _, setting := range append([]string{
		"listen_addresses=", "fsync=off", "max_connections=200", "dynamic_shared_memory_type=mmap",
		"shared_buffers=64MB", "logging_collector=on", "log_directory=" + p.dir, "log_filename=log",
	}, p.settings...) {
		args = append(args, "-c", setting)
	}
	c, err := child.Start(p.command(context.Background(), "postgres", args...))
	if err != nil {
		return err
	}
	p.child = c
	return p.waitReady()
}

func (p *process) waitReady() error {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	var last error
	err := p.child.Await(ctx, 20*time.Millisecond, func() bool {
		var conn *pgx.Conn
		if conn, last = pgx.Connect(ctx, p.url("postgres")); last == nil {
			last = conn.Close(ctx)
		}
		return last == nil
	})
	if err != nil {
		return fmt.Errorf("postgres does not answer: %w: %w", err, last)
	}
	return nil
}

// stop ends the server without a checkpoint. The next start recovers the data.
func (p *process) stop() {
	if p.child == nil {
		return
	}
	p.child.Stop(syscall.SIGQUIT, startTimeout)
}

func (p *process) remove() {
	p.stop()
	_ = os.RemoveAll(p.dir)
}

func (p *process) data() string { return filepath.Join(p.dir, "data") }

func (p *process) url(database string) string {
	query := url.Values{"sslmode": {"disable"}, "host": {p.dir}}
	for _, setting := range p.settings {
		if port, ok := strings.CutPrefix(setting, "port="); ok {
			query.Set("port", port)
		}
	}
	return "postgres://spendhook@/" + database + "?" + query.Encode()
}
