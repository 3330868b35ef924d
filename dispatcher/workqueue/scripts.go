package workqueue

import (
	_ "embed" // the scripts

	"spendhook/internal/queues"
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
	//go:embed lua/suspect.lua
	suspectSource string
)

var (
	claimScript   = queues.Script(claimSource, true)
	requeueScript = queues.Script(requeueSource, true)
	promoteScript = queues.Script(promoteSource, true)
	endJobScript  = queues.Script(endJobSource, true)
	suspectScript = queues.Script(suspectSource, true)
)
