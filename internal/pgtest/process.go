package pgtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"spendhook/internal/child"
)

const startTimeout = 2 * time.Minute

var errNoServer = errors.New("no initdb in /usr/lib/postgresql/*/bin or on PATH: install postgresql")

// process is one running server with its socket and data in dir.
type process struct {
	bin, dir string
	prefix   []string // runs the server as another user when we are root, which initdb refuses
	settings []string // as name=value, beside those of tests
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

// findBin prefers the newest of Debian's versioned directories.
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
	c, err := child.Start(cmd) // it must not die with the thread that happens to start it
	if err != nil {
		return err
	}
	<-c.Done()
	if err := c.Err(); err != nil {
		return fmt.Errorf("initdb: %w: %s", err, &out)
	}
	return nil
}

// dropRoot hands the directory to an ordinary user and arranges that the
// server runs as that user. The signal on our death is set again after the
// change of user, which clears it.
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

// stop ends the server without a checkpoint; the next start recovers.
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
	return "postgres://spendhook@/" + database + "?sslmode=disable&host=" + p.dir
}
