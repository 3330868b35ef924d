package history

import "spendhook/internal/partition"

// companiesKey is the companies of partition p that have events. Type: sorted
// set, company by the ms of its last accepted event. Writer: accept.lua, which
// also drops those without an event within retention. TTL: none.
func companiesKey(p int) string { return partition.Prefix(p) + "companies" }
