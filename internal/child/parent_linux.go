package child

import (
	"os/exec"
	"syscall"
)

// endWithParent also takes the child out of the terminal's process group, so
// that Ctrl-C reaches the daemon alone, which then stops the child in order.
func endWithParent(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
}
