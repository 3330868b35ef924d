//go:build !faults

package main

import "time"

// What the crash tests send, and how long that may take to arrive.
const (
	manyEvents       = 2000
	deliveryPatience = 2 * time.Minute
)

// bulkDatabases are those on which bulk creations are killed.
var bulkDatabases = []string{"sqlite"}
