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
	cpu, err = runWorker(ctx, "load", spec, &result, spec.For+2*retryFor)
	return result, cpu, err
}

// runWorker gives spec to a process of our own program and reads its result.
// cpu is what it used.
func runWorker(ctx context.Context, name string, spec, result any, limit time.Duration) (cpu time.Duration, err error) {
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	in, err := json.Marshal(spec)
	if err != nil {
		return 0, err
	}
	var out bytes.Buffer
	cmd := exec.Command(self, "worker", name) //nolint:gosec,noctx // ourselves; it is ended by its pid
	cmd.Stdin, cmd.Stdout = bytes.NewReader(in), &out
	if err := runProgram(ctx, cmd, limit); err != nil {
		return 0, err
	}
	cpu = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	return cpu, json.Unmarshal(out.Bytes(), result)
}

// runProgram runs cmd to its end, which must come within the limit.
func runProgram(ctx context.Context, cmd *exec.Cmd, limit time.Duration) error {
	var log bytes.Buffer
	cmd.Stderr = &log
	name := cmd.Args[1]
	p, err := child.Start(cmd)
	if err != nil {
		return fmt.Errorf("start %s: %w", name, err)
	}
	defer p.Kill()
	select {
	case <-p.Done():
	case <-time.After(limit):
		return fmt.Errorf("%s: %w", name, errLate)
	case <-ctx.Done():
		return ctx.Err()
	}
	if p.Err() != nil {
		return fmt.Errorf("%s: %w: %s", name, p.Err(), log.Bytes()[max(0, log.Len()-2000):])
	}
	return nil
}
