// Package child runs a child process that ends when its parent ends.
package child

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"runtime"
	"time"
)

// Process is a running child. Its methods are safe for concurrent use.
type Process struct {
	process *os.Process
	done    chan struct{}
	err     error
}

// Start runs cmd. On Linux the kernel kills the child when this process ends for any reason, or
// when the thread that started the child ends. Therefore a goroutine keeps that thread as long as
// the child runs.
func Start(cmd *exec.Cmd) (*Process, error) {
	p := &Process{done: make(chan struct{})}
	endWithParent(cmd)
	started := make(chan error)
	go p.run(cmd, started)
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

// run never unlocks its thread: the thread ends with the goroutine.
func (p *Process) run(cmd *exec.Cmd, started chan<- error) {
	runtime.LockOSThread()
	err := cmd.Start()
	p.process = cmd.Process
	started <- err
	if err != nil {
		return
	}
	p.err = cmd.Wait()
	close(p.done)
}

// Pid is the child's process id.
func (p *Process) Pid() int { return p.process.Pid }

// Signal sends s, or returns os.ErrProcessDone when the child has been reaped.
func (p *Process) Signal(s os.Signal) error { return p.process.Signal(s) }

// Done is closed once the child has ended and been reaped.
func (p *Process) Done() <-chan struct{} { return p.done }

// Err is how the child ended: nil for exit code 0. Call it after Done is closed.
func (p *Process) Err() error { return p.err }

// errEnded means that the child has ended before it was ready.
var errEnded = errors.New("the process ended before it was ready")

// Await calls ready at once and then periodically, until it returns true. It fails when the
// child or ctx ends first.
func (p *Process) Await(ctx context.Context, every time.Duration, ready func() bool) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for !ready() {
		select {
		case <-tick.C:
		case <-p.done:
			return errEnded
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// Stop sends s and waits until the child has ended. It kills the child after the timeout, and then
// returns true.
func (p *Process) Stop(s os.Signal, timeout time.Duration) (killed bool) {
	_ = p.Signal(s) // fails only when it is already gone
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-p.done:
		return false
	case <-timer.C:
		p.Kill()
		return true
	}
}

// Kill sends SIGKILL and waits until the child is gone.
func (p *Process) Kill() {
	_ = p.process.Kill() // fails only when it is already gone
	<-p.done
}
