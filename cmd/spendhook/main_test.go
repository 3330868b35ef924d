package main

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"spendhook/internal/pgtest"
	"spendhook/internal/redistest"
)

// childVariable makes the test binary behave as the command itself, for tests
// that need a process of its own to signal or kill.
const childVariable = "SPENDHOOKTEST_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(childVariable) != "" {
		os.Exit(run(context.Background(), os.Args[1:], os.Stdout, os.Stderr))
	}
	// The tests ignore the profile of the user who runs them.
	if err := os.Setenv("XDG_CONFIG_HOME", "/nonexistent"); err != nil {
		panic(err)
	}
	redistest.Main(pgtest.Stopping(m))
}

// result is how a command line ended.
type result struct {
	code           int
	stdout, stderr string
}

func command(tb testing.TB, stdin string, args ...string) result {
	tb.Helper()
	return commandWith(tb, strings.NewReader(stdin), args...)
}

func commandWith(tb testing.TB, stdin io.Reader, args ...string) result {
	tb.Helper()
	var out, errs bytes.Buffer
	ctx, cancel := context.WithTimeout(tb.Context(), patience)
	defer cancel()
	code := runWith(ctx, args, stdio{In: stdin, Out: &out, Err: &errs})
	return result{code, out.String(), errs.String()}
}

// secretFile holds a secret, which is no flag.
func secretFile(tb testing.TB, secret string) string {
	tb.Helper()
	path := filepath.Join(tb.TempDir(), "secret")
	if err := os.WriteFile(path, []byte(secret+"\n"), 0o600); err != nil {
		tb.Fatal(err)
	}
	return path
}

func (r result) want(tb testing.TB, code int, inStdout, inStderr string) {
	tb.Helper()
	if r.code != code || !strings.Contains(r.stdout, inStdout) || !strings.Contains(r.stderr, inStderr) {
		tb.Fatalf("exit code %d, want %d\nstdout (want %q):\n%s\nstderr (want %q):\n%s",
			r.code, code, inStdout, r.stdout, inStderr, r.stderr)
	}
}

func TestExitCodes(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name   string
		args   []string
		code   int
		out    string
		errout string
	}{
		{"help", []string{"--help"}, exitOK, "Usage: spendhook <command>", ""},
		{"help of a command", []string{"event", "send", "--help"}, exitOK, "--metadata-file", ""},
		{"help as a command", []string{"help", "event", "send"}, exitOK, "--metadata-file", ""},
		{"groups of commands", []string{"help"}, exitOK, "\nTools:\n  listen ", ""},
		{"manual page", []string{"--man"}, exitOK, "\"spendhook\" \"Deliver events as signed webhooks\"\n", ""},
		{"version", []string{"version"}, exitOK, "spendhook ", ""},
		{"no command", nil, exitUsage, "", "\nRun 'spendhook --help'.\n"},
		{"unknown command", []string{"serv"}, exitUsage, "", "unexpected argument serv"},
		{"unknown command of relay", []string{"relay", "tset"}, exitUsage, "", "unexpected argument tset\nRun 'spendhook relay --help'."},
		{"unknown flag", []string{"version", "--loud"}, exitUsage, "", "unknown flag --loud"},
		{"missing flag", []string{"sign", "--secret-file", "x"}, exitUsage, "", "missing flags"},
		{"no token", []string{"event", "send", "--event", "PAYMENT_PAID"}, exitUsage, "", "you are not logged in"},
		{"two ways at once", []string{"event", "send", "-f", "-", "--event", "PAYMENT_PAID", "--token-file", secretFile(t, "x")}, exitUsage, "", "not both"},
		{"a flag without effect", []string{"event", "send", "-f", "-", "--error-code", "E", "--token-file", secretFile(t, "x")}, exitUsage, "", "not both"},
		{"control characters", []string{"event", "send", "-f", secretFile(t, "\x1b[2J"), "--token-file", secretFile(t, "x")}, exitFailure, "refused 1", `not a JSON object: \u001b[2J`},
		{"bad status", []string{"listen", "--status", "99"}, exitUsage, "", "--status must be 200 to 599"},
		{"nobody there", []string{"healthcheck", "--admin-listen", "127.0.0.1:1"}, exitFailure, "", "refused"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			command(t, "", tc.args...).want(t, tc.code, tc.out, tc.errout)
		})
	}
}
