// Package filelock locks files between processes. A lock is that of the open file: the
// kernel ends it when the file is closed or its process ends, however it ends.
package filelock

import "errors"

// ErrHeld is returned while another open file holds the lock.
var ErrHeld = errors.New("the file is locked")
