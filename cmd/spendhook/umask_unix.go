//go:build unix

package main

import "syscall"

// keepFilesPrivate sets the umask, so that only the user can read the files that this process and its
// children create. SQLite and redis-server choose no mode themselves.
func keepFilesPrivate() { syscall.Umask(0o077) }
