//go:build faults

package main

import (
	"net/url"
	"testing"

	"github.com/redis/go-redis/v9"

	"spendhook/internal/partition"
	"spendhook/internal/redistest"
)

// A Cluster of three masters moves slots about while two daemons work: those of
// the company, with every key of its events, subscribers and deliveries, and
// those of the queues; away, back again, and away.
func TestClusterMovesSlots(t *testing.T) {
	t.Parallel()
	servers := redistest.Cluster(t, 3)
	address := url.URL{Scheme: "redis+cluster", Host: servers[0].Addr(), RawQuery: url.Values{
		"addr": {servers[1].Addr(), servers[2].Addr()},
	}.Encode()}
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{servers[0].Addr()}})
	t.Cleanup(func() { _ = client.Close() })
	tr := newTrial(t, client, newInstallation(t, address.String(), briefRetries+sharedKey), newInstallation(t, address.String(), briefRetries+sharedKey))

	company := redistest.SlotOf(t, servers[0], partition.Prefix(partition.Of(developerCompany)))
	queue := redistest.SlotOf(t, servers[0], "asynq:{spendhook}")
	keys := 0
	for _, to := range []int{0, 1, 2, 0} {
		moved := 0
		for _, slot := range []int{company, queue} {
			moved += redistest.MoveSlots(t, servers, to, max(0, slot-20), min(16383, slot+20))
		}
		t.Logf("%d keys moved to master %d", moved, to)
		keys += moved
		tr.grow(100)
	}
	if keys < 1000 {
		t.Errorf("%d keys were moved: this proves little", keys)
	}
	tr.finish()
}
