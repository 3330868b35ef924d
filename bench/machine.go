package main

import (
	"context"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"
)

// machine describes the machine and the versions of a run.
type machine struct {
	Date      string `json:"date"`
	CPU       string `json:"cpu"`
	Cores     int    `json:"cores"`
	Kernel    string `json:"kernel"`
	Go        string `json:"go"`
	Redis     string `json:"redis"`
	Spendhook string `json:"spendhook"`
	Load      string `json:"load"` // load averages at the start of the run
}

func describe(ctx context.Context, s settings) machine {
	return machine{
		Date: time.Now().UTC().Format("2006-01-02 15:04 UTC"),
		CPU:  field(readFile("/proc/cpuinfo"), "model name"), Cores: runtime.NumCPU(),
		Kernel: strings.TrimSpace(readFile("/proc/sys/kernel/osrelease")), Go: runtime.Version(),
		Redis: firstLine(ctx, "redis-server", "--version"), Spendhook: firstLine(ctx, s.Spendhook, "version"),
		Load: strings.TrimSpace(readFile("/proc/loadavg")),
	}
}

func readFile(path string) string {
	text, _ := os.ReadFile(path)
	return string(text)
}

// field finds "name : value" in a text of such lines.
func field(text, name string) string {
	for line := range strings.Lines(text) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

func firstLine(ctx context.Context, program string, args ...string) string {
	out, _ := exec.CommandContext(ctx, program, args...).Output() //nolint:gosec // the programs under test
	line, _, _ := strings.Cut(string(out), "\n")
	return line
}
