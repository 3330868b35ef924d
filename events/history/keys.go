package history

import "spendhook/internal/partition"

// companiesKey is the companies of partition p that have events; see docs/redis.md.
func companiesKey(p int) string { return partition.Prefix(p) + "companies" }
