//go:build unix && !linux

package child

import (
	"os/exec"
	"syscall"
)

// endWithParent can only separate the process groups here: a child left over
// from a killed parent is found and stopped at the next start.
func endWithParent(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
}
