package child

import (
	"os/exec"
	"syscall"
)

// endWithParent also gives the child a process group of its own, so that Ctrl-C in a terminal reaches
// only the daemon, which then stops the child.
func endWithParent(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
}
