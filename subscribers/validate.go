package subscribers

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"spendhook/events/eventtype"
	"spendhook/internal/invalid"
)

const (
	maxName   = 200 // characters
	maxEvents = 100
)

func checkName(problems *invalid.Error, name string) {
	switch {
	case strings.TrimSpace(name) == "":
		problems.Add("name", "REQUIRED", "is required")
	case !utf8.ValidString(name) || strings.ContainsFunc(name, unicode.IsControl):
		problems.Add("name", "INVALID", "must be UTF-8 without control characters")
	case utf8.RuneCountInString(name) > maxName:
		problems.Add("name", "TOO_LONG", "must be at most %d characters", maxName)
	}
}

func checkEvents(problems *invalid.Error, catalogue *eventtype.Catalogue, names []string) {
	switch {
	case len(names) == 0:
		problems.Add("events", "REQUIRED", "must name at least one event")
		return
	case len(names) > maxEvents:
		problems.Add("events", "TOO_MANY", "must name at most %d events", maxEvents)
		return
	}
	seen := make(map[string]bool, len(names))
	for i, name := range names {
		field := "/events/" + strconv.Itoa(i)
		catalogue.CheckPattern(problems, field, name)
		if seen[name] {
			problems.Add(field, "DUPLICATE", "is already in the list")
		}
		seen[name] = true
	}
}
