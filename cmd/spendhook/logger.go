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
	_ = level.UnmarshalText([]byte(cfg.Level)) // config allows no other text
	return level
}

// newLogger returns a logger with the configured format and level. The format "auto" is colour
// on a terminal, and JSON elsewhere. While spans are exported, log records have their ids.
func newLogger(out io.Writer, cfg config.Log, level slog.Leveler) *slog.Logger {
	var handler slog.Handler = slog.NewJSONHandler(out, &slog.HandlerOptions{Level: level})
	if cfg.Format == "text" || cfg.Format == "color" || cfg.Format == "auto" && terminal.Is(out) {
		colors := cfg.Format == "color" || cfg.Format == "auto" && terminal.Colors(out)
		handler = tint.NewTextHandler(out, &tint.Options{Level: level, TimeFormat: "15:04:05.000", NoColor: !colors})
	}
	if tracing.Enabled() {
		handler = tracing.LogHandler(handler)
	}
	return slog.New(handler)
}
