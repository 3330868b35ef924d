package redistest

import (
	"context"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"spendhook/internal/pause"
)

const slots = 16384

// Cluster starts a private Redis Cluster of n masters (no replicas) that ends
// with the test, and returns once every slot is served. A client for it is
// redis.NewClusterClient with the servers' Addr. args are further redis-server
// arguments.
func Cluster(tb testing.TB, n int, args ...string) []*Server {
	tb.Helper()
	servers := make([]*Server, n)
	for i := range servers {
		servers[i] = startNode(tb, args...)
	}
	ctx, cancel := context.WithTimeout(tb.Context(), 3*time.Minute)
	defer cancel()
	for i, s := range servers {
		shareOut(ctx, tb, s, i*slots/n, (i+1)*slots/n-1)
		introduce(ctx, tb, s, servers[0])
	}
	for _, s := range servers {
		waitForSlots(ctx, tb, s.Client(), n)
	}
	return servers
}

func startNode(tb testing.TB, args ...string) *Server {
	tb.Helper()
	return Start(tb, Options{TCP: true, Args: append([]string{
		"--cluster-enabled", "yes", "--databases", "1",
		"--cluster-port", strconv.Itoa(freePort(tb)),
	}, args...)})
}

// Replica adds a replica of a master to its Cluster and returns once it has the master's data.
// "CLUSTER FAILOVER TAKEOVER" makes it the master.
func Replica(tb testing.TB, master *Server) *Server {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), 3*time.Minute)
	defer cancel()
	s := startNode(tb)
	introduce(ctx, tb, s, master)
	id, err := master.Client().ClusterMyID(ctx).Result()
	if err != nil {
		tb.Fatalf("redistest: id of the master: %v", err)
	}
	known := func() bool { return s.Client().ClusterReplicate(ctx, id).Err() == nil }
	linked := func() bool {
		return strings.Contains(s.Client().Info(ctx, "replication").Val(), "master_link_status:up")
	}
	for _, reached := range []func() bool{known, linked} {
		for !reached() {
			if !pause.For(ctx, 20*time.Millisecond) {
				tb.Fatalf("redistest: the replica is not ready: %v", s.Client().ClusterNodes(tb.Context()))
			}
		}
	}
	return s
}

// SlotOf returns the slot of a key in any Cluster.
func SlotOf(tb testing.TB, s *Server, key string) int {
	tb.Helper()
	slot, err := s.Client().ClusterKeySlot(tb.Context(), key).Result()
	if err != nil {
		tb.Fatalf("redistest: slot of %s: %v", key, err)
	}
	return int(slot)
}

// HoldSlotMap returns a function. Once that is called, each request of the client for the slot map
// of its Cluster hangs, as if a master hung. The client must not have connected yet.
func HoldSlotMap(tb testing.TB, client redis.UniversalClient) (hold func()) {
	tb.Helper()
	var held atomic.Bool
	client.(*redis.ClusterClient).OnNewNode(func(node *redis.Client) {
		node.AddHook(Hook{Command: func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
			if !held.Load() || cmd.FullName() != "cluster slots" {
				return next(ctx, cmd)
			}
			select {
			case <-ctx.Done():
			case <-tb.Context().Done(): // the client asks in the background too
			}
			return context.DeadlineExceeded
		}})
	})
	return func() { held.Store(true) }
}

func shareOut(ctx context.Context, tb testing.TB, s *Server, from, to int) {
	tb.Helper()
	if err := s.Client().Do(ctx, "CLUSTER", "ADDSLOTSRANGE", from, to).Err(); err != nil {
		tb.Fatalf("redistest: share out slots: %v", err)
	}
}

func introduce(ctx context.Context, tb testing.TB, s, to *Server) {
	tb.Helper()
	host, port, _ := net.SplitHostPort(to.Addr())
	busPort, err := to.Client().ConfigGet(ctx, "cluster-port").Result()
	if err == nil {
		err = s.Client().Do(ctx, "CLUSTER", "MEET", host, port, busPort["cluster-port"]).Err()
	}
	if err != nil {
		tb.Fatalf("redistest: introduce the masters: %v", err)
	}
}

func waitForSlots(ctx context.Context, tb testing.TB, c redis.UniversalClient, masters int) {
	tb.Helper()
	for !allServed(ctx, c, masters) {
		if !pause.For(ctx, 20*time.Millisecond) {
			tb.Fatalf("redistest: the cluster is not ready: %v", c.ClusterInfo(ctx))
		}
	}
}

// allServed is this node's own view: it knows every master and every slot.
func allServed(ctx context.Context, c redis.UniversalClient, masters int) bool {
	info := c.ClusterInfo(ctx).Val()
	return strings.Contains(info, "cluster_state:ok\r") &&
		strings.Contains(info, "cluster_slots_ok:"+strconv.Itoa(slots)+"\r") &&
		strings.Contains(info, "cluster_size:"+strconv.Itoa(masters)+"\r")
}
