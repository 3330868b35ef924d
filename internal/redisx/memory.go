package redisx

import (
	"crypto/rand"
	"fmt"
	"log/slog"
	"strings"
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
	m.Server().SetPreHook(plainScript)
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		passTime(m, stop)
	}()
	return &Redis{
		client: dial(&redis.UniversalOptions{Addrs: []string{m.Addr()}, Password: password}),
		memory: true,
		stop: func() error {
			close(stop)
			<-done
			m.Close()
			return nil
		},
	}, nil
}

// plainScript removes the first line of a script that starts with "#!lua", which miniredis does
// not support. The flags of that line do not matter in memory. The script's digest stays unknown,
// so that each call sends the script.
func plainScript(_ *server.Peer, cmd string, args ...string) bool {
	if cmd == "EVAL" && len(args) > 0 && strings.HasPrefix(args[0], "#!lua") {
		_, args[0], _ = strings.Cut(args[0], "\n")
	}
	return false
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
