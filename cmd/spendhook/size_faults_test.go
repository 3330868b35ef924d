//go:build faults

package main

import "time"

// What the crash tests send, and how long that may take to arrive.
const (
	manyEvents       = 20_000
	deliveryPatience = 8 * time.Minute
)

// kills is how often a daemon is killed under load.
const kills = 20

// redisPause is how long a Redis that is alive does not answer.
const redisPause = 10 * time.Second

// redisMemory is what a Redis has that one company fills, in bytes.
const redisMemory = 150 << 20

// bulkDatabases are those on which bulk creations are killed.
var bulkDatabases = []string{"sqlite", "postgres"}
