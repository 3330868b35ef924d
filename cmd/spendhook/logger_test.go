package main

import (
	"errors"
	"log/slog"
	"strings"
	"testing"

	"spendhook/config"
)

// Answers of receivers and texts of emitters are in the log. In no format may they change a terminal.
func TestLogHasNoControlCharactersOfOthers(t *testing.T) {
	t.Parallel()
	const evil = "\x1b[2J\u202e\u009b\x7fgone"
	for _, format := range []string{"color", "text", "json"} {
		out := &lockedBuffer{}
		log := newLogger(out, config.Log{Format: format, Level: "info"}, slog.LevelInfo)
		log.Info("m", "a", evil, "exception.message", errors.New(evil), "list", []string{evil}, slog.Group("g", "b", evil))
		if got := out.String(); strings.ContainsAny(strings.TrimSuffix(got, "\n"), "\x7f\u009b\u202e\n") || strings.Contains(got, "\x1b[2J") || strings.Count(got, "gone") < 4 {
			t.Errorf("%s: %q", format, got)
		}
	}
}
