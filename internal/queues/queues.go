// Package queues has the Redis keys of retry sets, and the Lua functions of all
// scripts that move work.
package queues

import (
	_ "embed" // the functions

	"github.com/redis/go-redis/v9"

	"spendhook/internal/partition"
)

//go:embed lua/lib.lua
var lib string

// Script makes a script of source, which may call the functions of lua/lib.lua, and must first call
// check with the partitions that it writes. With whenFull, Redis runs the script even at its memory limit.
func Script(source string, whenFull bool) *redis.Script {
	head := "#!lua\n"
	if whenFull {
		head = "#!lua flags=allow-oom\n"
	}
	return redis.NewScript(head + partition.FormatLua() + lib + source)
}

// ReadScript makes a script of source like Script. It only reads: Redis runs it also while it refuses writes.
func ReadScript(source string) *redis.Script {
	return redis.NewScript("#!lua flags=no-writes\n" + partition.FormatLua() + lib + source)
}

// Keys returns the first keys of each call of a script that moves work of partition p: its
// due set, and a key that never exists.
func Keys(p int) []string { return []string{DueKey(p), AbsentKey(p)} }
