//go:build unix

package redisx

import "syscall"

// freeBytes returns the free bytes of the disk of dir; known is false if the system does not report
// them.
func freeBytes(dir string) (free uint64, known bool) {
	var disk syscall.Statfs_t
	if syscall.Statfs(dir, &disk) != nil {
		return 0, false
	}
	return disk.Bavail * uint64(disk.Bsize), true //nolint:gosec // a block has a size
}
