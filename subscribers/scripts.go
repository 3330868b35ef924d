package subscribers

import (
	_ "embed"

	"github.com/redis/go-redis/v9"

	"spendhook/dispatcher/workqueue/queues"
	"spendhook/events/operational"
	"spendhook/internal/partition"
)

var (
	//go:embed lua/version.lua
	versionLua string
	//go:embed lua/create.lua
	createLua string
	//go:embed lua/update.lua
	updateLua string
	//go:embed lua/delete.lua
	deleteLua string
	//go:embed lua/health.lua
	healthLua string
	//go:embed lua/pause.lua
	pauseLua string
	//go:embed lua/resume.lua
	resumeLua string
	//go:embed lua/signingkey.lua
	signingKeyLua string
	//go:embed lua/certificate.lua
	certificateLua string
	//go:embed lua/uncertificate.lua
	uncertificateLua string
	//go:embed lua/reseal.lua
	resealLua string
	//go:embed lua/resealkey.lua
	resealKeyLua string

	createScript     = queues.Script(versionLua+checkLua+createLua, false)
	updateScript     = queues.Script(versionLua+operational.Lua()+checkLua+updateLua, true)
	deleteScript     = queues.Script(versionLua+checkLua+deleteLua, true)
	healthScript     = queues.Script(operational.Lua()+checkLua+healthLua, true)
	pauseScript      = queues.Script(checkLua+pauseLua, true)
	resumeScript     = queues.Script(checkLua+resumeLua, true)
	signingKeyScript = newScript(signingKeyLua)

	certificateScript   = newScript(versionLua + certificateLua)
	uncertificateScript = newScript(versionLua + uncertificateLua)
	resealScript        = newScript(versionLua + resealLua)
	resealKeyScript     = newScript(resealKeyLua)
)

// checkLua refuses a script where this build cannot read the partition of its
// first key.
const checkLua = "check({string.match(KEYS[1], '^.-}:')})\n"

func newScript(source string) *redis.Script {
	return redis.NewScript(partition.FormatLua() + checkLua + source)
}
