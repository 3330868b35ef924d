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

// owner returns the number of the installation whose daemon owns the company's partition, and its token,
// once one of them does.
func (tr *trial) owner(installations ...installation) (n int, token string) {
	tr.t.Helper()
	eventually(tr.t, patience, "a daemon owns the partition", func() bool {
		token = tr.client.Get(tr.t.Context(), partition.Key(developerCompany, "owner")).Val()
		n = slices.IndexFunc(installations, func(h installation) bool {
			id := tr.replicaOf(h)
			return id != "" && strings.HasPrefix(token, id+" ")
		})
		return n >= 0
	})
	return n, token
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
// attempts in flight are answered meanwhile. The other replica takes over its partitions and its work. When
// the stopped replica resumes, it gets its partitions back and works on. No event is lost, and no
// delivery is settled twice.
func TestReplicaIsStopped(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{AOF: true})
	url := server.URL()
	installations := []installation{newInstallation(t, url, briefRetries+sharedKey), newInstallation(t, url, briefRetries+sharedKey)}
	tr := newTrial(t, server.Client(), installations...)
	owner, token := tr.owner(installations...)
	d, other := tr.daemons[owner], tr.daemons[1-owner]

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
	eventually(t, patience, "attempts are in flight", func() bool {
		return held.Load() > 20 && metric(t, d, "spendhook_attempts_in_flight") > 5
	})
	d.signal(syscall.SIGSTOP)
	began := time.Now()
	close(gate) // its attempts are answered while the replica is stopped
	tr.endpoints[0].holdWith(nil)
	eventually(t, patience, "the work of the stopped replica is taken over", func() bool {
		return metric(t, other, "spendhook_partitions_taken_over_total") > 0
	})
	t.Logf("the partition was taken over %s after the stop", time.Since(began).Round(100*time.Millisecond))
	tr.grow(200)
	if rest := stoppedFor - time.Since(began); rest > 0 {
		pause.For(t.Context(), rest)
	}
	d.signal(syscall.SIGCONT)

	eventually(t, patience, "the replica has lost its partitions", func() bool { return metric(t, d, "spendhook_partitions_lost_total") > 0 })
	lost := metric(t, d, "spendhook_partitions_lost_total")
	eventually(t, patience, "it gets the partition back", func() bool {
		again, other := tr.owner(installations...)
		return again == owner && other != token
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
	if n := metric(t, d, "spendhook_partitions_lost_total"); n != lost {
		t.Errorf("the replica lost %v partitions, after the stop %v", n, lost)
	}
	tr.end()
}
