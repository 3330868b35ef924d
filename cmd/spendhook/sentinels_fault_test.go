//go:build faults

package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"spendhook/internal/child"
	"spendhook/internal/porttest"
	"spendhook/internal/redistest"
)

// masterName is what the Sentinels call their master.
const masterName = "main"

// settling bounds how long Sentinels take to agree. Usually it takes seconds, but a failed
// election is repeated after twice the failover-timeout.
const settling = 3 * time.Minute

// sentinels watch over a master and its replicas, and replace a master that
// does not answer for three seconds. They end with the test.
type sentinels struct {
	t       *testing.T
	addrs   []string
	clients []*redis.SentinelClient
	servers []*watched // the first one is the master to begin with
}

// watched is a server and a client of it.
type watched struct {
	*redistest.Server
	client redis.UniversalClient
	port   string
}

// startSentinels starts a master with two replicas and three Sentinels, and returns
// once they have settled. Each server has an AOF, and the arguments given.
func startSentinels(t *testing.T, args ...string) *sentinels {
	t.Helper()
	s := &sentinels{t: t}
	for i := range 3 {
		o := redistest.Options{TCP: true, AOF: true, Args: args}
		if i > 0 {
			o.Args = append([]string{"--replicaof", "127.0.0.1 " + s.servers[0].port}, args...)
		}
		server := redistest.Start(t, o)
		_, port, _ := net.SplitHostPort(server.Addr())
		s.servers = append(s.servers, &watched{server, server.Client(), port})
	}
	for range 3 {
		s.add(startSentinel(t, s.servers[0].port))
	}
	s.settle()
	return s
}

// add adds the Sentinel at an address. It makes the Sentinel check its servers every second
// instead of every ten, and disables the tilt mode: a Sentinel that was delayed for two seconds
// would otherwise do nothing for thirty.
func (s *sentinels) add(addr string) {
	s.t.Helper()
	c := redis.NewSentinelClient(&redis.Options{Addr: addr})
	s.t.Cleanup(func() { _ = c.Close() })
	s.addrs, s.clients = append(s.addrs, addr), append(s.clients, c)
	eventually(s.t, settling, "a Sentinel answers", func() bool { return c.Ping(s.t.Context()).Err() == nil })
	brisk := redis.NewStatusCmd(s.t.Context(), "SENTINEL", "DEBUG", "info-period", 1000, "tilt-trigger", settling.Milliseconds())
	_ = c.Process(s.t.Context(), brisk) // Redis knows it since 7.0
}

// settle returns once a failover is possible: the Sentinels agree on the master, and each can
// reach the master, both replicas and the other Sentinels. The replicas are in sync with the
// master.
func (s *sentinels) settle() {
	s.t.Helper()
	var obstacle string
	defer func() {
		if obstacle != "" {
			s.t.Logf("the last obstacle: %s", obstacle)
		}
	}()
	eventually(s.t, settling, "the Sentinels have settled", func() bool {
		obstacle = s.obstacle(s.t.Context())
		return obstacle == ""
	})
}

// obstacle is the reason why a failover is not possible yet; "" when it is possible.
func (s *sentinels) obstacle(ctx context.Context) string {
	master := s.master(ctx)
	if master == nil {
		return "the first Sentinel knows no master"
	}
	if info := master.replication(ctx); info["role"] != "master" || info["connected_slaves"] != "2" {
		return fmt.Sprintf("the master %s: %v", master.Addr(), info)
	}
	for _, server := range s.servers {
		info := server.replication(ctx)
		if server != master && (info["role"] != "slave" || info["master_port"] != master.port || info["master_link_status"] != "up") {
			return fmt.Sprintf("the replica %s: %v", server.Addr(), info)
		}
	}
	for i, c := range s.clients {
		if found := sightOf(ctx, c); found != (sight{master.port, 2, 2}) {
			return fmt.Sprintf("the Sentinel %s sees %+v", s.addrs[i], found)
		}
	}
	return ""
}

// sight is the view of one Sentinel. It has only the servers that the Sentinel can reach.
type sight struct {
	master              string // its port, empty unless all is well with it
	replicas, sentinels int
}

func sightOf(ctx context.Context, c *redis.SentinelClient) (v sight) {
	if m := c.Master(ctx, masterName).Val(); m["flags"] == "master" {
		v.master = m["port"]
	}
	for _, r := range c.Replicas(ctx, masterName).Val() {
		if r["flags"] == "slave" && r["master-link-status"] == "ok" {
			v.replicas++
		}
	}
	for _, other := range c.Sentinels(ctx, masterName).Val() {
		if other["flags"] == "sentinel" {
			v.sentinels++
		}
	}
	return v
}

// replication is the server's own view; it has nothing of a server that is down.
func (w *watched) replication(ctx context.Context) map[string]string {
	return w.client.InfoMap(ctx, "replication").Val()["Replication"]
}

// master is the server that the Sentinels say is the master now, or nil.
func (s *sentinels) master(ctx context.Context) *watched {
	addr, err := s.clients[0].GetMasterAddrByName(ctx, masterName).Result()
	if err != nil || len(addr) != 2 {
		return nil
	}
	for _, server := range s.servers {
		if server.port == addr[1] {
			return server
		}
	}
	return nil
}

// sentinelConf is for a port, a folder and the port of a master.
const sentinelConf = `
bind 127.0.0.1
port %d
dir %s
logfile log
sentinel monitor ` + masterName + ` 127.0.0.1 %s 2
sentinel down-after-milliseconds ` + masterName + ` 3000
sentinel failover-timeout ` + masterName + ` 5000
`

// startSentinel runs one Sentinel. Its files are in memory: a Sentinel syncs its state before
// it continues, and on a slow disk it would consider all others down.
func startSentinel(t *testing.T, masterPort string) (addr string) {
	t.Helper()
	port := porttest.Free(t)
	dir, err := os.MkdirTemp("/dev/shm", "sentinel-") //nolint:usetesting // not the disk
	if err != nil {
		dir = t.TempDir()
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	file := filepath.Join(dir, "sentinel.conf")
	if err := os.WriteFile(file, fmt.Appendf(nil, sentinelConf, port, dir, masterPort), 0o600); err != nil {
		t.Fatal(err)
	}
	binary, err := exec.LookPath("redis-server")
	if err != nil {
		binary = "valkey-server"
	}
	p, err := child.Start(exec.Command(binary, file, "--sentinel"))
	if err != nil {
		t.Fatalf("start a Sentinel: %v", err)
	}
	t.Cleanup(func() {
		p.Kill()
		if log, _ := os.ReadFile(filepath.Join(dir, "log")); t.Failed() {
			t.Logf("the Sentinel at port %d:\n%s", port, log)
		}
	})
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
}
