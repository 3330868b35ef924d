package subscribers

import (
	_ "embed"

	"github.com/redis/go-redis/v9"

	"spendhook/dispatcher/workqueue"
	"spendhook/events"
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

	createScript     = redis.NewScript(versionLua + createLua)
	updateScript     = workqueue.Script(versionLua+events.NoticeLua()+updateLua, true)
	deleteScript     = redis.NewScript(versionLua + deleteLua)
	healthScript     = workqueue.Script(events.NoticeLua()+healthLua, true)
	signingKeyScript = redis.NewScript(signingKeyLua)

	certificateScript   = redis.NewScript(versionLua + certificateLua)
	uncertificateScript = redis.NewScript(versionLua + uncertificateLua)
	resealScript        = redis.NewScript(versionLua + resealLua)
	resealKeyScript     = redis.NewScript(resealKeyLua)
)
