package subscribers

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"spendhook/events/eventtype"
	"spendhook/internal/invalid"
	"spendhook/internal/syntax"
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
		checkEvent(problems, catalogue, field, name)
		if seen[name] {
			problems.Add(field, "DUPLICATE", "is already in the list")
		}
		seen[name] = true
	}
}

func checkEvent(problems *invalid.Error, catalogue *eventtype.Catalogue, field, name string) {
	switch {
	case name == "":
		problems.Add(field, "REQUIRED", "is required")
	case !syntax.EventType(name):
		problems.Add(field, "INVALID", "must be an upper-case letter, then up to 63 of A-Z, 0-9 and _")
	case !catalogue.Allows(name):
		problems.Add(field, "UNKNOWN_EVENT_TYPE", "is not in the event catalogue")
	}
}
