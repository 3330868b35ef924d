package subscribers

import (
	"strconv"

	"github.com/google/uuid"

	"spendhook/internal/partition"
)

// versionField is the field of companyKey with the version of the company's
// subscribers: an integer that grows with every change. No field means that
// the company has none.
const versionField = "v"

// certificateField is the field of companyKey with the company's egress
// certificate, JSON.
const certificateField = "c"

// companyKey names the hash of a company's subscribers: uuid to JSON,
// versionField and certificateField. The claim of an event reads the version in its
// own round trip.
func companyKey(company uuid.UUID) string { return key(company, "s:"+company.String()) }

// urlsKey names the hash of a company's callback URLs to subscriber uuids.
func urlsKey(company uuid.UUID) string { return key(company, "su:"+company.String()) }

// companiesKey names the set of the companies of a partition that have
// subscribers.
func companiesKey(partition int) string { return "sh:{" + strconv.Itoa(partition) + "}:sc" }

// certificatesKey names the sorted set of the companies of a partition that have
// an egress certificate, by its end in unix ms.
func certificatesKey(partition int) string { return "sh:{" + strconv.Itoa(partition) + "}:ec" }

// healthKey names the hash with the health of a subscriber.
func healthKey(company, subscriber uuid.UUID) string { return key(company, "sh:"+subscriber.String()) }

// failingKey names the sorted set of a company's subscribers that are failing, by the
// unix ms of the last sample that says so.
func failingKey(company uuid.UUID) string { return key(company, "fs:"+company.String()) }

// signingKey names the string with the sealed ed25519 seed of a company.
func signingKey(company uuid.UUID) string { return key(company, "wk:"+company.String()) }

func key(company uuid.UUID, rest string) string {
	return "sh:{" + strconv.Itoa(partition.Of(company)) + "}:" + rest
}
