package main

import (
	"log/slog"

	"spendhook/config"
	"spendhook/internal/clienttls"
	"spendhook/internal/redisx"
)

// redisOptions are for the Redis of the settings.
func redisOptions(cfg *config.Config, log *slog.Logger) redisx.Options {
	return redisx.Options{
		URL: cfg.Redis.URL.Reveal(), DataDir: cfg.DataDir, FullSync: cfg.Redis.FullSync, Logger: log,
		TLS: &clienttls.Files{CA: cfg.Redis.CAFile, Cert: cfg.Redis.CertFile, Key: cfg.Redis.KeyFile},
	}
}

// attachOptions are redisOptions for a command beside a daemon.
func attachOptions(cfg *config.Config) redisx.Options {
	o := redisOptions(cfg, nil)
	o.Attach = true
	return o
}
