package workqueue

import (
	_ "embed" // the scripts

	"spendhook/dispatcher/workqueue/queues"
	"spendhook/internal/partition"
)

var (
	//go:embed lua/claim.lua
	claimSource string
	//go:embed lua/requeue.lua
	requeueSource string
	//go:embed lua/promote.lua
	promoteSource string
	//go:embed lua/endjob.lua
	endJobSource string
	//go:embed lua/heartbeat.lua
	heartbeatSource string
)

var (
	claimScript     = queues.Script(claimSource, true)
	requeueScript   = queues.Script(requeueSource, true)
	promoteScript   = queues.Script(promoteSource, true)
	endJobScript    = queues.Script(endJobSource, true)
	heartbeatScript = queues.Script(heartbeatSource, true)
)

// replicasKey is the sorted set of the last heartbeats in a shard. p is the shard's first partition.
func replicasKey(p int) string { return partition.Prefix(p) + "replicas" }

// readsKey is the hash of the stored formats that the replicas of replicasKey can read.
func readsKey(p int) string { return partition.Prefix(p) + "reads" }
