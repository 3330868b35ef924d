package child

import (
	"os/exec"
	"syscall"
)

// dieWithParent can only separate the process groups here.
func dieWithParent(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{CreationFlags: syscall.CREATE_NEW_PROCESS_GROUP}
}
