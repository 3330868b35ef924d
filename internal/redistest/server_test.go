package redistest_test

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"spendhook/internal/redistest"
	"spendhook/internal/waittest"
)

func TestAOFSurvivesKill(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t, redistest.Options{AOF: true})
	c := s.Client()
	mustSet(t, c, "k")
	s.Kill()
	if err := c.Get(t.Context(), "k").Err(); err == nil {
		t.Fatal("a killed server answered")
	}
	s.Restart()
	if got := c.Get(t.Context(), "k").Val(); got != "v" {
		t.Errorf("after the restart k = %q, want v", got)
	}
}

func TestPausedServerDoesNotAnswer(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t, redistest.Options{TCP: true})
	c := redis.NewClient(&redis.Options{Addr: s.Addr(), ContextTimeoutEnabled: true, MaxRetries: -1})
	defer c.Close()
	mustSet(t, c, "k")

	s.Pause()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	var timeout net.Error
	if err := c.Ping(ctx).Err(); !errors.As(err, &timeout) || !timeout.Timeout() {
		t.Errorf("PING of a paused server: %v, want a time-out", err)
	}
	s.Resume()
	mustSet(t, c, "k")
}

func TestClusterServesEverySlot(t *testing.T) {
	t.Parallel()
	servers := redistest.Cluster(t, 3)
	c := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{servers[0].Addr()}})
	defer c.Close()
	for i := range 100 {
		mustSet(t, c, "{"+strconv.Itoa(i)+"}")
	}
	for _, s := range servers {
		if n := s.Client().DBSize(t.Context()).Val(); n == 0 {
			t.Errorf("%s holds no key", s.Addr())
		}
	}
}

// TestServerEndsWithTheTestBinary re-runs this binary, which kills itself.
func TestServerEndsWithTheTestBinary(t *testing.T) {
	t.Parallel()
	if file := os.Getenv("REDISTEST_PID_FILE"); file != "" {
		writePidAndKill(t, file)
	}
	dir, err := os.MkdirTemp("", "redistest-") //nolint:usetesting // t.TempDir is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "pid")
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), "REDISTEST_PID_FILE="+file, "TMPDIR="+dir)
	_ = cmd.Run() // SIGKILL ends it

	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(string(text))
	if err != nil {
		t.Fatal(err)
	}
	waittest.Until(t, "the server has ended", func() bool { return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) })
}

func writePidAndKill(t *testing.T, file string) {
	t.Helper()
	c := redistest.New(t)
	pid := c.InfoMap(t.Context(), "server").Item("Server", "process_id")
	if err := os.WriteFile(file, []byte(pid), 0o600); err != nil {
		t.Fatal(err)
	}
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	<-t.Context().Done()
}

func mustSet(t *testing.T, c redis.UniversalClient, key string) {
	t.Helper()
	if err := c.Set(t.Context(), key, "v", 0).Err(); err != nil {
		t.Fatalf("SET %s: %v", key, err)
	}
}
