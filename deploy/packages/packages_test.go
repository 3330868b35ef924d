// Package packages_test builds the Debian and RPM packages, and installs each of them into a
// temporary copy of this machine's root file system.
package packages_test

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"spendhook/deploy/internal/daemontest"
)

// relaySettings are the settings of the relay, which the package does not install.
const relaySettings = "etc/spendhook/relay.yml"

// command runs a program to its end and returns its output. It fails the test after Patience.
func command(t *testing.T, env []string, name string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), daemontest.Patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
	return string(out)
}

// build builds a package like 'make packages'.
func build(t *testing.T, bin, kind, out string) string {
	t.Helper()
	command(t, []string{"ARCH=" + runtime.GOARCH, "BIN=" + bin, "VERSION=v1.2.3", "SOURCE_DATE_EPOCH=1795167000"},
		"go", "tool", "nfpm", "package", "--packager", kind, "--target", out)
	found, err := filepath.Glob(filepath.Join(out, "*."+kind))
	if err != nil || len(found) != 1 {
		t.Fatalf("%v: %v", found, err)
	}
	return found[0]
}

func TestPackages(t *testing.T) {
	bin := t.TempDir()
	binary := filepath.Join(bin, "linux-"+runtime.GOARCH, "spendhook")
	daemontest.Build(t, binary)
	command(t, nil, "./generate", binary, filepath.Join(bin, "packages"), "2026-11-20T09:30:00Z")
	for _, kind := range []string{"deb", "rpm"} {
		t.Run(kind, func(t *testing.T) {
			file := build(t, bin, kind, t.TempDir())
			first, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if second, err := os.ReadFile(build(t, bin, kind, t.TempDir())); err != nil || !bytes.Equal(first, second) {
				t.Errorf("two builds give different packages (%v)", err)
			}
			if os.Geteuid() != 0 {
				t.Skip("an installation needs root")
			}
			root := machine(t)
			s := installation{t, root, readUnit(t, "spendhook.service")}
			settings := filepath.Join(root, relaySettings)
			if err := os.MkdirAll(filepath.Dir(settings), 0o750); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(settings, []byte("{}\n"), 0o640); err != nil { // an upgrade finds it
				t.Fatal(err)
			}
			if kind == "deb" {
				command(t, nil, "dpkg", "--root="+root, "--install", file)
				s.check("usr/share/zsh/vendor-completions/_spendhook")
				s.run()
				command(t, nil, "dpkg", "--root="+root, "--remove", "spendhook")
			} else {
				command(t, nil, "rpm", "--root", root, "--install", "--nodeps", "--ignorearch", file)
				if host := command(t, nil, "rpm", "-qp", "--nosignature", "--qf", "%{BUILDHOST}", file); host != "localhost" {
					t.Errorf("the package was built on %s", host)
				}
				s.check("usr/share/zsh/site-functions/_spendhook")
				command(t, nil, "rpm", "--root", root, "--verify", "--nodeps", "--nouser", "--nogroup", "spendhook")
				command(t, nil, "rpm", "--root", root, "--erase", "spendhook")
			}
			if _, err := os.Stat(settings); err != nil {
				t.Errorf("the settings of the relay: %v", err)
			}
			if _, err := os.Stat(filepath.Join(root, "usr/bin/spendhook")); !os.IsNotExist(err) {
				t.Errorf("the binary is left behind: %v", err)
			}
		})
	}
}

// machine returns an overlay of this machine's root file system. Writes go to the overlay only.
func machine(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "mode=0755"); err != nil {
		t.Fatalf("mount: %v", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(dir, 0) })
	for _, name := range []string{"upper", "work", "root"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	root := filepath.Join(dir, "root")
	options := "lowerdir=/,upperdir=" + filepath.Join(dir, "upper") + ",workdir=" + filepath.Join(dir, "work")
	if err := syscall.Mount("overlay", root, "overlay", 0, options); err != nil {
		t.Fatalf("mount: %v", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(root, 0) })
	return root
}

// readUnit returns the settings of a unit. If a setting is there several times, the last one counts.
func readUnit(t *testing.T, file string) map[string]string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	unit := map[string]string{}
	for line := range strings.Lines(string(text)) {
		if key, value, found := strings.Cut(strings.TrimSpace(line), "="); found {
			unit[key] = value
		}
	}
	return unit
}

// installation is a package that is installed below a root.
type installation struct {
	*testing.T

	root string
	unit map[string]string
}

