package redistest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"spendhook/internal/child"
	"spendhook/internal/porttest"
)

// Options describe a private server. With the zero value, the server loses its data in a restart.
type Options struct {
	AOF  bool     // use an append-only file: answered writes survive Kill
	TCP  bool     // also listen on 127.0.0.1, on a port that stays the same after a restart
	Args []string // further arguments of redis-server, after the others
}

// Server is a private server that a test may break. It ends with the test. Its methods are safe for
// concurrent use, and fail the test on an error.
type Server struct {
	tb   testing.TB
	args []string
	dir  string
	port int

	mu      sync.Mutex
	process *process
}

// Start runs a private server and waits until it answers.
func Start(tb testing.TB, o Options) *Server {
	tb.Helper()
	s := &Server{tb: tb}
	if !o.AOF {
		s.dir = memoryDir(tb)
	} else {
		s.dir = shortTempDir(tb)
		// With "no", answered writes are in the kernel and survive a killed process, but no
		// answer waits for the disk. With "everysec" and a slow disk, Redis may answer before
		// it writes.
		s.args = append(s.args, "--appendonly", "yes", "--appendfsync", "no")
	}
	if o.TCP {
		s.port = porttest.Free(tb)
		s.args = append(s.args, "--port", strconv.Itoa(s.port), "--bind", "127.0.0.1")
	}
	s.args = append(s.args, o.Args...)
	tb.Cleanup(s.Kill)
	s.Restart()
	return s
}

// Socket returns the path of the server's unix socket.
func (s *Server) Socket() string { return filepath.Join(s.dir, "redis.sock") }

// Addr returns host:port with Options.TCP, else the path of the socket.
func (s *Server) Addr() string {
	if s.port == 0 {
		return s.Socket()
	}
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port))
}

// URL returns the server's address as a redis:// or unix:// URL.
func (s *Server) URL() string {
	if s.port == 0 {
		return "unix://" + s.Socket()
	}
	return "redis://" + s.Addr()
}

// Client returns a new client on the server's socket, which is closed when the test ends.
func (s *Server) Client() redis.UniversalClient {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.process.client(0, 0)
	s.tb.Cleanup(func() { _ = c.Close() })
	return c
}

// ClusterClient returns a client of the Cluster of the server.
func (s *Server) ClusterClient() *redis.ClusterClient {
	s.tb.Helper()
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{s.Addr()}})
	s.tb.Cleanup(func() { _ = client.Close() })
	return client
}

// Kill ends the server with SIGKILL. It does nothing if the server has ended.
func (s *Server) Kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.process != nil {
		s.process.child.Kill()
	}
}

// Stop shuts the server down. The server first writes its data.
func (s *Server) Stop() {
	s.tb.Helper()
	s.signal(syscall.SIGTERM)
	s.mu.Lock()
	defer s.mu.Unlock()
	<-s.process.child.Done()
}

// Restart kills the server if it runs, starts it again with the same files and address, and returns
// when it answers.
func (s *Server) Restart() {
	s.tb.Helper()
	s.Kill()
	s.mu.Lock()
	defer s.mu.Unlock()
	p, err := launch(s.dir, s.args)
	if err != nil {
		s.tb.Fatalf("redistest: %v", err)
	}
	s.process = p
}

// Pause suspends the server with SIGSTOP: connections stay open, but it does not answer until
// Resume.
func (s *Server) Pause() { s.tb.Helper(); s.signal(syscall.SIGSTOP) }

// Resume continues a paused server.
func (s *Server) Resume() { s.tb.Helper(); s.signal(syscall.SIGCONT) }

func (s *Server) signal(sig os.Signal) {
	s.tb.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.process.child.Signal(sig); err != nil {
		s.tb.Errorf("redistest: %v to the server: %v", sig, err)
	}
}

// shortTempDir returns a directory for a socket, whose path may have at most 107 bytes. The path of
// tb.TempDir can be longer.
func shortTempDir(tb testing.TB) string {
	tb.Helper()
	dir, err := os.MkdirTemp("", "redistest-") //nolint:usetesting // see above
	if err != nil {
		tb.Fatalf("redistest: %v", err)
	}
	tb.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// memoryDir returns a directory for small files, in memory if the system has /dev/shm.
func memoryDir(tb testing.TB) string {
	tb.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "redistest-") //nolint:usetesting // not the disk
	if err != nil {
		return shortTempDir(tb)
	}
	tb.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

var (
	errNoServer = errors.New("no redis-server or valkey-server on PATH: run scripts/ensure redis")
	errTooMany  = fmt.Errorf("more than %d tests use Redis at once", databases)
)

// process is one running redis-server with its files in dir.
type process struct {
	dir   string
	child *child.Process
}

// launch starts a server on a socket in dir and waits until it answers.
func launch(dir string, args []string) (*process, error) {
	binary, err := findServer()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(binary, append(baseArgs(dir), args...)...) //nolint:gosec,noctx // our own arguments; the child outlives any context and is killed by pid
	log, err := os.OpenFile(filepath.Join(dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	c, err := child.Start(cmd)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", binary, err)
	}
	p := &process{dir: dir, child: c}
	return p, p.waitReady()
}

func baseArgs(dir string) []string {
	return []string{
		"--unixsocket", filepath.Join(dir, "redis.sock"),
		"--unixsocketperm", "700",
		"--dir", dir,
		"--databases", strconv.Itoa(databases),
		"--port", "0",
		"--save", "",
	}
}

func findServer() (string, error) {
	for _, name := range []string{"redis-server", "valkey-server"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", errNoServer
}

// client returns a client that waits for the server at most for the time, 0 for go-redis's default.
func (p *process) client(db int, wait time.Duration) *redis.Client {
	return redis.NewClient(&redis.Options{
		DialTimeout:           wait,
		ReadTimeout:           wait,
		WriteTimeout:          wait,
		Network:               "unix",
		Addr:                  filepath.Join(p.dir, "redis.sock"),
		DB:                    db,
		ContextTimeoutEnabled: true,
		DialerRetries:         1,
	})
}

// waitReady waits until the server has loaded its data and answers PING.
func (p *process) waitReady() error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	c := p.client(0, 0)
	defer c.Close()
	if err := p.child.Await(ctx, 5*time.Millisecond, func() bool { return c.Ping(ctx).Err() == nil }); err != nil {
		p.child.Kill()
		log, _ := os.ReadFile(filepath.Join(p.dir, "log"))
		return fmt.Errorf("%w; its log:\n%s", err, log)
	}
	return nil
}

// UsedCPU is the seconds of processor time that the server has taken, which does not depend on what else
// the machine does.
func UsedCPU(tb testing.TB, client redis.UniversalClient) (seconds float64) {
	tb.Helper()
	info, err := client.InfoMap(tb.Context(), "cpu").Result()
	if err != nil {
		tb.Fatal(err)
	}
	for _, name := range []string{"used_cpu_user", "used_cpu_sys"} {
		used, err := strconv.ParseFloat(info["CPU"][name], 64)
		if err != nil {
			tb.Fatal(err)
		}
		seconds += used
	}
	return seconds
}
