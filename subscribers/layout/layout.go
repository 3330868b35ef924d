// Package layout is how subscribers lie in Redis: the keys that more than one package
// uses, and the Lua that their scripts share.
package layout

import (
	_ "embed" // the Lua
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/internal/partition"
)

// The fields of CompanyKey that are not a subscriber.
const (
	// VersionField is the version of the company's subscribers: an integer that grows
	// with every change. No field means that the company has none.
	VersionField = "v"
	// CertificateField is the company's egress certificate, JSON.
	CertificateField = "c"
)

// CompanyKey names the hash of a company's subscribers: uuid to JSON,
// VersionField and CertificateField. The claim of an event reads the version in its
// own round trip.
func CompanyKey(company uuid.UUID) string { return partition.Key(company, "s:"+company.String()) }

// URLsKey names the hash of a company's callback URLs to subscriber uuids.
func URLsKey(company uuid.UUID) string { return partition.Key(company, "su:"+company.String()) }

// CompaniesKey names the set of the companies of a partition that have
// subscribers.
func CompaniesKey(p int) string { return partition.Prefix(p) + "sc" }

// HealthKey names the hash with the health of a subscriber.
func HealthKey(company, subscriber uuid.UUID) string {
	return partition.Key(company, "sh:"+subscriber.String())
}

// VersionLife is how long the version of a company without subscribers is
// kept. Were it dropped at once, a Redis clock that stepped back could give
// out an old version again.
const VersionLife = 24 * time.Hour

//go:embed lua/version.lua
var versionLua string

// VersionLua is how scripts raise the version of a company that they change.
func VersionLua() string { return versionLua }

// CheckLua refuses a script where this build cannot read the partition of its
// first key.
const CheckLua = "check({string.match(KEYS[1], '^.-}:')})\n"

// NewScript makes a script that writes keys of one partition and moves no work. It
// begins with CheckLua.
func NewScript(source string) *redis.Script {
	return redis.NewScript(partition.FormatLua() + CheckLua + source)
}