func (s installation) chroot(args ...string) string {
	s.Helper()
	return command(s.T, nil, "chroot", append([]string{s.root}, args...)...)
}

// check checks the installed files and the settings without starting the service; zsh is
// the path of that shell's completion.
func (s installation) check(zsh string) {
	s.Helper()
	for _, name := range []string{
		"usr/share/man/man1/spendhook.1.gz", "usr/share/bash-completion/completions/spendhook", zsh,
		"usr/share/fish/vendor_completions.d/spendhook.fish", "usr/share/doc/spendhook/settings.yml", "usr/share/doc/spendhook/relay.yml",
		"usr/share/doc/spendhook/copyright",
	} {
		if info, err := os.Stat(filepath.Join(s.root, name)); err != nil || info.Size() == 0 {
			s.Errorf("%s: %v", name, err)
		}
	}
	if relay := readUnit(s.T, "spendhook-relay.service"); relay["User"] != s.unit["User"] || relay["ConditionPathExists"] != "/"+relaySettings ||
		relay["ExecStart"] != "/usr/bin/spendhook relay --config /"+relaySettings {
		s.Errorf("the unit of the relay: %v", relay)
	}
	user, group := s.ids()
	for _, name := range []string{"etc/spendhook", "etc/spendhook/spendhook.yml", "etc/spendhook/environment", relaySettings} {
		info, err := os.Stat(filepath.Join(s.root, name))
		if err != nil {
			s.Fatal(err)
		}
		owner := info.Sys().(*syscall.Stat_t)
		if owner.Uid == user || owner.Gid != group || info.Mode().Perm()&0o027 != 0 {
			s.Errorf("%s: mode %v, owner %d, group %d", name, info.Mode(), owner.Uid, owner.Gid)
		}
	}
	if out := s.chroot("/usr/bin/spendhook", "config", "check", "/etc/spendhook/spendhook.yml"); !strings.Contains(out, "is valid") {
		s.Error(out)
	}
	for _, unit := range []string{"spendhook.service", "spendhook-relay.service"} {
		command(s.T, nil, "systemd-analyze", "verify", "--man=no", "--root="+s.root, unit)
		command(s.T, nil, "systemd-analyze", "security", "--offline=yes", "--threshold=15", "--root="+s.root, unit)
	}
}

// ids returns the ids of the service's user and group.
func (s installation) ids() (user, group uint32) {
	s.Helper()
	passwd, err := os.ReadFile(filepath.Join(s.root, "etc/passwd"))
	if err != nil {
		s.Fatal(err)
	}
	found := regexp.MustCompile(`(?m)^` + s.unit["User"] + `:[^:]*:(\d+):(\d+):`).FindSubmatch(passwd)
	if found == nil {
		s.Fatalf("there is no user %s", s.unit["User"])
	}
	uid, _ := strconv.Atoi(string(found[1])) // digits
	gid, _ := strconv.Atoi(string(found[2]))
	return uint32(uid), uint32(gid)
}

// run follows the comments in the settings file, and starts the service as systemd does.
func (s installation) run() {
	s.Helper()
	settings, err := os.ReadFile(filepath.Join(s.root, "etc/spendhook/spendhook.yml"))
	if err != nil {
		s.Fatal(err)
	}
	advice := regexp.MustCompile(`(?m)^#   (spendhook certs dev .*)$`).FindSubmatch(settings)
	s.chroot("/bin/sh", "-ec", string(advice[1]))
	user, group := s.ids()
	state := filepath.Join(s.root, "var/lib", s.unit["StateDirectory"])
	if err := os.Mkdir(state, 0o700); err != nil {
		s.Fatal(err)
	}
	if err := os.Chown(state, int(user), int(group)); err != nil {
		s.Fatal(err)
	}
	args := strings.Fields(s.unit["ExecStart"])
	cmd := exec.CommandContext(s.Context(), args[0], append(args[1:], "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--log-format", "json")...)
	cmd.Env = []string{"PATH=/usr/bin:/bin"}
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: s.root, Credential: &syscall.Credential{Uid: user, Gid: group}}
	d := daemontest.Start(s.T, cmd)
	if !d.RunsAs(user) {
		s.Error("the service runs as another user")
	}
	d.RequiresToken(filepath.Join(s.root, "etc/spendhook/tls"), "/api/v1/event-types")
	d.Stop(time.Minute)
}
