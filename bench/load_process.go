package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"

	"spendhook/internal/child"
)

// generate runs a load generator's process to its end. cpu is the CPU time of the process.
func generate(ctx context.Context, spec loadSpec) (result loadResult, cpu time.Duration, err error) {
	cpu, err = runWorker(ctx, "load", spec, &result, spec.limit())
	return result, cpu, err
}

// limit is how long a load may take, with the requests that it sends again.
func (s loadSpec) limit() time.Duration { return s.For + 2*retryFor }

// paced is a running load generator.
type paced struct {
	*worker
	spec loadSpec
}

// startLoad starts a load that ends after spec.For, or with stop.
func startLoad(spec loadSpec) (*paced, error) {
	w, err := startWorker("load", spec)
	return &paced{w, spec}, err
}

// stop ends the load after the requests that have begun, and returns its result.
func (p *paced) stop(ctx context.Context) (r loadResult, err error) {
	if err := p.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return r, err
	}
	return r, p.result(ctx, &r, p.spec.limit())
}

// runWorker runs a worker to its end and reads its result. cpu is the CPU time of the worker.
func runWorker(ctx context.Context, name string, spec, result any, limit time.Duration) (cpu time.Duration, err error) {
	w, err := startWorker(name, spec)
	if err != nil {
		return 0, err
	}
	err = w.result(ctx, result, limit)
	if err != nil {
		return 0, err
	}
	return w.cmd.ProcessState.UserTime() + w.cmd.ProcessState.SystemTime(), nil
}

// worker is a process of this program that reads a spec from stdin and prints a result.
type worker struct {
	*program
	out bytes.Buffer
}

// startWorker starts a worker with spec on its stdin.
func startWorker(name string, spec any) (*worker, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	in, err := json.Marshal(spec)
	if err != nil {
		return nil, err
	}
	w := &worker{}
	cmd := exec.Command(self, "worker", name) //nolint:gosec,noctx // ourselves; it is ended by its pid
	cmd.Stdin, cmd.Stdout = bytes.NewReader(in), &w.out
	w.program, err = startProgram(cmd)
	return w, err
}

// result waits for the worker's end and decodes its output.
func (w *worker) result(ctx context.Context, into any, limit time.Duration) error {
	if err := w.wait(ctx, limit); err != nil {
		return err
	}
	return json.Unmarshal(w.out.Bytes(), into)
}

// runProgram runs cmd to its end, which must come within the limit.
func runProgram(ctx context.Context, cmd *exec.Cmd, limit time.Duration) error {
	p, err := startProgram(cmd)
	if err != nil {
		return err
	}
	return p.wait(ctx, limit)
}

// program is a process that runs to its end. Call wait exactly once.
type program struct {
	*child.Process
	cmd *exec.Cmd
	log bytes.Buffer
}

func startProgram(cmd *exec.Cmd) (p *program, err error) {
	p = &program{cmd: cmd}
	cmd.Stderr = &p.log
	if p.Process, err = child.Start(cmd); err != nil {
		return nil, fmt.Errorf("start %s: %w", cmd.Args[1], err)
	}
	return p, nil
}

// wait returns when the program has ended. It kills a program that has not ended within the limit
// or when the bench is stopped.
func (p *program) wait(ctx context.Context, limit time.Duration) error {
	defer p.Kill()
	name := p.cmd.Args[1]
	select {
	case <-p.Done():
	case <-time.After(limit):
		return fmt.Errorf("%s: %w", name, errLate)
	case <-ctx.Done():
		return ctx.Err()
	}
	if p.Err() != nil {
		return fmt.Errorf("%s: %w: %s", name, p.Err(), p.log.Bytes()[max(0, p.log.Len()-2000):])
	}
	return nil
}
