package subscribers

import (
	_ "embed"

	"spendhook/dispatcher/workqueue"
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

	createScript = workqueue.Script(layout.VersionLua()+layout.CheckLua+createLua, false)
	updateScript = workqueue.Script(layout.VersionLua()+operational.Lua()+layout.CheckLua+updateLua, true)
	deleteScript = workqueue.Script(layout.VersionLua()+layout.CheckLua+deleteLua, true)
	pauseScript  = workqueue.Script(layout.CheckLua+pauseLua, true)
	resumeScript = workqueue.Script(layout.CheckLua+resumeLua, true)
	resealScript = layout.NewScript(layout.VersionLua() + resealLua)
)
