//go:build faults

package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"spendhook/internal/partition"
	"spendhook/internal/pause"
	"spendhook/internal/redistest"
)

// A Cluster of three masters moves slots while two daemons work: the slot of the company, with
// all keys of its events, subscribers and deliveries, and the slot of the queues. Each slot
// moves to another master, back, and away again.
func TestClusterMovesSlots(t *testing.T) {
	t.Parallel()
	servers := redistest.Cluster(t, 3)
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{servers[0].Addr()}})
	t.Cleanup(func() { _ = client.Close() })
	tr := newTrial(t, client, newInstallation(t, clusterURL(servers), briefRetries+sharedKey), newInstallation(t, clusterURL(servers), briefRetries+sharedKey))

	company := redistest.SlotOf(t, servers[0], partition.Prefix(partition.Of(developerCompany)))
	queue := redistest.SlotOf(t, servers[0], "asynq:{spendhook}")
	keys := 0
	for _, to := range []int{0, 1, 2, 0} {
		moved := 0
		for _, slot := range []int{company, queue} {
			moved += moveSlots(t, servers, to, max(0, slot-20), min(16383, slot+20))
		}
		t.Logf("%d keys moved to master %d", moved, to)
		keys += moved
		tr.grow(100)
	}
	if keys < 1000 {
		t.Errorf("only %d keys were moved", keys)
	}
	tr.finish()
}

// bigEvents of 60,000 bytes are some 100 MB.
const bigEvents = 1700

// A slot of 50 MB is moved repeatedly while its company sends another 50 MB, and then once
// more. No accepted event is lost, and each id is a duplicate afterwards.
func TestClusterMovesMuch(t *testing.T) {
	t.Parallel()
	servers := redistest.Cluster(t, 3)
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{servers[0].Addr()}})
	t.Cleanup(func() { _ = client.Close() })
	tr := newTrial(t, client, newInstallation(t, clusterURL(servers), briefRetries+sharedKey), newInstallation(t, clusterURL(servers), briefRetries+sharedKey))
	slot := redistest.SlotOf(t, servers[0], partition.Prefix(partition.Of(developerCompany)))
	move := func(to int) {
		t.Helper()
		began := time.Now()
		keys := moveSlots(t, servers, to, slot, slot)
		t.Logf("%d keys moved to master %d in %s", keys, to, time.Since(began).Round(100*time.Millisecond))
	}
	to := slot * 3 / 16384

	<-tr.sendBig(0, bigEvents/2)
	rest := tr.sendBig(bigEvents/2, bigEvents)
	for sending := true; sending; {
		select {
		case <-rest:
			sending = false
		default:
		}
		to = (to + 1) % 3
		move(to) // for the last time when all are there
		pause.For(t.Context(), time.Second)
	}
	tr.grow(100)
	tr.load.pause()
	l := tr.account()
	for n := range bigEvents {
		id := fmt.Sprint("big-", n)
		if status, answer, err := tr.load.post(n, id, bigEvent(id)); err != nil || status != http.StatusOK {
			t.Errorf("%s again: %d %s %v", id, status, answer, err)
		}
	}
	if again := tr.account(); again.repeats != l.repeats || again.delivered != l.delivered {
		t.Errorf("after the duplicates the account is %+v, it was %+v", again, l)
	}
	tr.finish()
}

// sendBig sends big events, and closes the channel when all are accepted.
func (tr *trial) sendBig(from, to int) <-chan struct{} {
	const clients = 4
	var sources sync.WaitGroup
	for c := range clients {
		sources.Go(func() {
			for n := from + c; n < to; n += clients {
				id := fmt.Sprint("big-", n)
				tr.load.sendFrom(c, id, bigEvent(id))
			}
		})
	}
	done := make(chan struct{})
	go func() {
		sources.Wait()
		close(done)
	}()
	return done
}

// shardSource sends events of one company, each until it is accepted, and counts the answers.
type shardSource struct {
	daemon   *running
	endpoint *endpoint
	client   *http.Client

	mu       sync.Mutex
	accepted map[string]bool // including duplicates whose first answer was lost
	refused  int             // answers 503
	last     string          // of them
	slowest  time.Duration
}

// run sends until done is closed and the last event is answered.
func (s *shardSource) run(tb testing.TB, done <-chan struct{}) {
	tb.Helper()
	for n := 0; ; n++ {
		id, taken := fmt.Sprint("evt_", n), false
		body := eventBody(id)
		for answered := false; !answered; {
			answered = s.post(tb, id, body, &taken)
			select {
			case <-done:
				if answered {
					return
				}
			case <-time.After(emitPause):
			}
		}
	}
}

