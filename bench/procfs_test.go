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
