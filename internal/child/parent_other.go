//go:build unix && !linux

package child

import (
	"os/exec"
	"syscall"
)

// endWithParent only separates the process groups. These systems do not end the child of a killed
// parent: the child keeps its locks, and an operator must end it.
func endWithParent(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
}
