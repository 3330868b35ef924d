package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// A command that finds no data directory names the directory and creates nothing.
func TestCommandsMakeNoDataDirectory(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "data.ndjson")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, args := range map[string][]string{
		"token":            {"token", "--scope", "platform"},
		"client create":    {"client", "create", "--name", "n", "--scope", "platform"},
		"keys list":        {"keys", "list"},
		"keys rotate":      {"keys", "rotate"},
		"keys reencrypt":   {"keys", "reencrypt"},
		"import":           {"import", file},
		"migrate":          {"migrate"},
		"format":           {"format"},
		"format raise":     {"format", "raise"},
		"token, somewhere": {"token", "--scope", "platform", "--storage", "postgres://nobody@127.0.0.1:1/none"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			missing := filepath.Join(t.TempDir(), "missing")
			command(t, "", append(args, "--data-dir", missing)...).want(t, exitFailure, "", missing)
			if _, err := os.Stat(missing); !os.IsNotExist(err) {
				t.Errorf("the directory: %v", err)
			}
			empty := emptyDir(t)
			command(t, "", append(args, "--data-dir", empty)...).want(t, exitFailure, "", empty)
			if left, _ := os.ReadDir(empty); len(left) > 0 {
				t.Errorf("left behind: %v", left)
			}
		})
	}
}

// All files that serve creates are private to its user, whatever the umask.
func TestServeCreatesPrivateFiles(t *testing.T) { // not parallel: it sets the umask
	h := newInstallation(t, "embedded", "")
	for _, name := range []string{encryptionKeyFile, "spend.db"} {
		if err := os.Remove(filepath.Join(h.dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	umask := syscall.Umask(0)
	defer syscall.Umask(umask)
	d := h.startChild(t)
	d.stop(t)
	files := 0
	if err := filepath.WalkDir(h.dir, func(path string, e os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err == nil && info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s: %v", path, info.Mode())
		}
		files++
		return err
	}); err != nil || files < 6 {
		t.Errorf("%d files, %v", files, err)
	}
}

func TestServeRefusesSharedOrLinkedFiles(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		spoil func(t *testing.T, dir string) error
		want  string
	}{
		"a directory that others read": {func(_ *testing.T, dir string) error { return os.Chmod(dir, 0o750) }, "lets others use it"},
		"another user's directory": {func(t *testing.T, dir string) error {
			t.Helper()
			return chown(t, dir)
		}, "belongs to another user"},
		"a key that others read": {func(_ *testing.T, dir string) error {
			return os.Chmod(filepath.Join(dir, encryptionKeyFile), 0o640)
		}, "lets others use it"},
		"a key that is a link":      {linked(encryptionKeyFile), "too many levels"},
		"a database that is a link": {linked("spend.db"), "too many levels"},
		"an id that is a link":      {linked("replica-id"), "too many levels"},
		"another user's database": {func(t *testing.T, dir string) error {
			t.Helper()
			return chown(t, filepath.Join(dir, "spend.db"))
		}, "belongs to another user"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newInstallation(t, sharedRedis(t), "")
			if err := c.spoil(t, h.dir); err != nil {
				t.Fatal(err)
			}
			got := command(t, "", h.args()...)
			got.want(t, exitFailure, "", c.want)
			if !strings.Contains(got.stderr, h.dir) {
				t.Errorf("does not say where: %s", got.stderr)
			}
		})
	}
}

func chown(t *testing.T, path string) error {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can give a file away")
	}
	return os.Chown(path, 12345, -1)
}

// linked moves a file away and replaces it by a symbolic link to it.
func linked(name string) func(*testing.T, string) error {
	return func(t *testing.T, dir string) error {
		t.Helper()
		path, elsewhere := filepath.Join(dir, name), filepath.Join(t.TempDir(), name)
		if err := os.Rename(path, elsewhere); err != nil && !os.IsNotExist(err) {
			return err
		}
		return os.Symlink(elsewhere, path)
	}
}
