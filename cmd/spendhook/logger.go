package main

import (
	"io"
	"log/slog"

	"github.com/lmittmann/tint"

	"spendhook/config"
	"spendhook/internal/terminal"
)

// newLogger writes as the settings say; "auto" is colour on a terminal and
// JSON elsewhere.
func newLogger(out io.Writer, cfg config.Log) *slog.Logger {
	var level slog.Level
	if level.UnmarshalText([]byte(cfg.Level)) != nil { // config allows none of these
		level = slog.LevelInfo
	}
	switch shown := terminal.Is(out); {
	case cfg.Format == "text", cfg.Format == "color", cfg.Format == "auto" && shown:
		return slog.New(tint.NewTextHandler(out, &tint.Options{
			Level: level, TimeFormat: "15:04:05.000", NoColor: cfg.Format == "text" || (cfg.Format == "auto" && !terminal.Colors(out)),
		}))
	}
	return slog.New(slog.NewJSONHandler(out, &slog.HandlerOptions{Level: level}))
}
