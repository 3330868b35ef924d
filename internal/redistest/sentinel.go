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
// does not answer for a second. They end with the test.
type Sentinels struct {
	Addrs   []string
	Servers []*Server // the first one is the master to begin with

	tb testing.TB
}

// Sentinel starts a master with two replicas and three Sentinels, and returns
// once they agree and the replicas are in step. Each server has an AOF, and the
// arguments given.
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
		s.Addrs = append(s.Addrs, startSentinel(tb, s.Servers[0]))
	}
	ctx, cancel := context.WithTimeout(tb.Context(), 60*time.Second)
	defer cancel()
	s.await(ctx, "the replicas are in step", func() bool {
		info := s.Servers[0].Client().InfoMap(ctx, "replication")
		return info.Item("Replication", "connected_slaves") == "2"
	})
	for _, addr := range s.Addrs {
		c := redis.NewSentinelClient(&redis.Options{Addr: addr})
		tb.Cleanup(func() { _ = c.Close() })
		var master map[string]string
		tb.Cleanup(func() {
			if tb.Failed() {
				tb.Logf("redistest: to the Sentinel at %s the master is %v", addr, master)
			}
		})
		s.await(ctx, "the Sentinels agree", func() bool {
			master = c.Master(ctx, MasterName).Val()
			return c.CkQuorum(ctx, MasterName).Err() == nil &&
				master["num-slaves"] == "2" && master["num-other-sentinels"] == "2"
		})
	}
	return s
}

// Master is the server that the Sentinels say is the master now, or nil.
func (s *Sentinels) Master(ctx context.Context) *Server {
	c := redis.NewSentinelClient(&redis.Options{Addr: s.Addrs[0]})
	defer func() { _ = c.Close() }()
	addr, err := c.GetMasterAddrByName(ctx, MasterName).Result()
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
			s.tb.Fatalf("redistest: never: %s", what)
		}
	}
}

// sentinelConf is for a port, a folder and the port of a master.
const sentinelConf = `
bind 127.0.0.1
port %d
dir %s
sentinel monitor ` + MasterName + ` 127.0.0.1 %d 2
sentinel down-after-milliseconds ` + MasterName + ` 1000
sentinel failover-timeout ` + MasterName + ` 5000
`

// startSentinel runs one Sentinel, which writes what it learns to its file.
func startSentinel(tb testing.TB, master *Server) (addr string) {
	tb.Helper()
	binary, err := findServer()
	if err != nil {
		tb.Fatalf("redistest: %v", err)
	}
	dir, port := shortTempDir(tb), freePort(tb)
	file := filepath.Join(dir, "sentinel.conf")
	text := fmt.Sprintf(sentinelConf, port, dir, master.port)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		tb.Fatalf("redistest: %v", err)
	}
	p, err := child.Start(exec.Command(binary, file, "--sentinel")) //nolint:gosec,noctx // our own arguments; killed by pid
	if err != nil {
		tb.Fatalf("redistest: start a Sentinel: %v", err)
	}
	tb.Cleanup(p.Kill)
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
}
