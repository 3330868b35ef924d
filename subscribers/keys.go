package subscribers

import (
	"github.com/google/uuid"

	"spendhook/internal/partition"
)

// companiesKey names the set of the companies of a partition that have
// subscribers.
func companiesKey(p int) string { return partition.Prefix(p) + "sc" }

// healthKey names the hash with the health of a subscriber.
func healthKey(company, subscriber uuid.UUID) string {
	return partition.Key(company, "sh:"+subscriber.String())
}

// failingKey names the sorted set of a company's subscribers that are failing, by the
// unix ms of the last sample that says so.
func failingKey(company uuid.UUID) string { return partition.Key(company, "fs:"+company.String()) }
