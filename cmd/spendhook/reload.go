package main

import (
	"slices"
	"strings"

	"spendhook/audit"
	"spendhook/config"
)

// reloaded is the result of a reload: the names of the changed settings.
type reloaded struct {
	Applied      []string `json:"applied"`
	NeedsRestart []string `json:"needsRestart"`
}

// reload reads the settings again and applies the changed ones that do not need a restart. Invalid
// settings are an error and change nothing.
func (d *daemon) reload(by audit.Actor, address string) (reloaded, error) {
	running := d.running.Load()
	if running == nil {
		return reloaded{}, errStarting
	}
	d.reloading.Lock()
	defer d.reloading.Unlock()
	next, err := d.load()
	if err != nil {
		d.log.Error("reload of the settings failed; the previous settings stay in use", "exception.message", err)
		return reloaded{}, err
	}
	done := reloaded{Applied: []string{}, NeedsRestart: []string{}}
	for _, key := range config.Changed(running, next) {
		if slices.Contains([]string{"log.level", "egress.allow_cidrs", "egress.addresses"}, key) ||
			strings.HasPrefix(key, "limits.client_") || slices.Contains([]string{"limits.company_rate", "limits.company_burst", "limits.company_backlog"}, key) {
			config.Adopt(running, next, key) // the next reload reports the other settings again
			done.Applied = append(done.Applied, key)
		} else {
			done.NeedsRestart = append(done.NeedsRestart, key)
		}
	}
	d.level.Set(logLevel(next.Log))
	d.egress.Allow(next.Egress.AllowCIDRs)
	d.publishAddresses(next)
	d.limits.Change(rateLimits(next.Limits))
	d.publisher.SetBacklog(next.Limits.CompanyBacklog)
	d.audit.Record(audit.Entry{
		Actor: by, Address: address, Action: "settings.reload", Target: audit.Target{Kind: "replica", IDs: []string{d.replica}},
		Fields: done.Applied, Outcome: audit.Success,
	})
	d.log.Info("settings reloaded", "applied", done.Applied, "needs_restart", done.NeedsRestart)
	return done, nil
}
