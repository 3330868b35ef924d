package store

import "spendhook/internal/partition"

// docs/redis.md lists type, writer and time to live of each key.

// deadKey: zset delivery reference -> unix ms of its death; counts and purges.
func deadKey(p int) string { return partition.Prefix(p) + "dead" }

// compactKey: zset company -> unix ms at which its first settled event that compact.lua has
// not checked was settled.
func compactKey(p int) string { return partition.Prefix(p) + "compact" }
