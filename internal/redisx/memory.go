package redisx

import (
	"crypto/rand"
	"crypto/sha1" //nolint:gosec // Redis's choice
	"encoding/hex"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"
)

// miniredis has no clock: times to live pass only through calls of FastForward.
const memoryTick = 200 * time.Millisecond

// openMemory runs miniredis on a loopback port with a password of its own.
func openMemory(log *slog.Logger) (*Redis, error) {
	log.Warn("NOT DURABLE: no redis-server or valkey-server on PATH, everything is kept in memory and lost when this process ends")
	password := rand.Text()
	m := miniredis.NewMiniRedis()
	m.RequireAuth(password)
	if err := m.Start(); err != nil {
		return nil, fmt.Errorf("start the in-memory Redis: %w", err)
	}
	m.Server().SetPreHook(plainScripts())
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		passTime(m, stop)
	}()
	return &Redis{
		client: newStandalone(&redis.Options{Addr: m.Addr(), Password: password}),
		memory: true,
		stop: func() error {
			close(stop)
			<-done
			m.Close()
			return nil
		},
	}, nil
}

// plainScripts removes the first line of scripts that start with "#!lua", which miniredis does
// not support. Scripts keep the digest of their full text. The flags of that line do not matter
// in memory.
func plainScripts() server.Hook {
	var mu sync.Mutex
	digests := make(map[string]string) // of the plain script, by that of the whole
	return func(_ *server.Peer, cmd string, args ...string) bool {
		if len(args) == 0 {
			return false
		}
		mu.Lock()
		defer mu.Unlock()
		switch cmd {
		case "EVAL":
			if plain, is := withoutShebang(args[0]); is {
				digests[digest(args[0])] = digest(plain)
				args[0] = plain
			}
		case "EVALSHA":
			if plain, known := digests[args[0]]; known {
				args[0] = plain
			}
		}
		return false
	}
}

func withoutShebang(script string) (plain string, is bool) {
	if !strings.HasPrefix(script, "#!lua") {
		return script, false
	}
	_, plain, _ = strings.Cut(script, "\n")
	return plain, true
}

// digest is the SHA-1 by which Redis identifies a script.
func digest(script string) string {
	sum := sha1.Sum([]byte(script)) //nolint:gosec // Redis's choice
	return hex.EncodeToString(sum[:])
}

func passTime(m *miniredis.Miniredis, stop <-chan struct{}) {
	tick := time.NewTicker(memoryTick)
	defer tick.Stop()
	var last time.Time
	for {
		select {
		case now := <-tick.C:
			if !last.IsZero() {
				m.FastForward(now.Sub(last))
			}
			last = now
		case <-stop:
			return
		}
	}
}
