package redisx_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"spendhook/internal/redistest"
	"spendhook/internal/redisx"
	"spendhook/internal/waittest"
)

const helperDir = "REDISX_HELPER_DIR"

// TestMain doubles as the daemon that TestHardKilledDaemon kills.
func TestMain(m *testing.M) {
	if dir := os.Getenv(helperDir); dir != "" {
		beDaemon(dir)
	}
	redisx.LogTo(slog.New(slog.DiscardHandler))
	goleak.VerifyTestMain(m)
}

// beDaemon writes k, prints its server's pid and waits to be killed.
func beDaemon(dir string) {
	ctx := context.Background()
	r, err := redisx.Open(ctx, redisx.Options{DataDir: dir})
	if err != nil {
		os.Exit(1)
	}
	if err := r.Client().Set(ctx, "k", "v", 0).Err(); err != nil {
		os.Exit(1)
	}
	_, _ = io.WriteString(os.Stdout, serverPid(ctx, r.Client()))
	_ = os.Stdout.Close()
	select {}
}

func TestEmbeddedKeepsItsDataOverAStop(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, before := range []string{"", "v"} {
		var log strings.Builder
		r := open(t, redisx.Options{DataDir: dir, Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))})
		if got := r.Client().Get(t.Context(), "k").Val(); got != before {
			t.Errorf("k = %q, want %q", got, before)
		}
		setK(t, r.Client())
		if !r.Durable() {
			t.Error("an embedded server is not durable")
		}
		if err := r.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
		if !strings.Contains(log.String(), "ready to exit") {
			t.Errorf("the server was not stopped in order:\n%s", &log)
		}
	}
}

func TestServerHoldsTheLock(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := open(t, redisx.Options{DataDir: dir})
	pid := serverPid(t.Context(), r.Client())
	locks, err := os.Readlink(filepath.Join("/proc", pid, "fd", "3"))
	if err != nil || locks != filepath.Join(dir, "redis", "lock") {
		t.Errorf("the server has inherited %q, %v: another server could write the same files", locks, err)
	}
	closeIt(t, r)
	closeIt(t, open(t, redisx.Options{DataDir: dir})) // the lock does not outlive the server
}

func TestEmbeddedIsPrivate(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	folder := filepath.Join(dir, "redis")
	if err := os.Mkdir(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := redisx.Open(t.Context(), redisx.Options{DataDir: dir}); err == nil || !strings.Contains(err.Error(), "0700") {
		t.Errorf("a folder that others read: %v", err)
	}
	if err := os.Remove(folder); err != nil {
		t.Fatal(err)
	}
	defer closeIt(t, open(t, redisx.Options{DataDir: dir}))
	for _, path := range []string{"redis", "redis/redis.sock"} {
		info, err := os.Stat(filepath.Join(dir, path))
		if err != nil {
			t.Fatal(err)
		}
		if mode := info.Mode().Perm(); mode&0o077 != 0 {
			t.Errorf("%s is open to others: %v", path, mode)
		}
	}
}

func TestEmbeddedSyncsAsConfigured(t *testing.T) {
	t.Parallel()
	for full, want := range map[bool]string{true: "always", false: "everysec"} {
		r := open(t, redisx.Options{DataDir: t.TempDir(), FullSync: full})
		defer closeIt(t, r)
		if got := r.Client().ConfigGet(t.Context(), "appendfsync").Val()["appendfsync"]; got != want {
			t.Errorf("full sync %v: %q, want %q", full, got, want)
		}
		if warnings := r.Check(t.Context()).Warnings; len(warnings) > 0 {
			t.Errorf("full sync %v: %q of what was chosen", full, warnings)
		}
	}
}

func TestKilledServerComesBackWithItsData(t *testing.T) {
	t.Parallel()
	r := open(t, redisx.Options{DataDir: t.TempDir()})
	defer closeIt(t, r)
	setK(t, r.Client())
	first := serverPid(t.Context(), r.Client())
	for range 3 {
		pid := serverPid(t.Context(), r.Client())
		kill(t, pid)
		waittest.Until(t, "another server runs", func() bool {
			now := serverPid(t.Context(), r.Client())
			return now != "" && now != pid
		})
	}
	if got := r.Client().Get(t.Context(), "k").Val(); got != "v" {
		t.Errorf("k = %q, want v", got)
	}
	if serverPid(t.Context(), r.Client()) == first {
		t.Error("the server was never restarted")
	}
}

func TestHardKilledDaemon(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), helperDir+"="+dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pid, err := io.ReadAll(out)
	if err != nil {
		t.Fatal(err)
	}
	_ = cmd.Process.Kill()

	r := open(t, redisx.Options{DataDir: dir}) // at once, not after Wait
	defer closeIt(t, r)
	_ = cmd.Wait()
	if got := r.Client().Get(t.Context(), "k").Val(); got != "v" {
		t.Errorf("k = %q, want v", got)
	}
	if now := serverPid(t.Context(), r.Client()); now == string(pid) {
		t.Error("the killed daemon's server is still in use")
	}
}

