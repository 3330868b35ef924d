package datadir

import "io/fs"

// Here modes and owners say nothing: the access list of the directory above decides.
const (
	others    = 0
	carefully = 0
)

func mine(fs.FileInfo) bool { return true }
