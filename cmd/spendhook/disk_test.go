package main

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"spendhook/internal/redisx"
)

// smallDisk mounts a file system of that size. It skips the test if mounting is not permitted;
// for root that is an error.
func smallDisk(t *testing.T, size string) (dir string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "spendhook-") //nolint:usetesting // t.TempDir is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(dir) })
	out, err := exec.CommandContext(t.Context(), "mount", "-t", "tmpfs", "-o", "size="+size+",mode=0700", "spendhook-test", dir).CombinedOutput()
	if err != nil && os.Geteuid() == 0 {
		t.Fatalf("mount a small file system: %v %s", err, out)
	}
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

// fill uses all free disk space, until the file that it returns is removed.
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
// reads go on. With free space everything works again, and nothing accepted is lost, not
// even by a kill.
func TestDataDirectoryIsFull(t *testing.T) {
	t.Parallel()
	h := onSmallDisk(t)
	d := h.startChild(t)
	e := newEndpoint(t, nil)
	e.subscribe(t, d, "PAYMENT_PAID")
	accepted, sent := map[string]string{}, 0 // bodies, by id
	send := func() bool {
		sent++
		id := fmt.Sprint("evt_", sent)
		body := eventBody(id)
		status, _, _ := d.do(t, http.MethodPost, "/api/v1/events", body)
		if status == http.StatusAccepted {
			accepted[id] = body
		}
		return status == http.StatusAccepted
	}
	if !send() {
		t.Fatal("an event is refused though the disk has free space")
	}
	filler := fill(t, h.dir)
	d.wantFull(t, spendCard)
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	eventually(t, patience, "events are accepted again", send)
	d.makesCardsAgain(t)
	d.signal(syscall.SIGKILL)
	d.ended(t)
	d = h.startChild(t)
	e.awaits(t, len(accepted))
	for id, body := range accepted {
		if status, _, answer := d.do(t, http.MethodPost, "/api/v1/events", body); !e.has(id) || status != http.StatusOK {
			t.Errorf("%s was delivered: %v; sent again: %d %s", id, e.has(id), status, answer)
		}
	}
	d.stop(t)
}

// onSmallDisk is an installation with its own Redis and spend data on a disk that can
// be filled.
func onSmallDisk(t *testing.T) installation {
	t.Helper()
	h := newInstallation(t, redisx.Embedded, briefRetries)
	config := filepath.Join(h.dir, "config.yml")
	h.dir = smallDisk(t, "32m")
	if err := os.Symlink(config, filepath.Join(h.dir, "config.yml")); err != nil {
		t.Fatal(err)
	}
	prepare(t, h.dir)
	h.importData(t, spendLines(), "-").want(t, exitOK, "imported 6", "")
	return h
}

func (r *running) makesCardsAgain(tb testing.TB) {
	tb.Helper()
	eventually(tb, patience, "cards are made again", func() bool {
		status, _, _ := r.do(tb, http.MethodPost, "/api/v3/cards", spendCard)
		return status == http.StatusCreated
	})
}

const spendCard = `{"type":"VIRTUAL","alias":"A","userUuid":"` + annUUID + `"}`

// wantFull waits until writes fail, and checks readiness and the answers.
func (r *running) wantFull(tb testing.TB, card string) {
	tb.Helper()
	eventually(tb, patience, "readiness tells that the disk is full", func() bool {
		code, body := get(tb, r.admin+"/readyz")
		return code == http.StatusServiceUnavailable && strings.Contains(body, "is its disk full?")
	})
	for path, body := range map[string]string{
		"/api/v1/events":      eventBody("full"),
		"/api/v1/subscribers": `{"name":"A","callbackUrl":"http://127.0.0.1:1/","events":["PAYMENT_PAID"]}`,
	} {
		if status, _, answer := r.do(tb, http.MethodPost, path, body); status != http.StatusServiceUnavailable {
			tb.Errorf("%s with the disk full: %d %s", path, status, answer)
		}
	}
	eventually(tb, patience, "card writes answer 503", func() bool {
		status, _, body := r.do(tb, http.MethodPost, "/api/v3/cards", card)
		if status != http.StatusCreated && status != http.StatusServiceUnavailable {
			tb.Fatalf("a card with the disk full: %d %s", status, body)
		}
		return status == http.StatusServiceUnavailable
	})
	if status, _, body := r.do(tb, http.MethodGet, "/api/v3/cards/"+cardUUID, ""); status != http.StatusOK {
		tb.Errorf("a card is read with the disk full: %d %s", status, body)
	}
}