// post reports whether the event is accepted. taken says whether that was answered
// 202 before.
func (s *shardSource) post(tb testing.TB, id, body string, taken *bool) bool {
	tb.Helper()
	req, err := http.NewRequestWithContext(context.Background(), http.MethodPost, s.daemon.api+"/api/v1/events", strings.NewReader(body))
	if err != nil {
		tb.Error(err)
		return false
	}
	req.Header.Set("Authorization", "Bearer "+s.daemon.token)
	req.Header.Set("Content-Type", "application/json")
	began := time.Now()
	resp, err := s.client.Do(req)
	if err != nil {
		tb.Error(err)
		return false
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(resp.Body)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.slowest = max(s.slowest, time.Since(began))
	switch resp.StatusCode {
	case http.StatusAccepted:
		if *taken {
			tb.Errorf("%s was accepted twice", id)
		}
		*taken = true
	case http.StatusOK:
	case http.StatusServiceUnavailable:
		s.refused++
		s.last = string(text)
		return false
	default:
		tb.Errorf("%s: %d %s", id, resp.StatusCode, text)
	}
	s.accepted[id] = true
	return true
}

// counts returns how many events were accepted, and how many answers were 503.
func (s *shardSource) counts() (accepted, refused int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.accepted), s.refused
}

// missing counts the accepted events that the endpoint has not received.
func (s *shardSource) missing() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id := range s.accepted {
		if !s.endpoint.has(id) {
			n++
		}
	}
	return n
}

// awayFor is the minimum time of a shard's outage: longer than the time-out of any call.
const awayFor = 6 * time.Second

// One of three shards hangs, or is killed and restarted, also the shard with the queue of
// wake-ups. Companies of the other shards are answered and their events delivered meanwhile.
// Companies of this shard are answered 503 and lose no accepted event.
func TestClusterShardOutage(t *testing.T) {
	t.Parallel()
	servers := redistest.Cluster(t, 3, "--appendonly", "yes", "--appendfsync", "no", "--cluster-require-full-coverage", "no")
	h := newInstallation(t, clusterURL(servers), briefRetries)
	d := h.startChild(t)
	sources := make([]*shardSource, len(servers))
	for shard, company := range companyPerShard(t, servers) {
		s := &shardSource{daemon: d.as(t, h, company), endpoint: newEndpoint(t, nil), client: &http.Client{Timeout: patience}, accepted: map[string]bool{}}
		s.endpoint.subscribe(t, s.daemon, "PAYMENT_PAID")
		sources[shard] = s
	}
	done := make(chan struct{})
	var running sync.WaitGroup
	for _, s := range sources {
		running.Go(func() { s.run(t, done) })
	}
	t.Cleanup(running.Wait)
	stop := sync.OnceFunc(func() { close(done) })
	t.Cleanup(stop)
	flows := func(what string, some ...*shardSource) {
		t.Helper()
		for _, s := range some {
			from, _ := s.counts()
			taken, _, _ := s.endpoint.counts(t)
			eventually(t, patience, what, func() bool {
				now, _ := s.counts()
				delivered, _, _ := s.endpoint.counts(t)
				return now >= from+50 && delivered >= taken+50
			})
		}
	}
	flows("events of all flow", sources...)
	queue := shardOf(t, servers, "asynq:{spendhook}")
	for i, fault := range []struct {
		name          string
		shard         int
		begin, repair func(*redistest.Server)
	}{
		{"the shard of the wake-ups hangs", queue, (*redistest.Server).Pause, (*redistest.Server).Resume},
		{"the shard of the wake-ups is killed", queue, (*redistest.Server).Kill, (*redistest.Server).Restart},
		{"another shard hangs", (queue + 1) % 3, (*redistest.Server).Pause, (*redistest.Server).Resume},
		{"another shard is killed", (queue + 2) % 3, (*redistest.Server).Kill, (*redistest.Server).Restart},
	} {
		own, others := sources[fault.shard], slices.Delete(slices.Clone(sources), fault.shard, fault.shard+1)
		before := [2]int{}
		for k, s := range others {
			_, before[k] = s.counts()
		}
		_, ownBefore := own.counts()
		began := time.Now()
		fault.begin(servers[fault.shard])
		flows(fault.name+": events of the others flow", others...)
		eventually(t, patience, fault.name+": its own companies are refused", func() bool {
			_, refused := own.counts()
			return refused > ownBefore
		})
		for time.Since(began) < awayFor {
			flows(fault.name+": events of the others flow on", others...)
		}
		for k, s := range others {
			if _, refused := s.counts(); refused > before[k] {
				t.Errorf("%s: companies of other shards were answered 503 %d times: %s", fault.name, refused-before[k], s.last)
			}
		}
		fault.repair(servers[fault.shard])
		flows(fault.name+": events of all flow again", sources...)
		t.Logf("fault %d, %s: down for %s", i+1, fault.name, time.Since(began).Round(100*time.Millisecond))
	}
	stop()
	running.Wait()
	for i, s := range sources {
		eventually(t, deliveryPatience, "every accepted event is delivered", func() bool { return s.missing() == 0 })
		accepted, refused := s.counts()
		delivered, repeated, _ := s.endpoint.counts(t)
		t.Logf("shard %d: %d accepted, %d delivered, %d of them more than once, %d answers 503, slowest answer %s", i, accepted, delivered, repeated, refused, s.slowest)
		if delivered != accepted {
			t.Errorf("shard %d: %d events were delivered, %d accepted", i, delivered, accepted)
		}
	}
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{servers[0].Addr()}})
	t.Cleanup(func() { _ = client.Close() })
	tr := &trial{t: t, client: client}
	eventually(t, deliveryPatience, "every event is settled", func() bool { return tr.pending() == 0 })
	d.stop(t)
}
