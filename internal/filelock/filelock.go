// Package filelock locks files between processes. A lock belongs to the open file: the kernel
// releases it when the file is closed, or its process ends for any reason.
package filelock

import "errors"

// ErrHeld is returned while another open file holds the lock.
var ErrHeld = errors.New("the file is locked")
