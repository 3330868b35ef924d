package subscribers

import (
	_ "embed"

	"spendhook/dispatcher/workqueue/queues"
	"spendhook/events/operational"
	"spendhook/subscribers/layout"
)

var (
	//go:embed lua/create.lua
	createLua string
	//go:embed lua/update.lua
	updateLua string
	//go:embed lua/delete.lua
	deleteLua string
	//go:embed lua/pause.lua
	pauseLua string
	//go:embed lua/resume.lua
	resumeLua string
	//go:embed lua/reseal.lua
	resealLua string

	createScript = queues.Script(layout.VersionLua()+layout.CheckLua+createLua, false)
	updateScript = queues.Script(layout.VersionLua()+operational.Lua()+layout.CheckLua+updateLua, true)
	deleteScript = queues.Script(layout.VersionLua()+layout.CheckLua+deleteLua, true)
	pauseScript  = queues.Script(layout.CheckLua+pauseLua, true)
	resumeScript = queues.Script(layout.CheckLua+resumeLua, true)
	resealScript = layout.NewScript(layout.VersionLua() + resealLua)
)
