// Package child runs a child process that ends when its parent ends.
package child

import (
	"os"
	"os/exec"
	"runtime"
)

// Process is a running child. Its methods are safe for concurrent use.
type Process struct {
	process *os.Process
	done    chan struct{}
	err     error
}

// Start runs cmd. On Linux the kernel kills the child when this process ends, for any
// reason. That signal is bound to the thread that started the child,
// so one goroutine keeps its thread locked for as long as the child lives.
func Start(cmd *exec.Cmd) (*Process, error) {
	p := &Process{done: make(chan struct{})}
	dieWithParent(cmd)
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

// Kill sends SIGKILL and waits until the child is gone.
func (p *Process) Kill() {
	_ = p.process.Kill() // fails only when it is already gone
	<-p.done
}
