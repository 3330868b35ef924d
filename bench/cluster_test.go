package main

import (
	"maps"
	"slices"
	"testing"
	"time"
)

func TestRedisURL(t *testing.T) {
	t.Parallel()
	one := []*redisServer{{socket: "/x/redis.sock"}}
	if got := redisURL(one); got != "unix:///x/redis.sock" {
		t.Errorf("one server: %s", got)
	}
	three := []*redisServer{{port: "1"}, {port: "2"}, {port: "3"}}
	if got := redisURL(three); got != "redis+cluster://127.0.0.1:1?addr=127.0.0.1%3A2&addr=127.0.0.1%3A3" {
		t.Errorf("three masters: %s", got)
	}
}

func TestServesAll(t *testing.T) {
	t.Parallel()
	const info = "cluster_state:ok\r\ncluster_slots_ok:16384\r\ncluster_size:3\r\n"
	if !servesAll(info, 3) || servesAll(info, 4) || servesAll("cluster_state:ok\r\n", 3) {
		t.Error("servesAll is wrong about the state of a cluster")
	}
}

func TestCompaniesIn(t *testing.T) {
	t.Parallel()
	text := "sh:{7}:s:" + company(12) + "\nsh:{7}:e:" + company(345) + ":bench-1\n" + companyPrefix + "12\n" + companyPrefix
	got := slices.Sorted(maps.Keys(companiesIn(text)))
	if !slices.Equal(got, []int{12, 345}) {
		t.Errorf("companies %v, want 12 and 345", got)
	}
}

func TestBusiestShare(t *testing.T) {
	t.Parallel()
	if got := busiestShare([]int64{100, 0, 50}, []int64{200, 100, 250}); got != 1.5 {
		t.Errorf("the busiest of three processed 200 of 400 commands: %v, want 1.5", got)
	}
}

func TestWindow(t *testing.T) {
	t.Parallel()
	w := window{took: 2 * time.Second, cpu: usage{daemon: time.Second, redis: 500 * time.Millisecond}, distinct: 300}
	if w.share() != 0.75 || w.rate() != 150 {
		t.Errorf("share %v, rate %v, want 0.75 and 150", w.share(), w.rate())
	}
	r := backloggedResult{
		without: window{took: time.Second, cpu: usage{redis: 10 * time.Millisecond}},
		with:    window{took: 2 * time.Second, cpu: usage{redis: 30 * time.Millisecond}, distinct: 320},
	}
	if got := r.redisMore(); got < 31.24 || got > 31.26 {
		t.Errorf("redis: %v µs more, want 10 ms / 320", got)
	}
	if got := r.limitShare(); got < 0.749 || got > 0.751 {
		t.Errorf("limit: %v, want 160 of 213.3", got)
	}
}
