// Package pgtest gives tests a real PostgreSQL: one server per test binary, a
// database of its own per test, or a private server that a test may stop.
package pgtest

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"
)

// shared is the one server of this test binary; made counts its databases.
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

// New returns the URL of an empty database that only this test uses. It is
// dropped when the test ends, and New is safe with t.Parallel.
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
		if p, template.name, template.err = take(); template.err != nil {
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
	p, name, err := take()
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

// Shared returns the URL of an empty database that exists until the end of the test binary, for
// benchmarks that share data.
func Shared() (string, error) {
	p, name, err := take()
	if err != nil {
		return "", err
	}
	return p.url(name), p.exec(`CREATE DATABASE ` + name)
}

// Launch runs a server outside of a test, with settings as name=value beside
// those of tests, and returns the URL of its database and what ends it.
func Launch(settings ...string) (url string, remove func(), err error) {
	p, err := create(settings...)
	if err != nil {
		return "", nil, err
	}
	return p.url("postgres"), p.remove, nil
}

// Main is the body of a TestMain: it runs the tests, stops the shared server
// and then fails when a goroutine was left behind. m is a *testing.M, or wraps
// one to clean up after it.
func Main(m goleak.TestingM) {
	goleak.VerifyTestMain(Stopping(m))
}

// Stopping wraps m: Run runs the tests and then stops the shared server. It is for a TestMain
// that also starts other servers.
func Stopping(m goleak.TestingM) goleak.TestingM { return stopping{m} }

type stopping struct{ m goleak.TestingM }

// Run runs the tests and then stops the server, before goleak looks.
func (s stopping) Run() int {
	defer stopShared()
	return s.m.Run()
}

func take() (*process, string, error) {
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

// URL is where the server's database is, also while the server is stopped.
func (s *Server) URL() string { return s.process.url("postgres") }

// Stop ends the server at once, as a crash would.
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
