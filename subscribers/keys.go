package subscribers

import "spendhook/internal/partition"

// companiesKey names the set of the companies of a partition that have
// subscribers.
func companiesKey(p int) string { return partition.Prefix(p) + "sc" }
