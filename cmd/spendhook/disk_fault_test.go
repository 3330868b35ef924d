package main

import (
	"errors"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/redis/go-redis/v9"

	"spendhook/internal/redisx"
)

// smallDisk mounts a file system of that size, or skips the test where that is
// not allowed.
func smallDisk(t *testing.T, size string) (dir string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "spendhook-") //nolint:usetesting // t.TempDir is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(dir) })
	out, err := exec.CommandContext(t.Context(), "mount", "-t", "tmpfs", "-o", "size="+size+",mode=0700", "spendhook-test", dir).CombinedOutput()
	if err != nil {
		t.Skipf("a small file system cannot be mounted here: %v %s", err, out)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Errorf("unmount %s: %v", dir, err)
		}
	})
	return dir
}

// fill takes all the room there is, until the file that it returns is removed.
func fill(t *testing.T, dir string) (file string) {
	t.Helper()
	file = filepath.Join(dir, "filler")
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for chunk := make([]byte, 4096); err == nil; {
		_, err = f.Write(chunk)
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	return file
}

// The data directory is full: events, card writes and readiness answer 503, and
// reads go on. With room again everything does, and nothing accepted is lost,
// not even by a kill later.
func TestDataDirectoryIsFull(t *testing.T) {
	t.Parallel()
	h := newInstallation(t, redisx.Embedded, briefRetries)
	config := filepath.Join(h.dir, "config.yml")
	h.dir = smallDisk(t, "32m")
	if err := os.Symlink(config, filepath.Join(h.dir, "config.yml")); err != nil {
		t.Fatal(err)
	}
	prepare(t, h.dir)
	h.importData(t, spendLines(), "-").want(t, exitOK, "imported 6", "")
	client := redis.NewClient(&redis.Options{Network: "unix", Addr: filepath.Join(h.dir, "redis", "redis.sock")})
	t.Cleanup(func() { _ = client.Close() })
	tr := newTrial(t, client, h)

	for range 2 {
		filler := fill(t, h.dir)
		tr.wantFull(spendCard)
		if err := os.Remove(filler); err != nil {
			t.Fatal(err)
		}
		tr.grow(100)
		eventually(t, patience, "cards are made again", func() bool {
			status, _, _ := tr.daemons[0].do(t, http.MethodPost, "/api/v3/cards", spendCard)
			return status == http.StatusCreated
		})
	}
	tr.daemons[0].signal(syscall.SIGKILL)
	tr.daemons[0].ended(t)
	tr.replace(0, h.startChild(t))
	tr.grow(50)
	tr.finish()
}

const spendCard = `{"type":"VIRTUAL","alias":"A","userUuid":"` + annUUID + `"}`

// wantFull waits until nothing is written any more, and checks what is told.
func (tr *trial) wantFull(card string) {
	tr.t.Helper()
	d := tr.daemons[0]
	eventually(tr.t, patience, "readiness tells that the disk is full", func() bool {
		code, body := get(tr.t, d.admin+"/readyz")
		return code == http.StatusServiceUnavailable && strings.Contains(body, "is its disk full?")
	})
	for path, body := range map[string]string{
		"/api/v1/events":      eventBody(single + "full"),
		"/api/v1/subscribers": `{"name":"A","callbackUrl":"http://127.0.0.1:1/","events":["PAYMENT_PAID"]}`,
	} {
		if status, _, answer := d.do(tr.t, http.MethodPost, path, body); status != http.StatusServiceUnavailable {
			tr.t.Errorf("%s with the disk full: %d %s", path, status, answer)
		}
	}
	eventually(tr.t, patience, "card writes answer 503", func() bool {
		status, _, body := d.do(tr.t, http.MethodPost, "/api/v3/cards", card)
		if status != http.StatusCreated && status != http.StatusServiceUnavailable {
			tr.t.Fatalf("a card with the disk full: %d %s", status, body)
		}
		return status == http.StatusServiceUnavailable
	})
	if status, _, body := d.do(tr.t, http.MethodGet, "/api/v3/cards/"+cardUUID, ""); status != http.StatusOK {
		tr.t.Errorf("a card is read with the disk full: %d %s", status, body)
	}
}