func TestDataDirIsForOneDaemon(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := open(t, redisx.Options{DataDir: dir})
	defer closeIt(t, r)
	_, err := redisx.Open(t.Context(), redisx.Options{DataDir: dir})
	if err == nil || !strings.Contains(err.Error(), "another daemon uses it") {
		t.Fatalf("second Open: %v", err)
	}
	setK(t, r.Client()) // the first is unharmed
}

// A command beside the daemon uses the daemon's server, also when the data directory is named by a relative
// path, as by default, and when its path is too long for a socket.
func TestCommandUsesTheServerOfTheDaemon(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, dir := range []string{"data", strings.Repeat("long/", 25)} {
		r := open(t, redisx.Options{DataDir: dir})
		defer closeIt(t, r)
		setK(t, r.Client())
		beside := open(t, redisx.Options{DataDir: dir, Attach: true})
		defer closeIt(t, beside)
		if got := beside.Client().Get(t.Context(), "k").Val(); got != "v" {
			t.Errorf("%s: k = %q, want v", dir, got)
		}
	}
}

func TestBrokenDataIsAnErrorThatSaysSo(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	aof := filepath.Join(dir, "redis", "appendonlydir")
	if err := os.MkdirAll(aof, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(aof, "appendonly.aof.manifest"), []byte("rubbish\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := redisx.Open(t.Context(), redisx.Options{DataDir: dir})
	if err == nil || !strings.Contains(err.Error(), "AOF manifest") {
		t.Fatalf("Open on a broken manifest: %v", err)
	}
}

func TestMemory(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	if _, err := redisx.Open(t.Context(), redisx.Options{DataDir: t.TempDir()}); err == nil || !strings.Contains(err.Error(), "install") {
		t.Fatalf("Open without a server: %v, want what to install", err)
	}
	var log strings.Builder
	r := open(t, redisx.Options{AllowMemory: true, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	defer closeIt(t, r)
	if r.Durable() || !strings.Contains(log.String(), "NOT DURABLE") {
		t.Errorf("memory is taken for durable; log: %s", &log)
	}
	s := r.Check(t.Context())
	if !s.Up || len(s.Problems) != 0 || len(s.Warnings) != 1 {
		t.Errorf("Check = %+v, want up with one warning", s)
	}
	if err := r.Client().Set(t.Context(), "short", "v", 300*time.Millisecond).Err(); err != nil {
		t.Fatal(err)
	}
	waittest.Until(t, "the key has expired", func() bool { return errors.Is(r.Client().Get(t.Context(), "short").Err(), redis.Nil) })
	flagged := redis.NewScript("#!lua flags=allow-oom\nreturn ARGV[1]")
	if got, err := flagged.Run(t.Context(), r.Client(), nil, "x").Result(); err != nil || got != "x" {
		t.Errorf("a script with flags: %v, %v", got, err)
	}
}

func open(t *testing.T, o redisx.Options) *redisx.Redis {
	t.Helper()
	r, err := redisx.Open(t.Context(), o)
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	return r
}

func closeIt(t *testing.T, r *redisx.Redis) {
	t.Helper()
	if err := r.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
}

func setK(t *testing.T, c redis.UniversalClient) {
	t.Helper()
	if err := c.Set(t.Context(), "k", "v", 0).Err(); err != nil {
		t.Fatalf("SET k: %v", err)
	}
}

func serverPid(ctx context.Context, c redis.UniversalClient) string {
	return c.InfoMap(ctx, "server").Item("Server", "process_id")
}

func kill(t *testing.T, pid string) {
	t.Helper()
	n, err := strconv.Atoi(pid)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(n, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
}

// A daemon must be able to start on a full Redis, because settling events frees memory.
func TestFullRedisTakesWrites(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{Args: []string{"--maxmemory", "1mb"}})
	r, err := redisx.Open(t.Context(), redisx.Options{URL: server.URL()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	if err := r.Client().Set(t.Context(), "a", strings.Repeat("x", 1<<20), 0).Err(); err != nil {
		t.Logf("full already: %v", err)
	}
	if err := r.TryWrite(t.Context()); err != nil {
		t.Errorf("a full Redis counts as one that takes no writes: %v", err)
	}
}
