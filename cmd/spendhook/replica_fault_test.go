//go:build faults

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"spendhook/internal/partition"
	"spendhook/internal/pause"
	"spendhook/internal/redistest"
)

// stoppedFor is the minimum time for which a replica is stopped: twice the heartbeat
// time-out.
const stoppedFor = 6 * time.Second

// replicas lists the ids that have a heartbeat.
func (tr *trial) replicas() []string {
	tr.t.Helper()
	all, err := tr.client.ZRange(tr.t.Context(), partition.Prefix(0)+"replicas", 0, -1).Result()
	if err != nil {
		tr.t.Fatal(err)
	}
	return all
}

// replicaOf returns the id of an installation's daemon, "" when it has none or two.
func (tr *trial) replicaOf(h installation) string {
	tr.t.Helper()
	process, err := os.ReadFile(filepath.Join(h.dir, "replica-id"))
	if err != nil {
		tr.t.Fatal(err)
	}
	found := slices.DeleteFunc(tr.replicas(), func(id string) bool {
		return !strings.HasPrefix(id, strings.TrimSpace(string(process))+".")
	})
	if len(found) != 1 {
		return ""
	}
	return found[0]
}

// ended sums the deliveries with a final status in the metrics of all daemons.
func (tr *trial) ended(status string) (sum int) {
	tr.t.Helper()
	for _, d := range tr.daemons {
		sum += int(metric(tr.t, d, fmt.Sprintf("spendhook_deliveries_total{status=%q}", status)))
	}
	return sum
}

// One of two replicas is stopped under load for longer than the heartbeat time-out. Its
// attempts in flight are answered meanwhile. The other replica takes over its work. When the
// stopped replica resumes, it is fenced, takes a new id and works on. No event is lost, and no
// delivery is settled twice.
func TestReplicaIsStopped(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{AOF: true})
	url := server.URL()
	live, stopped := newInstallation(t, url, briefRetries+sharedKey), newInstallation(t, url, briefRetries+sharedKey)
	tr := newTrial(t, server.Client(), live, stopped)
	d := tr.daemons[1]
	old := tr.replicaOf(stopped)
	notes := partition.Key(developerCompany, "n:"+old)

	gate, held := make(chan struct{}), atomic.Int64{}
	tr.endpoints[0].holdWith(func(_ string, gone <-chan struct{}) bool {
		held.Add(1)
		select {
		case <-gate:
			return true
		case <-gone:
			return false
		}
	})
	eventually(t, patience, "both replicas have attempts in flight", func() bool {
		return held.Load() > 20 && metric(t, tr.daemons[0], "spendhook_attempts_in_flight") > 5 &&
			metric(t, d, "spendhook_attempts_in_flight") > 5 && tr.client.HLen(t.Context(), notes).Val() > 5
	})
	d.signal(syscall.SIGSTOP)
	began := time.Now()
	left := tr.client.HLen(t.Context(), notes).Val()
	close(gate) // its attempts are answered while the replica is stopped
	tr.endpoints[0].holdWith(nil)
	eventually(t, patience, "the work of the stopped replica is taken over", func() bool {
		return metric(t, tr.daemons[0], "spendhook_takeovers_total") > 0 && tr.client.Exists(t.Context(), notes).Val() == 0
	})
	t.Logf("%d notes were taken over %s after the stop", left, time.Since(began).Round(100*time.Millisecond))
	tr.grow(200)
	if rest := stoppedFor - time.Since(began); rest > 0 {
		pause.For(t.Context(), rest)
	}
	d.signal(syscall.SIGCONT)

	eventually(t, patience, "the replica is fenced", func() bool { return metric(t, d, "spendhook_fenced_total") == 1 })
	eventually(t, patience, "it has a new id, and the old one is gone", func() bool {
		id := tr.replicaOf(stopped)
		return id != "" && id != old && len(tr.replicas()) == 2
	})
	const successes = `spendhook_delivery_attempts_total{outcome="success"}`
	before := metric(t, d, successes)
	eventually(t, patience, "it goes on delivering", func() bool { return metric(t, d, successes) > before+100 })
	tr.grow(200)

	tr.load.stop()
	l := tr.account()
	if l.repeats == 0 {
		t.Error("nothing was sent twice: no attempt was in flight, and this proves nothing")
	}
	if n := tr.pending(); n != 0 {
		t.Errorf("%d events are pending after all were settled", n)
	}
	eventually(t, patience, "the ends are counted", func() bool {
		return tr.ended("DELIVERED") >= l.delivered && tr.ended("DEAD") >= l.dead
	})
	if delivered, dead := tr.ended("DELIVERED"), tr.ended("DEAD"); delivered != l.delivered || dead != l.dead {
		t.Errorf("%d deliveries ended as delivered and %d as dead, there are %d and %d", delivered, dead, l.delivered, l.dead)
	}
	if n := metric(t, d, "spendhook_fenced_total"); n != 1 {
		t.Errorf("the replica was fenced %v times", n)
	}
	tr.end()
}
