package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

const clusterSlots = 16384

// redisURL returns the URL of a server, or of the masters of a Cluster.
func redisURL(masters []*redisServer) string {
	if masters[0].port == "" {
		return masters[0].url()
	}
	others := url.Values{}
	for _, m := range masters[1:] {
		others.Add("addr", "127.0.0.1:"+m.port)
	}
	return "redis+cluster://127.0.0.1:" + masters[0].port + "?" + others.Encode()
}

// startCluster runs a Redis Cluster of n masters, each with an equal share of
// the slots. With an error it returns the masters that run.
func startCluster(ctx context.Context, dir string, n int) (masters []*redisServer, err error) {
	for i := range n {
		m, err := startMaster(ctx, filepath.Join(dir, fmt.Sprintf("master%d", i)))
		if err != nil {
			return masters, err
		}
		masters = append(masters, m)
	}
	for i, m := range masters {
		from, to := strconv.Itoa(i*clusterSlots/n), strconv.Itoa((i+1)*clusterSlots/n-1)
		_, err := m.ask(ctx, "CLUSTER", "ADDSLOTSRANGE", from, to)
		if err = errors.Join(err, m.meet(ctx, masters[0])); err != nil {
			return masters, err
		}
	}
	for _, m := range masters {
		err := await(ctx, startTime, func() (bool, error) {
			info, err := m.ask(ctx, "CLUSTER", "INFO")
			return servesAll(info, n), err
		})
		if err != nil {
			return masters, fmt.Errorf("the cluster is not ready: %w", err)
		}
	}
	return masters, nil
}

func startMaster(ctx context.Context, dir string) (*redisServer, error) {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	port, err := freePort(ctx)
	bus, err2 := freePort(ctx)
	if err := errors.Join(err, err2); err != nil {
		return nil, err
	}
	m, err := startRedis(ctx, dir, "--bind", "127.0.0.1", "--port", port, "--cluster-enabled", "yes", "--cluster-port", bus)
	if err != nil {
		return nil, err
	}
	m.port = port
	return m, nil
}

// meet adds a master to the cluster of another one.
func (r *redisServer) meet(ctx context.Context, other *redisServer) error {
	answer, err := other.ask(ctx, "CONFIG", "GET", "cluster-port")
	if err != nil {
		return err
	}
	_, bus, _ := strings.Cut(answer, "\n")
	_, err = r.ask(ctx, "CLUSTER", "MEET", "127.0.0.1", other.port, bus)
	return err
}

// servesAll reports whether a node knows every master and every slot.
func servesAll(clusterInfo string, masters int) bool {
	slots, err := infoNumber(clusterInfo, "cluster_slots_ok")
	size, err2 := infoNumber(clusterInfo, "cluster_size")
	return errors.Join(err, err2) == nil && strings.Contains(clusterInfo, "cluster_state:ok") &&
		slots == clusterSlots && size == int64(masters)
}

// freePort returns a port of loopback without a listener.
func freePort(ctx context.Context) (string, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	return port, err
}
