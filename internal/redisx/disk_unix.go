//go:build unix

package redisx

import "syscall"

// freeBytes is what the disk of dir has left; known is false where that cannot be told.
func freeBytes(dir string) (free uint64, known bool) {
	var disk syscall.Statfs_t
	if syscall.Statfs(dir, &disk) != nil {
		return 0, false
	}
	return disk.Bavail * uint64(disk.Bsize), true //nolint:gosec // a block has a size
}
