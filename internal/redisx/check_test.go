package redisx_test

import (
	"errors"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"spendhook/internal/child"
	"spendhook/internal/porttest"
	"spendhook/internal/redistest"
	"spendhook/internal/redisx"
	"spendhook/internal/waittest"
)

func TestCheck(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		args              []string
		problem, warnings string
	}{
		"good":      {args: []string{"--appendonly", "yes", "--appendfsync", "always"}},
		"evicting":  {args: []string{"--appendonly", "yes", "--appendfsync", "always", "--maxmemory-policy", "volatile-ttl"}, problem: "volatile-ttl"},
		"no AOF":    {warnings: "append-only file off"},
		"lazy":      {args: []string{"--appendonly", "yes"}, warnings: "set appendfsync to always (it is everysec)"},
		"no CONFIG": {args: []string{"--appendonly", "yes", "--rename-command", "CONFIG", ""}},
		"no INFO":   {args: []string{"--rename-command", "INFO", ""}, warnings: "refuses INFO"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := redistest.Start(t, redistest.Options{Args: tt.args})
			r := open(t, redisx.Options{URL: s.URL()})
			defer closeIt(t, r)
			got := r.Check(t.Context())
			if !got.Up {
				t.Fatalf("not up: %+v", got)
			}
			wantOne(t, "problem", got.Problems, tt.problem)
			wantOne(t, "warning", got.Warnings, tt.warnings)
		})
	}
}

// A master with too few replicas answers, but refuses writes.
func TestTryWrite(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t, redistest.Options{AOF: true, Args: []string{"--min-replicas-to-write", "1"}})
	r := open(t, redisx.Options{URL: s.URL()})
	defer closeIt(t, r)
	if !r.Check(t.Context()).Up || r.TryWrite(t.Context()) == nil {
		t.Error("want a Redis that is up and takes no writes")
	}
	if err := s.Client().ConfigSet(t.Context(), "min-replicas-to-write", "0").Err(); err != nil {
		t.Fatal(err)
	}
	if err := r.TryWrite(t.Context()); err != nil {
		t.Errorf("want a Redis that takes writes: %v", err)
	}
}

func TestKilledRedisIsAnErrorSoonAndComesBack(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t, redistest.Options{TCP: true, AOF: true})
	r := open(t, redisx.Options{URL: s.URL()})
	defer closeIt(t, r)
	setK(t, r.Client())

	for name, fault := range map[string]struct{ hurt, heal func() }{
		"paused": {s.Pause, s.Resume},
		"killed": {s.Kill, s.Restart},
	} {
		fault.hurt()
		var took [3]time.Duration
		for i := range took {
			start := time.Now()
			if err := r.Client().Set(t.Context(), "k", "w", 0).Err(); err == nil {
				t.Errorf("%s: SET succeeded", name)
			}
			if got := r.Check(t.Context()); got.Up || len(got.Problems) == 0 {
				t.Errorf("%s: Check = %+v, want down", name, got)
			}
			if took[i] = time.Since(start); took[i] <= 4*time.Second {
				break // once is enough: the machine may do other things
			}
		}
		if took[len(took)-1] > 4*time.Second {
			t.Errorf("%s: two answers took %v, want 1.5 s each at most", name, took)
		}
		fault.heal()
		waittest.Until(t, "Redis is up", func() bool { return r.Check(t.Context()).Up })
		setK(t, r.Client())
	}
}

func TestClusterIsCheckedPerMaster(t *testing.T) {
	t.Parallel()
	servers := redistest.Cluster(t, 3)
	r := open(t, redisx.Options{URL: "redis+cluster://" + servers[0].Addr() + "?addr=" + servers[1].Addr()})
	defer closeIt(t, r)
	setK(t, r.Client())
	if err := servers[1].Client().ConfigSet(t.Context(), "maxmemory-policy", "allkeys-lru").Err(); err != nil {
		t.Fatal(err)
	}
	got := r.Check(t.Context())
	wantOne(t, "problem", got.Problems, servers[1].Addr()+": Redis may evict")
	if !got.Up || len(got.Warnings) != 3 {
		t.Errorf("Check = %+v, want up and AOF off on 3 masters", got)
	}
	servers[2].Kill()
	got = r.Check(t.Context())
	wantOne(t, "server down", got.Down, servers[2].Addr()+": Redis does not answer")
	if got.Up || len(got.Problems) != 1 {
		t.Errorf("Check with a dead master = %+v", got)
	}
	servers[0].Kill()
	servers[1].Kill()
	if got := r.Check(t.Context()); got.Up || len(got.Down) != 0 || len(got.Problems) != 3 {
		t.Errorf("Check of dead masters = %+v", got)
	}
}

// maxHung is how many writes may go to the former master after a failover.
const maxHung = 12

