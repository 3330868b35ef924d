// Package queues has the keys of the ready queues and endpoint queues in Redis, and the Lua functions
// that every script that moves work calls.
package queues

import (
	_ "embed" // the functions

	"github.com/redis/go-redis/v9"

	"spendhook/internal/partition"
)

//go:embed lua/lib.lua
var lib string

// Script makes a script of source that may call the functions of lua/lib.lua,
// and first calls check with the partitions that it writes. With whenFull it also runs while Redis is
// at its memory limit; Redis refuses all other scripts then.
func Script(source string, whenFull bool) *redis.Script {
	head := "#!lua\n"
	if whenFull {
		head = "#!lua flags=allow-oom\n"
	}
	return redis.NewScript(head + partition.FormatLua() + lib + source)
}

// Keys are what a call of a script that moves work of partition p must declare
// first, whatever else it declares: a real key, and one that never exists.
func Keys(p int) []string { return []string{DueKey(p), AbsentKey(p)} }
