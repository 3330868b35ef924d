package owner

import (
	"strconv"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// heartbeats is a heartbeat reply: Redis's clock, and the last heartbeat of each replica.
func heartbeats(now int64, last map[string]int64) []any {
	out := []any{now, "server"}
	for replica, at := range last {
		out = append(out, replica, strconv.FormatInt(at, 10), "")
	}
	return out
}

// replay feeds n heartbeat replies to a shard. With others, each reply has a new heartbeat of
// the other replica.
func replay(t *testing.T, o *Owner, s *shard, from, n int, others bool, last int64) int64 {
	t.Helper()
	for i := range n {
		now := int64(from+i) * 500
		if others {
			last = now
		}
		o.count(s, heartbeats(now, map[string]int64{o.run: now, "other.1": last}), time.UnixMilli(now))
	}
	return last
}

// A replica is lost after missed heartbeats, not after a time. After a failure of Redis more
// may be missed, until the other replica's heartbeats were seen often enough.
func TestReplicaIsLostAfterMissedHeartbeats(t *testing.T) {
	t.Parallel()
	o := New(Options{Replica: "self", Registerer: prometheus.NewRegistry()})
	s := &shard{seen: make(map[string]*other)}
	last := replay(t, o, s, 0, 10, true, 0)
	last = replay(t, o, s, 10, lostHeartbeats-1, false, last)
	if s.seen["other.1"].missed >= lostHeartbeats {
		t.Error("lost after too few heartbeats")
	}
	last = replay(t, o, s, 20, 1, true, last) // merely late
	last = replay(t, o, s, 21, lostHeartbeats-1, false, last)
	if s.seen["other.1"].missed >= lostHeartbeats {
		t.Error("lost too soon after a late heartbeat")
	}
	s.waitLonger() // a heartbeat of this replica failed
	last = replay(t, o, s, 30, lostHeartbeats+extraHeartbeats-1, false, last)
	if s.seen["other.1"].missed >= lostHeartbeats {
		t.Error("lost too soon after a failed heartbeat")
	}
	s.waitLonger()
	last = replay(t, o, s, 50, extraHeartbeats, true, last)
	replay(t, o, s, 70, lostHeartbeats, false, last)
	if s.seen["other.1"].missed < lostHeartbeats {
		t.Error("not lost although Redis has long recovered")
	}
}

// While many heartbeats of this replica fail or are slow, as on a machine that is always busy, a replica that is
// gone is still lost after a bounded number of heartbeats, and then stays lost.
func TestSlowHeartbeatsDelayALossOnce(t *testing.T) {
	t.Parallel()
	o := New(Options{Replica: "self", Registerer: prometheus.NewRegistry()})
	s := &shard{seen: make(map[string]*other)}
	last := replay(t, o, s, 0, 10, true, 0)
	lostAfter := func(from int) (n int) {
		for n < 100 && s.seen["other.1"].missed < lostHeartbeats {
			s.waitLonger()
			n++
			replay(t, o, s, from+n, 1, false, last)
		}
		return n
	}
	if n := lostAfter(10); n != lostHeartbeats+extraHeartbeats {
		t.Errorf("lost after %d slow heartbeats, want %d", n, lostHeartbeats+extraHeartbeats)
	}
	s.waitLonger()
	if s.isAlive("other.1", o.run) || s.isServing("other.1") {
		t.Error("a slow heartbeat of this replica made the lost one alive")
	}
	last = replay(t, o, s, 200, 1, true, last) // it was only late
	if n := lostAfter(201); n != lostHeartbeats+extraHeartbeats {
		t.Errorf("lost after %d slow heartbeats the second time, want %d", n, lostHeartbeats+extraHeartbeats)
	}
}

// A former run of this process is gone, however slow the heartbeats of the present run are.
func TestAFormerRunStaysLost(t *testing.T) {
	t.Parallel()
	o := New(Options{Replica: "self", Registerer: prometheus.NewRegistry()})
	s := &shard{seen: make(map[string]*other)}
	o.count(s, heartbeats(0, map[string]int64{o.run: 0, "self.former": 0}), time.UnixMilli(0))
	s.waitLonger()
	if s.isAlive("self.former", o.run) {
		t.Error("a slow heartbeat made the former run alive")
	}
}

// The same replicas choose the same owner, and each owns about its part.
func TestOwnersAgree(t *testing.T) {
	t.Parallel()
	owned := make(map[string]int)
	for p := range 256 {
		a := choose([]string{"a.1", "b.2", "c.3", "d.4"}, p)
		if b := choose([]string{"d.4", "c.3", "b.2", "a.1"}, p); a != b {
			t.Fatalf("partition %d: %s or %s", p, a, b)
		}
		owned[a]++
		if without := choose([]string{"a.1", "b.2", "c.3"}, p); a != "d.4" && without != a {
			t.Errorf("partition %d went from %s to %s, both of which are there", p, a, without)
		}
	}
	for replica, n := range owned {
		if n < 32 || n > 128 {
			t.Errorf("%s owns %d of 256", replica, n)
		}
	}
}
