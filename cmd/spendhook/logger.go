package main

import (
	"io"
	"log/slog"

	"github.com/lmittmann/tint"

	"spendhook/config"
	"spendhook/internal/terminal"
	"spendhook/internal/tracing"
)

// logLevel returns the level of the settings.
func logLevel(cfg config.Log) slog.Level {
	var level slog.Level
	if level.UnmarshalText([]byte(cfg.Level)) != nil { // cannot happen: config allows no other text
		return slog.LevelInfo
	}
	return level
}

// serveLogger is newLogger that adds the trace to log records while spans are exported.
func serveLogger(out io.Writer, cfg config.Log, level slog.Leveler) *slog.Logger {
	log := newLogger(out, cfg, level)
	if tracing.Enabled() {
		return slog.New(tracing.LogHandler(log.Handler()))
	}
	return log
}

// newLogger returns a logger with the configured format and level. The format "auto" is colour
// on a terminal, and JSON elsewhere.
func newLogger(out io.Writer, cfg config.Log, level slog.Leveler) *slog.Logger {
	switch shown := terminal.Is(out); {
	case cfg.Format == "text", cfg.Format == "color", cfg.Format == "auto" && shown:
		return slog.New(tint.NewTextHandler(out, &tint.Options{
			Level: level, TimeFormat: "15:04:05.000", NoColor: cfg.Format == "text" || (cfg.Format == "auto" && !terminal.Colors(out)),
		}))
	}
	return slog.New(slog.NewJSONHandler(out, &slog.HandlerOptions{Level: level}))
}
