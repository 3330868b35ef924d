package child_test

import (
	"errors"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"spendhook/internal/child"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestChildSurvivesTheEndOfThreads ends many threads of this process: the parent-death signal
// of the child must not be bound to one of them.
func TestChildSurvivesTheEndOfThreads(t *testing.T) {
	t.Parallel()
	p, err := child.Start(exec.Command("cat")) // reads /dev/null and ends
	if err != nil {
		t.Fatal(err)
	}
	<-p.Done()
	if err := p.Err(); err != nil {
		t.Errorf("cat: %v", err)
	}

	p, err = child.Start(exec.Command("sleep", "600"))
	if err != nil {
		t.Fatal(err)
	}
	defer p.Kill()
	for range 20 {
		endThreads(20)
	}
	select {
	case <-p.Done():
		t.Fatalf("the child ended with a thread: %v", p.Err())
	default:
	}
}

// endThreads has n goroutines hold a thread each and end with it.
func endThreads(n int) {
	var held, done sync.WaitGroup
	held.Add(n)
	for range n {
		done.Go(func() {
			runtime.LockOSThread() // never unlocked: the thread ends
			held.Done()
			held.Wait()
		})
	}
	done.Wait()
}

func TestKill(t *testing.T) {
	t.Parallel()
	p, err := child.Start(exec.Command("sleep", "600"))
	if err != nil {
		t.Fatal(err)
	}
	p.Kill()
	p.Kill() // twice is no harm
	if p.Err() == nil {
		t.Error("a killed child ended well")
	}
	if err := p.Signal(syscall.SIGTERM); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("signal to a dead child: %v, want os.ErrProcessDone", err)
	}
	if err := syscall.Kill(p.Pid(), 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("the child's process: %v, want none", err)
	}
}

func TestStartReturnsTheReasonOfAFailure(t *testing.T) {
	t.Parallel()
	if _, err := child.Start(exec.Command("/no/such/program")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Start: %v, want os.ErrNotExist", err)
	}
}
