package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"spendhook/internal/child"
)

// process is a process that runs until the bench kills it. It ends with the bench.
type process struct {
	*child.Process
	name string
	log  string // file of its output
}

// startProcess runs a program whose output goes to dir/name.log.
func startProcess(dir, name, program string, args ...string) (*process, error) {
	return startCommand(dir, name, exec.Command(program, args...)) //nolint:gosec,noctx // our own arguments; it is ended by its pid
}

func startCommand(dir, name string, cmd *exec.Cmd) (*process, error) {
	path := filepath.Join(dir, name+".log")
	log, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	c, err := child.Start(cmd)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	return &process{Process: c, name: name, log: path}, nil
}

// alive returns an error, with the end of the log, if the process has ended.
func (p *process) alive() error {
	select {
	case <-p.Done():
		return fmt.Errorf("%s ended: %w; its log: %s", p.name, errors.Join(p.Err()), p.logTail())
	default:
		return nil
	}
}

func (p *process) logTail() []byte {
	text, _ := os.ReadFile(p.log)
	return text[max(0, len(text)-2000):]
}

// awaitLine waits for the first line of the log that contains part.
func (p *process) awaitLine(ctx context.Context, part string) (line []byte, err error) {
	err = await(ctx, startTime, func() (bool, error) {
		if line, err = findLine(p.log, part); err != nil || line != nil {
			return line != nil, err
		}
		return false, p.alive()
	})
	if err != nil {
		return nil, fmt.Errorf("%s: wait for %q: %w", p.name, part, err)
	}
	return line, nil
}

// findLine returns the first whole line of a file that contains part.
func findLine(path, part string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	r := bufio.NewReader(f)
	for {
		line, err := r.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		if bytes.Contains(line, []byte(part)) {
			return line, nil
		}
	}
}

// startTime is how long a process may take until it is ready.
const startTime = 30 * time.Second

var errLate = errors.New("gave up waiting")

// await calls done until it returns true, for at most limit.
func await(ctx context.Context, limit time.Duration, done func() (bool, error)) error {
	return awaitEvery(ctx, pollEvery, limit, done)
}

// awaitEvery is await with another interval: each call of done takes CPU from the processes that
// are measured.
func awaitEvery(ctx context.Context, often, limit time.Duration, done func() (bool, error)) error {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, errLate)
	defer cancel()
	every := time.NewTicker(often)
	defer every.Stop()
	for {
		ok, err := done()
		if ok || err != nil {
			return err
		}
		select {
		case <-every.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// pollEvery is the precision of the end of a run.
const pollEvery = 20 * time.Millisecond

// pause waits until d is over, or returns an error if ctx ends before.
func pause(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
