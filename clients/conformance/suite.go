// Package conformance tests whether a program receives and emits events as a library of Spendhook must: it is a daemon
// that repeats, reorders, drops and forges deliveries, answers with errors, and kills the program.
//
// The program is small and has the same interface in each language. Its settings are environment variables:
//
//	SPENDHOOK_SECRET                          signing secrets, separated by spaces; may be empty
//	SPENDHOOK_JWKS, ORIGIN                    address of the published keys, and the start of the callback URL; may be empty
//	SPENDHOOK_ORIGIN                          the origin whose handshake of CloudEvents is answered; may be empty
//	SPENDHOOK_URL, SPENDHOOK_SUBSCRIBER       the daemon, and the subscriber whose feed is read
//	SPENDHOOK_TOKEN                           an access token, or else
//	SPENDHOOK_CLIENT_ID, …_CLIENT_SECRET      credentials of an OAuth client
//	DATABASE                                  what is kept when the program is killed
//	FILL_GAPS                                 1: the program reads the feed when a delivery says that an event is missing
//	PORT                                      0: any free port of 127.0.0.1
//
// The program prints "listening on http://127.0.0.1:PORT" as its first line, and serves:
//
//	POST /hooks and below     deliveries. The work on an event notes its id in the same transaction. It fails twice for
//	                          an event whose metadata have "fail": true
//	OPTIONS /hooks and below  the handshake of CloudEvents
//	GET  /inbox               a JSON array of the ids that were worked on, in that order
//	POST /catchup             reads the feed, then answers {"missing": n}; 500 if that failed
//	POST /emit                sends a JSON array of events, then answers with the array of results {id, status, error?};
//	                          500 with {"error", "results"} if it gave up
package conformance

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Options say what is tested.
type Options struct {
	// Command starts the program. It is killed, so it must not be a shell that starts the program in turn.
	Command []string
	// Database is the value of DATABASE, in which {} stands for the name of a file; "" means "{}". If it is "none", DATABASE
	// is empty, and the cases in which the program is killed are left out.
	Database string
	// Errors gets what the program writes to its standard error; nil: discarded.
	Errors io.Writer
	// Now is the clock, which signs.
	Now func() time.Time
}

// Result is that of one case.
type Result struct {
	Name string
	Took time.Duration
	Err  error // nil: passed
}

// errSkipped says that a case needs what the program does not have.
var errSkipped = errors.New("left out")

// Skipped reports whether the case was left out.
func (r Result) Skipped() bool { return errors.Is(r.Err, errSkipped) }

// testCase is one behaviour of the program. It is tested with all that the cases before it have left behind.
type testCase struct {
	name string
	test func(*run)
}

// Run tests the program, one case after the other, and calls report with the result of each. It takes about half
// a minute. An error says that the program could not be tested.
func Run(ctx context.Context, o Options, report func(Result)) error {
	dir, err := os.MkdirTemp("", "conformance-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	s := &suite{o: o, database: o.database(dir), random: rand.New(rand.NewPCG(1795167000, 4711))} //nolint:gosec // the same order in each run
	if err := s.begin(ctx); err != nil {
		return err
	}
	defer s.end()
	for _, c := range cases() {
		began := o.Now()
		r := &run{suite: s, ctx: ctx}
		if !s.program.runs() { // it crashed in the case before, or did not start again
			r.start()
		}
		if r.err == nil {
			c.test(r)
		}
		report(Result{c.name, o.Now().Sub(began), r.err})
		s.daemon.reset()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	return nil
}

func cases() []testCase {
	all := receiving()
	all = append(all, feeding()...)
	all = append(all, crashing()...)
	all = append(all, emitting()...)
	return append(all, publishing()...)
}

func (o *Options) database(dir string) string {
	switch o.Database {
	case "":
		return filepath.Join(dir, "inbox.db")
	case "none":
		return ""
	}
	return strings.ReplaceAll(o.Database, "{}", filepath.Join(dir, "inbox.db"))
}

// suite is what the cases share: the daemon, and one program with its database.
type suite struct {
	o        Options
	database string
	daemon   *daemon
	program  *program // nil: it is not running
	random   *rand.Rand
	last     int64 // how many events were made
	lost     int64 // how many of them the feed has lost: later ones have their numbers
}

func (s *suite) begin(ctx context.Context) (err error) {
	if s.daemon, err = newDaemon(ctx, s.o.Now); err != nil {
		return err
	}
	if s.program, err = s.startProgram(ctx, nil); err != nil {
		s.daemon.close()
		return fmt.Errorf("start the program: %w", err)
	}
	return nil
}

func (s *suite) end() {
	if s.program != nil {
		s.program.kill()
	}
	s.daemon.close()
}

// startProgram starts a program that demands Standard Webhooks and HTTP message signatures, and uses credentials.
func (s *suite) startProgram(ctx context.Context, more map[string]string) (*program, error) {
	env := map[string]string{
		"SPENDHOOK_SECRET": strings.Join([]string{s.daemon.sender.secrets[0], spareSecret}, " "),
		"SPENDHOOK_JWKS":   s.daemon.url + keysPath, "ORIGIN": origin, "SPENDHOOK_ORIGIN": daemonOrigin,
		"SPENDHOOK_URL": s.daemon.url, "SPENDHOOK_SUBSCRIBER": subscriber, "SPENDHOOK_TOKEN": "",
		"SPENDHOOK_CLIENT_ID": clientID, "SPENDHOOK_CLIENT_SECRET": clientSecret,
		"DATABASE": s.database, "PORT": "0",
	}
	maps.Copy(env, more)
	return startProgram(ctx, &s.o, env)
}

// run is one case under way. After the first failure its methods do nothing.
type run struct {
	*suite
	ctx context.Context //nolint:containedctx // a case is one call, written as steps
	err error
}

func (r *run) failf(format string, args ...any) {
	r.fail(fmt.Errorf(format, args...))
}

// fail notes the first error; nil is none.
func (r *run) fail(err error) {
	if r.err == nil {
		r.err = err
	}
}

// kill ends the program without a warning.
func (r *run) kill() {
	if r.program != nil {
		r.program.kill()
		r.program = nil
	}
}

// start starts the program with the database that it had.
func (r *run) start() {
	if r.err != nil {
		return
	}
	var err error
	if r.program, err = r.startProgram(r.ctx, nil); err != nil {
		r.failf("start the program again: %w", err)
	}
}
