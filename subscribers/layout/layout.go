// Package layout defines how subscribers are stored in Redis: the keys that more than one
// package uses, and the Lua that their scripts share.
package layout

import (
	_ "embed" // the Lua
	"strings"

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
	// SigningKeysField is the list of the company's keys for asymmetric signatures, sealed.
	SigningKeysField = "k"
)

// ownCertificate begins the fields with the egress certificates of single subscribers.
const ownCertificate = "cs:"

// CertificateFieldOf names the egress certificate of a subscriber; that of the company for uuid.Nil.
func CertificateFieldOf(subscriber uuid.UUID) string {
	if subscriber == uuid.Nil {
		return CertificateField
	}
	return ownCertificate + subscriber.String()
}

// ParseCertificateField returns the subscriber of a field of CertificateFieldOf. It reports whether the field
// is one.
func ParseCertificateField(field string) (subscriber uuid.UUID, ok bool) {
	if field == CertificateField {
		return uuid.Nil, true
	}
	id, own := strings.CutPrefix(field, ownCertificate)
	subscriber, err := uuid.Parse(id)
	return subscriber, own && err == nil
}

// CompanyKey names the hash of a company's subscribers: uuid to JSON, and the fields above and of CertificateFieldOf. The
// script that reads an event for its owner also reads the version.
func CompanyKey(company uuid.UUID) string { return partition.Key(company, "s:"+company.String()) }

// URLsKey names the hash of a company's callback URLs to subscriber uuids.
func URLsKey(company uuid.UUID) string { return partition.Key(company, "su:"+company.String()) }

// CompaniesKey names the set of the companies of a partition that have
// subscribers.
func CompaniesKey(p int) string { return partition.Prefix(p) + "sc" }

// UnverifiedKey names the set of the subscribers of a partition, as <company>/<subscriber>, that wait for the
// verification of their callback URL.
func UnverifiedKey(p int) string { return partition.Prefix(p) + "uv" }

// ToldKey names the hash of the subscribers of a partition that have contacts, as <company>/<subscriber>, to what the
// contacts were told.
func ToldKey(p int) string { return partition.Prefix(p) + "ct" }

// ContactsKey names the hash of what is known of a company's contacts: who was asked, has confirmed, has unsubscribed.
func ContactsKey(company uuid.UUID) string { return partition.Key(company, "cm:"+company.String()) }

// HealthKey names the hash with the health of a subscriber.
func HealthKey(company, subscriber uuid.UUID) string {
	return partition.Key(company, "sh:"+subscriber.String())
}

//go:embed lua/version.lua
var versionLua string

// VersionLua defines the function touch, with which scripts raise the version of a company's
// subscribers.
func VersionLua() string { return versionLua }

// CheckLua begins a script of package queues. It refuses the script when this build cannot read
// the stored format of the partition that the first key belongs to.
const CheckLua = "check({string.match(KEYS[1], '^.-}:')})\n"

// NewScript makes a script that writes keys of one partition and moves no work. It
// begins with CheckLua.
func NewScript(source string) *redis.Script {
	return redis.NewScript(partition.FormatLua() + CheckLua + source)
}
