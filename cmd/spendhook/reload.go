package main

import (
	"context"
	"log/slog"
	"os"
	"sync"

	"spendhook/config"
)

// reloader reads the settings again and applies those that may change while the daemon
// runs. Safe for concurrent use, once the daemon has started.
type reloader struct {
	load  func() (*config.Config, error)
	level *slog.LevelVar
	log   *slog.Logger

	mu      sync.Mutex
	running config.Config
	steps   map[string]func(*config.Config) // by the setting that they apply
}

// reloaded names the changed settings.
type reloaded struct {
	Applied      []string `json:"applied"`
	NeedsRestart []string `json:"needsRestart"`
}

// apply registers the step that applies a setting.
func (r *reloader) apply(key string, step func(*config.Config)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.steps[key] = step
}

// reload applies the changed settings that can be applied, and names the others. Invalid
// settings change nothing and are an error.
func (r *reloader) reload() (reloaded, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	next, err := r.load()
	if err != nil {
		r.log.Error("settings not reloaded, those from before stay in use", "exception.message", err)
		return reloaded{}, err
	}
	done := reloaded{Applied: []string{}, NeedsRestart: []string{}}
	for _, key := range config.Changed(&r.running, next) {
		if step, known := r.steps[key]; known {
			step(next)
			config.Adopt(&r.running, next, key) // what needs a restart is named again the next time
			done.Applied = append(done.Applied, key)
		} else {
			done.NeedsRestart = append(done.NeedsRestart, key)
		}
	}
	r.log.Info("settings reloaded", "applied", done.Applied, "needs_restart", done.NeedsRestart)
	return done, nil
}

// follow reloads at each signal, until ctx ends.
func (r *reloader) follow(ctx context.Context, signals <-chan os.Signal) {
	for {
		select {
		case <-signals:
			_, _ = r.reload() // it is logged
		case <-ctx.Done():
			return
		}
	}
}

// followLimits makes reloads apply the limits of requests and of pending events.
func (d *daemon) followLimits() {
	rates := func(c *config.Config) { d.limits.Change(rateLimits(c.Limits)) }
	for _, key := range []string{"limits.client_rate", "limits.client_burst", "limits.company_rate", "limits.company_burst"} {
		d.reloader.apply(key, rates)
	}
	d.reloader.apply("limits.company_backlog", func(c *config.Config) { d.publisher.SetBacklog(c.Limits.CompanyBacklog) })
}
