//go:build faults

package main

import (
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"spendhook/internal/pgtest"
	"spendhook/internal/redistest"
)

// tool runs a program of Redis or PostgreSQL.
func tool(t *testing.T, name string, args ...string) {
	t.Helper()
	if found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/" + name); len(found) > 0 { // Debian keeps the server's version there
		name = found[len(found)-1]
	}
	if out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
}

// emitter is a source of events that can send each event again unchanged.
type emitter struct{ bodies []string }

// send posts the events with the numbers from (included) to to (excluded), and expects this status for each.
func (s *emitter) send(t *testing.T, d *running, from, to int, status int) {
	t.Helper()
	for i := from; i < to; i++ {
		if i == len(s.bodies) {
			s.bodies = append(s.bodies, eventBody("evt_"+strconv.Itoa(i)))
		}
		eventually(t, patience, "the event is answered", func() bool {
			got, _, body := d.do(t, http.MethodPost, "/api/v1/events", s.bodies[i])
			if got != status && got != http.StatusServiceUnavailable {
				t.Fatalf("event %d: %d %s", i, got, body)
			}
			return got == status
		})
	}
}

// The backup of docs/backup.md is made while a daemon works. Then Redis, the database and the
// data directory are lost. After the restore, all data of the backup is back, including
// pending deliveries. The source sends its later events again, and every event is delivered.
func TestBackupAndRestore(t *testing.T) {
	t.Parallel()
	const delivered, held, all = 100, 150, 250
	server := redistest.Start(t, redistest.Options{AOF: true})
	h := newInstallation(t, server.URL(), "")
	h.database = pgtest.New(t)
	d := h.startChild(t)
	e := newEndpoint(t, nil)
	e.subscribe(t, d, "PAYMENT_PAID")
	command(t, "", "client", "create", "--data-dir", h.dir, "--storage", h.database,
		"--name", "kept", "--company", testCompany, "--scope", "events:write").want(t, exitOK, "client id", "Keep the secret")
	var s emitter
	s.send(t, d, 0, delivered, http.StatusAccepted)
	e.awaits(t, delivered)
	gate := make(chan struct{})
	e.holdWith(func(_ string, gone <-chan struct{}) bool {
		select {
		case <-gate:
			return true
		case <-gone:
			return false
		}
	})
	s.send(t, d, delivered, held, http.StatusAccepted)

	backup := t.TempDir()
	tool(t, "pg_dump", "--format", "custom", "--file", filepath.Join(backup, "spend.dump"), "--dbname", h.database)
	tool(t, "redis-cli", "-s", server.Socket(), "--rdb", filepath.Join(backup, "dump.rdb"))
	key, err := os.ReadFile(filepath.Join(h.dir, encryptionKeyFile))
	if err != nil {
		t.Fatal(err)
	}
	s.send(t, d, held, all, http.StatusAccepted)
	d.signal(syscall.SIGKILL)
	d.ended(t)
	server.Kill()
	close(gate)

	next := newInstallation(t, restoreRedis(t, backup), "")
	next.database = pgtest.New(t)
	tool(t, "pg_restore", "--dbname", next.database, "--no-owner", filepath.Join(backup, "spend.dump"))
	if err := os.WriteFile(filepath.Join(next.dir, encryptionKeyFile), key, 0o600); err != nil {
		t.Fatal(err)
	}
	d = next.startChild(t)
	next.manage(t, d, "list").want(t, exitOK, "kept", "")
	e.awaits(t, held)
	s.send(t, d, 0, held, http.StatusOK)
	s.send(t, d, held, all, http.StatusAccepted)
	e.awaits(t, all)
	eventually(t, patience, "every delivery is recorded", func() bool {
		return len(d.deliveries(t, "DELIVERED")) == all
	})
	d.stop(t)
}

// restoreRedis reads dump.rdb in dir with the append-only file off, has Redis write one,
// and returns the address of a Redis that starts with that.
func restoreRedis(t *testing.T, dir string) string {
	t.Helper()
	reading := redistest.Start(t, redistest.Options{Args: []string{"--dir", dir}})
	if err := reading.Client().ConfigSet(t.Context(), "appendonly", "yes").Err(); err != nil {
		t.Fatal(err)
	}
	eventually(t, patience, "the append-only file is written", func() bool {
		info := reading.Client().InfoMap(t.Context(), "persistence")
		return info.Item("Persistence", "aof_rewrite_in_progress") == "0" && info.Item("Persistence", "aof_rewrite_scheduled") == "0" &&
			info.Item("Persistence", "aof_last_bgrewrite_status") == "ok"
	})
	reading.Stop()
	return redistest.Start(t, redistest.Options{AOF: true, Args: []string{"--dir", dir}}).URL()
}
