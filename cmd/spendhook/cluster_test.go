package main

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"spendhook/internal/partition"
	"spendhook/internal/redistest"
)

// clusterURL is the address of a Cluster of three masters.
func clusterURL(servers []*redistest.Server) string {
	address := url.URL{Scheme: "redis+cluster", Host: servers[0].Addr(), RawQuery: url.Values{
		"addr": {servers[1].Addr(), servers[2].Addr()},
	}.Encode()}
	return address.String()
}

// shardOf is the index of the server that has a key.
func shardOf(tb testing.TB, servers []*redistest.Server, key string) int {
	tb.Helper()
	return redistest.SlotOf(tb, servers[0], key) * len(servers) / 16384
}

// companyPerShard returns a company of each shard.
func companyPerShard(tb testing.TB, servers []*redistest.Server) []uuid.UUID {
	tb.Helper()
	companies := make([]uuid.UUID, len(servers))
	for slices.Contains(companies, uuid.Nil) {
		company := uuid.New()
		companies[shardOf(tb, servers, partition.Prefix(partition.Of(company)))] = company
	}
	return companies
}

// A replica starts while a shard of a Cluster hangs, also that of the wake-ups, or is not there,
// unless it is the shard of the encryption keys. It serves the companies of the other shards, and
// those of the shard when it is back.
func TestDaemonStartsWhileAShardIsDown(t *testing.T) {
	t.Parallel()
	servers := redistest.Cluster(t, 3, "--appendonly", "yes", "--appendfsync", "no", "--cluster-require-full-coverage", "no")
	h := newInstallation(t, clusterURL(servers), briefRetries)
	companies, endpoints := companyPerShard(t, servers), make([]*endpoint, len(servers))
	d := h.start(t)
	for i, company := range companies {
		endpoints[i] = newEndpoint(t, nil)
		endpoints[i].subscribe(t, d.as(t, h, company), "PAYMENT_PAID")
	}
	d.stop(t)
	keys, queue := shardOf(t, servers, "sh:keys"), shardOf(t, servers, "asynq:{spendhook}")
	if keys == queue {
		t.Fatal("the keys and the wake-ups are on one shard")
	}
	for _, fault := range []struct {
		id            string
		shard         int
		begin, repair func(*redistest.Server)
	}{
		{"hangs", queue, (*redistest.Server).Pause, (*redistest.Server).Resume},
		{"killed", 3 - keys - queue, (*redistest.Server).Kill, (*redistest.Server).Restart},
	} {
		fault.begin(servers[fault.shard])
		d := h.start(t)
		accepts := func(shard int, id string) bool {
			status, _, _ := d.as(t, h, companies[shard]).do(t, http.MethodPost, "/api/v1/events", eventBody(id))
			return status == http.StatusAccepted || status == http.StatusOK
		}
		ready := func(want string) func() bool {
			return func() bool {
				status, body := get(t, d.admin+"/readyz")
				return status == http.StatusOK && strings.Contains(body, servers[fault.shard].Addr()+": Redis does not answer") == (want == "with a warning")
			}
		}
		for shard := range servers {
			id := fmt.Sprintf("%s_%d", fault.id, shard)
			if shard == fault.shard {
				if accepts(shard, id) {
					t.Error("an event was accepted in the shard that is unavailable")
				}
				continue
			}
			eventually(t, patience, "an event of another shard is accepted", func() bool { return accepts(shard, id) })
			eventually(t, patience, "it is delivered", func() bool { return endpoints[shard].has(id) })
		}
		eventually(t, patience, "the daemon is ready, with a warning", ready("with a warning"))
		fault.repair(servers[fault.shard])
		id := fault.id + "_repaired"
		eventually(t, patience, "an event of the shard is accepted", func() bool { return accepts(fault.shard, id) })
		eventually(t, patience, "it is delivered", func() bool { return endpoints[fault.shard].has(id) })
		eventually(t, patience, "the daemon is ready", ready("without"))
		d.stop(t)
	}
}

// While the shard of the encryption keys is unavailable, a replica does not start: its key may be wrong.
func TestDaemonWaitsForTheShardOfTheKeys(t *testing.T) {
	t.Parallel()
	servers := redistest.Cluster(t, 3, "--cluster-require-full-coverage", "no")
	newInstallation(t, clusterURL(servers), "").start(t).stop(t)
	keys := servers[shardOf(t, servers, "sh:keys")]
	keys.Pause()
	defer keys.Resume()
	d := newInstallation(t, clusterURL(servers), sharedKey).begin(t) // another key
	eventually(t, patience, "the log says what is awaited", func() bool {
		return strings.Contains(d.stderr.String(), `"msg":"Redis has a problem","problem":"`+keys.Addr()) &&
			strings.Contains(d.stderr.String(), `"msg":"waiting for Redis","exception.message":"write sh:probe:{sh:keys}: `)
	})
	if listeningLine.MatchString(d.stderr.String()) {
		t.Error("the daemon has started")
	}
	keys.Resume()
	d.ended(t)
	if d.code == exitOK || !strings.Contains(d.stderr.String(), "the encryption keys cannot decrypt the secrets in Redis") {
		t.Errorf("ended with %d:\n%s", d.code, d.stderr)
	}
}
