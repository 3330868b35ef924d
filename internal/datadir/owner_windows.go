package datadir

import "io/fs"

// Here modes and owners say nothing: the access list of the directory above decides.
const (
	otherUsers = 0
	safeFlags  = 0
)

func isOwn(fs.FileInfo) bool { return true }
