//go:build faults

package main

import (
	"net/url"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// acknowledgedEarly bounds the age of events that a failover may lose. Replication is
// asynchronous: Redis answers before its replicas have the write.
const acknowledgedEarly = 2 * time.Second

// Sentinels replace a killed master, and then a hanging master that resumes later. The daemon
// follows without a restart. Only events that were accepted shortly before the failover may
// be lost. All others are delivered, some of them twice.
func TestSentinelFailover(t *testing.T) {
	t.Parallel()
	s := startSentinels(t, "--min-replicas-to-write", "1", "--min-replicas-max-lag", "2")
	address := url.URL{Scheme: "redis+sentinel", Host: s.addrs[0], RawQuery: url.Values{
		"addr": s.addrs[1:], "master_name": {masterName},
	}.Encode()}
	client := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: masterName, SentinelAddrs: s.addrs})
	t.Cleanup(func() { _ = client.Close() })
	tr := newTrial(t, client, newInstallation(t, address.String(), briefRetries))

	first := s.master(t.Context())
	killed := time.Now()
	first.Kill()
	tr.followed(s, first)
	first.Restart()
	s.settle()

	second := s.master(t.Context())
	hung := time.Now()
	second.Pause()
	tr.followed(s, second)
	second.Resume()
	tr.grow(300)

	tr.load.stop()
	accepted := tr.load.ids()
	l := tr.accountLosing()
	for _, id := range l.lost {
		at := accepted[id]
		if at.Sub(killed).Abs() > acknowledgedEarly && at.Sub(hung).Abs() > acknowledgedEarly {
			t.Errorf("%s is lost, accepted %v after the kill and %v after the hang", id, at.Sub(killed), at.Sub(hung))
		}
	}
	tr.end()
}

// followed waits until another server is the master and events are accepted.
func (tr *trial) followed(s *sentinels, old *watched) {
	tr.t.Helper()
	began := time.Now()
	eventually(tr.t, deliveryPatience, "another server is the master", func() bool {
		now := s.master(tr.t.Context())
		return now != nil && now != old
	})
	tr.t.Logf("another master after %v", time.Since(began).Round(time.Millisecond))
	tr.grow(300)
	tr.t.Logf("300 events accepted after %v", time.Since(began).Round(time.Millisecond))
}