// A client follows a failover although the former master hangs, so that no answer names the new one.
func TestClusterFailoverIsFollowed(t *testing.T) {
	t.Parallel()
	servers := redistest.Cluster(t, 2)
	replica := redistest.Replica(t, servers[1], servers[0])
	r := open(t, redisx.Options{URL: "redis+cluster://" + servers[0].Addr() + "?addr=" + servers[1].Addr()})
	defer closeIt(t, r)
	key := "k"
	for i := 0; redistest.SlotOf(t, servers[0], key) < 8192; i++ {
		key = strconv.Itoa(i)
	}
	waittest.Until(t, "the key is written", func() bool { return r.Client().Set(t.Context(), key, "v", 0).Err() == nil })
	servers[1].Pause()
	defer servers[1].Resume()
	if err := replica.Client().Do(t.Context(), "CLUSTER", "FAILOVER", "TAKEOVER").Err(); err != nil {
		t.Fatal(err)
	}
	// go-redis alone reads the slot map once a minute, and a write to the hanging master takes about two seconds. These
	// writes are counted, not timed: on a busy machine the new map comes later too.
	hung := 0
	waittest.Until(t, "the new master is used", func() bool {
		err := r.Client().Set(t.Context(), key, "v", 0).Err()
		if timeout := net.Error(nil); errors.As(err, &timeout) && timeout.Timeout() {
			hung++
		}
		if hung > maxHung {
			t.Fatalf("%d writes went to the former master: %v", hung, err)
		}
		return err == nil
	})
}

// A check of a Cluster does not wait for the slot map: a master that hangs may be asked for it.
func TestClusterIsCheckedWhileAMasterHangs(t *testing.T) {
	t.Parallel()
	servers := redistest.Cluster(t, 2)
	r := open(t, redisx.Options{URL: "redis+cluster://" + servers[0].Addr() + "?addr=" + servers[1].Addr()})
	defer closeIt(t, r)
	hold := redistest.HoldSlotMap(t, r.Client())
	waittest.Until(t, "Redis is up", func() bool { return r.Check(t.Context()).Up })
	hold()
	waittest.Until(t, "Redis is found to be up without the slot map", func() bool { return r.Check(t.Context()).Up })
}

func TestSentinel(t *testing.T) {
	t.Parallel()
	master := redistest.Start(t, redistest.Options{TCP: true, AOF: true})
	address := startSentinel(t, master.Addr())
	r := open(t, redisx.Options{URL: "redis+sentinel://" + address + "?master_name=main"})
	defer closeIt(t, r)
	waittest.Until(t, "Redis is up", func() bool { return r.Check(t.Context()).Up })
	setK(t, r.Client())
	if got := master.Client().Get(t.Context(), "k").Val(); got != "v" {
		t.Errorf("the master holds k = %q, want v", got)
	}
}

// startSentinel runs a Sentinel that watches the master as "main".
func startSentinel(t *testing.T, master string) (address string) {
	t.Helper()
	port := strconv.Itoa(porttest.Free(t))
	address = net.JoinHostPort("127.0.0.1", port)
	file := filepath.Join(t.TempDir(), "sentinel.conf")
	text := "port " + port + "\nsentinel monitor main " + strings.ReplaceAll(master, ":", " ") + " 1\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	p, err := child.Start(exec.Command("redis-server", file, "--sentinel"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	return address
}

func TestBadAddressesAreRefusedWithoutTheirPassword(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]string{
		"localhost:6379":                      "starts with none of",
		"http://localhost":                    "starts with none of",
		"unix+cluster:///run/redis.sock":      "starts with none of",
		"redis+magic://localhost":             "starts with none of",
		"redis://u:hunter2/x@localhost":       "not a URL",
		"redis://:hunter2@localhost/zero":     "database",
		"redis://:hunter2@localhost?colour=1": "colour",
		"redis+sentinel://u:hunter2@h:26379":  "master_name",
		"redis+cluster://u:hunter2@h?db=1":    "db",
	} {
		_, err := redisx.Open(t.Context(), redisx.Options{URL: address})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want one with %q", address, err, want)
			continue
		}
		if strings.Contains(err.Error(), "hunter2") {
			t.Errorf("the error contains the password: %v", err)
		}
	}
}

func FuzzAddress(f *testing.F) {
	f.Add("redis://u:p@h:1/0?read_timeout=3s")
	f.Add("rediss+cluster://h?addr=a:1&addr=b:2")
	f.Add("redis+sentinel://h:1?master_name=m&db=2")
	f.Add("unix:///s?db=1")
	f.Fuzz(func(t *testing.T, address string) {
		if u, err := url.Parse(address); err == nil && u.Scheme == "" {
			return // may be empty or "embedded", which starts a server
		}
		r, err := redisx.Open(t.Context(), redisx.Options{URL: address})
		if err == nil {
			closeIt(t, r)
		}
	})
}

func wantOne(t *testing.T, what string, got []string, want string) {
	t.Helper()
	switch {
	case want == "" && len(got) != 0:
		t.Errorf("%ss: %q, want none", what, got)
	case want != "" && (len(got) != 1 || !strings.Contains(got[0], want)):
		t.Errorf("%ss: %q, want one with %q", what, got, want)
	}
}
