//go:build faults

package main

import (
	"context"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"spendhook/internal/partition"
	"spendhook/internal/redistest"
)

// nextRelease builds a daemon that reads the next stored format as well.
func nextRelease(t *testing.T) string {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "spendhook")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", binary,
		"-ldflags", "-X spendhook/internal/partition.newest=2", ".")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return binary
}

// format runs the command of an installation.
func (h installation) format(t *testing.T, args ...string) (string, error) {
	t.Helper()
	args = append(append([]string{"format"}, args...), "--redis", h.redis, "--data-dir", h.dir)
	out, err := exec.CommandContext(context.Background(), h.binary, args...).CombinedOutput()
	return string(out), err
}

// refusal is this release's error about a partition with the stored format of the next release, whichever
// partition it met first.
var refusal = strings.TrimPrefix((&partition.FormatError{Format: 2}).Error(), "partition 0 ")

// This release and the next one run side by side. The stored format is raised
// once the old daemon is lost; when that comes back, it begins and accepts
// nothing any more, and nothing is lost.
func TestReleasesSideBySide(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{AOF: true})
	next := newInstallation(t, server.URL(), sharedKey+briefRetries)
	next.binary = nextRelease(t)
	old := newInstallation(t, server.URL(), sharedKey+briefRetries)
	tr := newTrial(t, server.Client(), next, old)
	oldDaemon := tr.daemons[1]
	tr.grow(500)
	tr.load.pause()
	tr.account()
	tr.load.resume()

	for _, args := range [][]string{{"raise"}, {"raise", "--dry-run"}} {
		if out, err := next.format(t, args...); err == nil || !strings.Contains(out, "does not read the new format") {
			t.Errorf("format %v beside an old daemon: %v\n%s", args, err, out)
		}
	}
	if out, err := next.format(t); err != nil || !strings.Contains(out, "256 partitions have format 1\nthis build reads 1 to 2\n") ||
		!strings.Contains(out, "reads 1\n") {
		t.Errorf("format: %v\n%s", err, out)
	}

	tr.load.pause()
	tr.load.aim(tr.daemons[0])
	tr.load.resume()
	tr.grow(50)
	oldDaemon.signal(syscall.SIGSTOP)
	eventually(t, patience, "the format is raised", func() bool {
		out, err := next.format(t, "raise")
		return err == nil && strings.Contains(out, "raised 256 of 256 partitions to format 2")
	})
	if out, err := next.format(t, "raise"); err != nil || !strings.Contains(out, "raised 0 of 256") {
		t.Errorf("raise again: %v\n%s", err, out)
	}
	tr.grow(200)
	oldDaemon.signal(syscall.SIGCONT)
	eventually(t, patience, "the old daemon is not ready", func() bool {
		status, body := get(t, oldDaemon.admin+"/readyz")
		return status == http.StatusServiceUnavailable && strings.Contains(body, refusal)
	})
	if status, _, body := oldDaemon.do(t, http.MethodPost, "/api/v1/events", eventBody(single+"refused")); status != http.StatusServiceUnavailable {
		t.Errorf("an accept of the old daemon: %d %s", status, body)
	}
	if status, _, body := oldDaemon.do(t, http.MethodDelete, "/api/v1/subscribers/"+tr.endpoints[0].subscriber.String(), ""); status != http.StatusServiceUnavailable {
		t.Errorf("a change of a subscriber by the old daemon: %d %s", status, body)
	}
	tr.grow(300)
	oldDaemon.stop(t)
	if n := strings.Count(oldDaemon.stderr.String(), "owning nothing more"); n != 1 {
		t.Errorf("the refusal was logged %d times", n)
	}
	oldDaemon = old.beginChild(t)
	oldDaemon.ended(t)
	if oldDaemon.code != exitFailure || !strings.Contains(oldDaemon.stderr.String(), refusal) {
		t.Errorf("an old daemon started, exit code %d:\n%s", oldDaemon.code, oldDaemon.stderr)
	}
	tr.daemons = tr.daemons[:1]
	tr.grow(100)
	tr.finish()
}
