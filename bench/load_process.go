package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"time"

	"spendhook/internal/child"
)

// generate runs a load generator's process to its end. cpu is what it used.
func generate(ctx context.Context, spec loadSpec) (result loadResult, cpu time.Duration, err error) {
	self, err := os.Executable()
	if err != nil {
		return result, 0, err
	}
	in, err := json.Marshal(spec)
	if err != nil {
		return result, 0, err
	}
	var out, log bytes.Buffer
	cmd := exec.Command(self, "worker", "load") //nolint:gosec,noctx // ourselves; it is ended by its pid
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(in), &out, &log
	p, err := child.Start(cmd)
	if err != nil {
		return result, 0, fmt.Errorf("start the load generator: %w", err)
	}
	defer p.Kill()
	select {
	case <-p.Done():
	case <-time.After(spec.For + 2*retryFor):
		return result, 0, fmt.Errorf("load generator: %w", errLate)
	case <-ctx.Done():
		return result, 0, ctx.Err()
	}
	if p.Err() != nil {
		return result, 0, fmt.Errorf("load generator: %w: %s", p.Err(), log.Bytes())
	}
	cpu = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	return result, cpu, json.Unmarshal(out.Bytes(), &result)
}
