//go:build unix

package main

import "syscall"

// keepFilesPrivate has all files that this process and its children make be for their
// user alone: SQLite and redis-server make some by themselves.
func keepFilesPrivate() { syscall.Umask(0o077) }
