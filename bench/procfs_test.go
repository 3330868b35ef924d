package main

import (
	"os"
	"testing"
	"time"
)

func TestParseStat(t *testing.T) {
	t.Parallel()
	const line = "42 (a) b (c) S 1 42 42 0 -1 4194560 100 200 0 0 11 22 3 4 20 0 5 0 1234 0 0"
	own, children, err := parseStat([]byte(line))
	if err != nil || own != 330*time.Millisecond || children != 70*time.Millisecond {
		t.Errorf("parseStat = %v, %v, %v, want 330 and 70 ms", own, children, err)
	}
	for _, bad := range []string{"", "42 (x", "42 (x) S 1 2 3", "42 (x) S 1 42 42 0 -1 1 1 2 0 0 a 22 3 4"} {
		if _, _, err := parseStat([]byte(bad)); err == nil {
			t.Errorf("parseStat(%q): no error", bad)
		}
	}
}

func TestParsePeak(t *testing.T) {
	t.Parallel()
	got, err := parsePeak("Name:\tx\nVmPeak:\t  9 kB\nVmHWM:\t   2048 kB\nVmRSS:\t 1 kB\n")
	if err != nil || got != 2<<20 {
		t.Errorf("parsePeak = %d, %v, want 2 MiB", got, err)
	}
	if _, err := parsePeak("Name:\tx\n"); err == nil {
		t.Error("a kernel thread has no peak")
	}
}

func TestOwnUsage(t *testing.T) {
	t.Parallel()
	if _, _, err := cpuTime(os.Getpid()); err != nil {
		t.Error(err)
	}
	if peak, err := peakMemory(os.Getpid()); err != nil || peak < 1<<20 {
		t.Errorf("peakMemory = %d, %v", peak, err)
	}
}

func TestParseCores(t *testing.T) {
	t.Parallel()
	before, err := parseCores("cpu  10 0 10 70 10 0 0 0 5 5\ncpu0 1 2 3\n")
	if err != nil || before != (cores{idle: 80, all: 100}) {
		t.Fatalf("parseCores = %+v, %v", before, err)
	}
	after, err := parseCores("cpu  70 5 20 90 10 1 3 1 5 5\n")
	if err != nil || after.busySince(before) != 0.8 {
		t.Errorf("%+v, %v: busy %v, want 0.8", after, err, after.busySince(before))
	}
	if before.busySince(before) != 0 {
		t.Error("busy in no time")
	}
	for _, bad := range []string{"", "cpu 1 2 3", "cpu0 1 2 3 4 5 6 7 8", "cpu 1 2 3 x 5 6 7 8"} {
		if _, err := parseCores(bad); err == nil {
			t.Errorf("parseCores(%q): no error", bad)
		}
	}
}
