package main

import (
	"errors"
	"log/slog"
	"strings"
	"sync"

	"spendhook/config"
)

// reloader has what a reload of the settings needs.
type reloader struct {
	load  func() (*config.Config, error)
	level *slog.LevelVar

	mu      sync.Mutex
	running *config.Config // nil until the daemon has started
}

// reloaded names the changed settings.
type reloaded struct {
	Applied      []string `json:"applied"`
	NeedsRestart []string `json:"needsRestart"`
}

var errStarting = errors.New(starting)

// reload reads the settings again, applies the changed ones that may change while the daemon runs,
// and names the others. Invalid settings change nothing and are an error.
func (d *daemon) reload() (reloaded, error) {
	r := d.reloader
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.running == nil {
		return reloaded{}, errStarting
	}
	next, err := r.load()
	if err != nil {
		d.log.Error("reload of the settings failed; the previous settings stay in use", "exception.message", err)
		return reloaded{}, err
	}
	done := reloaded{Applied: []string{}, NeedsRestart: []string{}}
	for _, key := range config.Changed(r.running, next) {
		if key == "log.level" || key == "egress.allow_cidrs" || strings.HasPrefix(key, "limits.") {
			config.Adopt(r.running, next, key) // what needs a restart is named again the next time
			done.Applied = append(done.Applied, key)
		} else {
			done.NeedsRestart = append(done.NeedsRestart, key)
		}
	}
	r.level.Set(logLevel(next.Log))
	d.egress.Allow(next.Egress.AllowCIDRs)
	d.limits.Change(rateLimits(next.Limits))
	d.publisher.SetBacklog(next.Limits.CompanyBacklog)
	d.log.Info("settings reloaded", "applied", done.Applied, "needs_restart", done.NeedsRestart)
	return done, nil
}

// started lets reloads begin.
func (r *reloader) started(cfg config.Config) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.running = &cfg
}
