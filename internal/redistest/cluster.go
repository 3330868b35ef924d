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
	"spendhook/internal/porttest"
)

const slots = 16384

// Cluster starts a private Redis Cluster of n masters without replicas, which ends with the test. It
// returns when every slot is served. args are further arguments of redis-server. A client is
// redis.NewClusterClient with the servers' Addr.
func Cluster(tb testing.TB, n int, args ...string) []*Server {
	tb.Helper()
	servers := make([]*Server, n)
	for i := range servers {
		servers[i] = startNode(tb, args...)
	}
	ctx, cancel := context.WithTimeout(tb.Context(), 3*time.Minute)
	defer cancel()
	for i, s := range servers {
		assignSlots(ctx, tb, s, i*slots/n, (i+1)*slots/n-1)
		meet(ctx, tb, s, servers[0])
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
		"--cluster-port", strconv.Itoa(porttest.Free(tb)),
	}, args...)})
}

// Replica adds a replica of a master to a Cluster with these other masters. It returns once the replica has the master's
// data, and it and all masters know each other. "CLUSTER FAILOVER TAKEOVER" makes it the master.
func Replica(tb testing.TB, master *Server, others ...*Server) *Server {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), 3*time.Minute)
	defer cancel()
	s := startNode(tb)
	meet(ctx, tb, s, master)
	id, err := master.Client().ClusterMyID(ctx).Result()
	if err != nil {
		tb.Fatalf("redistest: id of the master: %v", err)
	}
	known := func() bool { return s.Client().ClusterReplicate(ctx, id).Err() == nil }
	linked := func() bool {
		return strings.Contains(s.Client().Info(ctx, "replication").Val(), "master_link_status:up")
	}
	met := func() bool { // else it would be a master that another one does not know, and the Cluster would be down
		id := s.Client().ClusterMyID(ctx).Val()
		for _, m := range append(others, master) {
			if !hasReplica(ctx, m, id) {
				return false
			}
		}
		return allServed(ctx, s.Client(), 1+len(others))
	}
	for _, reached := range []func() bool{known, linked, met} {
		for !reached() {
			if !pause.For(ctx, 20*time.Millisecond) {
				tb.Fatalf("redistest: the replica is not ready: %v", s.Client().ClusterNodes(tb.Context()))
			}
		}
	}
	return s
}

// hasReplica reports whether a node knows another one as a replica.
func hasReplica(ctx context.Context, s *Server, id string) bool {
	for line := range strings.Lines(s.Client().ClusterNodes(ctx).Val()) {
		if strings.HasPrefix(line, id+" ") {
			return strings.Contains(line, "slave")
		}
	}
	return false
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

// HoldSlotMap returns a function. After a call of hold, each request of the client for the slot map
// of its Cluster hangs, as if a master hung. Call HoldSlotMap before the client connects.
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
			case <-tb.Context().Done(): // some requests are in the background, without ctx
			}
			return context.DeadlineExceeded
		}})
	})
	return func() { held.Store(true) }
}

func assignSlots(ctx context.Context, tb testing.TB, s *Server, from, to int) {
	tb.Helper()
	if err := s.Client().Do(ctx, "CLUSTER", "ADDSLOTSRANGE", from, to).Err(); err != nil {
		tb.Fatalf("redistest: assign slots: %v", err)
	}
}

func meet(ctx context.Context, tb testing.TB, s, to *Server) {
	tb.Helper()
	host, port, _ := net.SplitHostPort(to.Addr())
	busPort, err := to.Client().ConfigGet(ctx, "cluster-port").Result()
	if err == nil {
		err = s.Client().Do(ctx, "CLUSTER", "MEET", host, port, busPort["cluster-port"]).Err()
	}
	if err != nil {
		tb.Fatalf("redistest: add %s to the cluster: %v", s.Addr(), err)
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

// allServed reports whether a node knows every master and every slot.
func allServed(ctx context.Context, c redis.UniversalClient, masters int) bool {
	info := c.ClusterInfo(ctx).Val()
	return strings.Contains(info, "cluster_state:ok\r") &&
		strings.Contains(info, "cluster_slots_ok:"+strconv.Itoa(slots)+"\r") &&
		strings.Contains(info, "cluster_size:"+strconv.Itoa(masters)+"\r")
}
