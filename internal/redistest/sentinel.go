package redistest

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
)

// MasterName is what the Sentinels call their master.
const MasterName = "main"

// Sentinels watch over a master and its replicas, and replace a master that
// does not answer for three seconds. They end with the test.
type Sentinels struct {
	Addrs   []string
	Servers []*Server // the first one is the master to begin with

	tb      testing.TB
	clients []*redis.SentinelClient
}

// settling bounds how long Sentinels take to agree. Usually it takes seconds, but a failed
// election is repeated after twice the failover-timeout.
const settling = 3 * time.Minute

// Sentinel starts a master with two replicas and three Sentinels, and returns
// once they have settled. Each server has an AOF, and the arguments given.
func Sentinel(tb testing.TB, args ...string) *Sentinels {
	tb.Helper()
	s := &Sentinels{tb: tb}
	for i := range 3 {
		o := Options{TCP: true, AOF: true, Args: args}
		if i > 0 {
			host, port, _ := net.SplitHostPort(s.Servers[0].Addr())
			o.Args = append([]string{"--replicaof", host + " " + port}, args...)
		}
		s.Servers = append(s.Servers, Start(tb, o))
	}
	for range 3 {
		s.add(startSentinel(tb, s.Servers[0]))
	}
	s.Settle()
	return s
}

// add adds the Sentinel at an address. It makes the Sentinel check its servers every second
// instead of every ten, and disables the tilt mode: a Sentinel that was delayed for two seconds
// would otherwise do nothing for thirty.
func (s *Sentinels) add(addr string) {
	s.tb.Helper()
	c := redis.NewSentinelClient(&redis.Options{Addr: addr})
	s.tb.Cleanup(func() { _ = c.Close() })
	s.Addrs, s.clients = append(s.Addrs, addr), append(s.clients, c)
	ctx, cancel := context.WithTimeout(s.tb.Context(), settling)
	defer cancel()
	s.await(ctx, "a Sentinel answers", func() bool { return c.Ping(ctx).Err() == nil })
	brisk := redis.NewStatusCmd(ctx, "SENTINEL", "DEBUG", "info-period", 1000, "tilt-trigger", settling.Milliseconds())
	_ = c.Process(ctx, brisk) // Redis knows it since 7.0
}

// Settle returns once a failover is possible: the Sentinels agree on the master, and each can
// reach the master, both replicas and the other Sentinels. The replicas are in sync with the
// master.
func (s *Sentinels) Settle() {
	s.tb.Helper()
	ctx, cancel := context.WithTimeout(s.tb.Context(), settling)
	defer cancel()
	var obstacle string
	defer func() {
		if obstacle != "" {
			s.tb.Logf("redistest: the last obstacle: %s", obstacle)
		}
	}()
	s.await(ctx, "the Sentinels have settled", func() bool {
		obstacle = s.obstacle(ctx)
		return obstacle == ""
	})
}

// obstacle is the reason why a failover is not possible yet; "" when it is possible.
func (s *Sentinels) obstacle(ctx context.Context) string {
	master := s.Master(ctx)
	if master == nil {
		return "the first Sentinel knows no master"
	}
	if info := master.replication(ctx); info["role"] != "master" || info["connected_slaves"] != "2" {
		return fmt.Sprintf("the master %s: %v", master.Addr(), info)
	}
	for _, server := range s.Servers {
		info := server.replication(ctx)
		if server != master && (info["role"] != "slave" || info["master_port"] != strconv.Itoa(master.port) || info["master_link_status"] != "up") {
			return fmt.Sprintf("the replica %s: %v", server.Addr(), info)
		}
	}
	for i, c := range s.clients {
		if found := view(ctx, c); found != (sight{strconv.Itoa(master.port), 2, 2}) {
			return fmt.Sprintf("the Sentinel %s sees %+v", s.Addrs[i], found)
		}
	}
	return ""
}

// sight is the view of one Sentinel. It has only the servers that the Sentinel can reach.
type sight struct {
	master              string // its port, empty unless all is well with it
	replicas, sentinels int
}

func view(ctx context.Context, c *redis.SentinelClient) (v sight) {
	if m := c.Master(ctx, MasterName).Val(); m["flags"] == "master" {
		v.master = m["port"]
	}
	for _, r := range c.Replicas(ctx, MasterName).Val() {
		if r["flags"] == "slave" && r["master-link-status"] == "ok" {
			v.replicas++
		}
	}
	for _, other := range c.Sentinels(ctx, MasterName).Val() {
		if other["flags"] == "sentinel" {
			v.sentinels++
		}
	}
	return v
}

// replication is the server's own view; it has nothing of a server that is down.
func (s *Server) replication(ctx context.Context) map[string]string {
	s.mu.Lock()
	c := s.process.client(0)
	s.mu.Unlock()
	defer c.Close()
	return c.InfoMap(ctx, "replication").Val()["Replication"]
}

// Master is the server that the Sentinels say is the master now, or nil.
func (s *Sentinels) Master(ctx context.Context) *Server {
	addr, err := s.clients[0].GetMasterAddrByName(ctx, MasterName).Result()
	if err != nil || len(addr) != 2 {
		return nil
	}
	for _, server := range s.Servers {
		if server.Addr() == net.JoinHostPort(addr[0], addr[1]) {
			return server
		}
	}
	return nil
}

func (s *Sentinels) await(ctx context.Context, what string, ok func() bool) {
	s.tb.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			s.tb.Fatalf("redistest: timed out waiting for: %s", what)
		}
	}
}

// sentinelConf is for a port, a folder and the port of a master.
const sentinelConf = `
bind 127.0.0.1
port %d
dir %s
logfile log
sentinel monitor ` + MasterName + ` 127.0.0.1 %d 2
sentinel down-after-milliseconds ` + MasterName + ` 3000
sentinel failover-timeout ` + MasterName + ` 5000
`

// startSentinel runs one Sentinel. Its files are in memory: a Sentinel syncs its state before
// it continues, and on a slow disk it would consider all others down.
func startSentinel(tb testing.TB, master *Server) (addr string) {
	tb.Helper()
	binary, err := findServer()
	if err != nil {
		tb.Fatalf("redistest: %v", err)
	}
	dir, port := memoryDir(tb), freePort(tb)
	file := filepath.Join(dir, "sentinel.conf")
	text := fmt.Sprintf(sentinelConf, port, dir, master.port)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		tb.Fatalf("redistest: %v", err)
	}
	p, err := child.Start(exec.Command(binary, file, "--sentinel")) //nolint:gosec,noctx // our own arguments; killed by pid
	if err != nil {
		tb.Fatalf("redistest: start a Sentinel: %v", err)
	}
	tb.Cleanup(func() {
		p.Kill()
		if log, _ := os.ReadFile(filepath.Join(dir, "log")); tb.Failed() {
			tb.Logf("redistest: the Sentinel at port %d:\n%s", port, log)
		}
	})
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
}
