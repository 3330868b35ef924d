package workqueue

import (
	_ "embed" // the scripts

	"github.com/redis/go-redis/v9"

	"spendhook/internal/partition"
)

var (
	//go:embed lua/lib.lua
	lib string
	//go:embed lua/claim.lua
	claimSource string
	//go:embed lua/requeue.lua
	requeueSource string
	//go:embed lua/promote.lua
	promoteSource string
	//go:embed lua/endjob.lua
	endJobSource string
	//go:embed lua/quarantine.lua
	quarantineSource string
	//go:embed lua/beat.lua
	beatSource string
)

var (
	claimScript      = Script(claimSource, true)
	requeueScript    = Script(requeueSource, true)
	promoteScript    = Script(promoteSource, true)
	endJobScript     = Script(endJobSource, true)
	quarantineScript = Script(quarantineSource, true)
	beatScript       = Script(beatSource, true)
)

// Script makes a script of source that may call the functions of lua/lib.lua,
// and calls check with the partitions that it writes, before all else.
// With whenFull it also runs while Redis is at its memory limit, where Redis
// refuses writes to every other script.
func Script(source string, whenFull bool) *redis.Script {
	head := "#!lua\n"
	if whenFull {
		head = "#!lua flags=allow-oom\n"
	}
	return redis.NewScript(head + partition.FormatLua() + lib + source)
}

// Keys are what a call of a script that moves work of partition p must declare
// first, whatever else it declares: a real key, and one that never exists.
func Keys(p int) []string { return []string{dueKey(p), absentKey(p)} }
