// Package syntax has the syntax of event types and of patterns of them, and checks the nesting of JSON.
package syntax

import "strings"

// MaxEventType is the maximum number of characters of an event type, and of a pattern.
const MaxEventType = 128

// EventType reports whether name matches [A-Za-z0-9][A-Za-z0-9_.:-]{0,127}.
func EventType(name string) bool {
	for i, c := range []byte(name) {
		alphanumeric := c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z' || c >= '0' && c <= '9'
		if !alphanumeric && (i == 0 || c != '_' && c != '.' && c != ':' && c != '-') {
			return false
		}
	}
	return name != "" && len(name) <= MaxEventType
}

// EventPattern reports whether text is an event type, or the start of one and then a star, or a star.
func EventPattern(text string) bool {
	start, star := strings.CutSuffix(text, "*")
	return EventType(start) && len(text) <= MaxEventType || star && start == ""
}

// MatchesEvent reports whether an event type matches a pattern: it is the pattern, or begins with what is
// before the pattern's star.
func MatchesEvent(pattern, name string) bool {
	start, star := strings.CutSuffix(pattern, "*")
	return pattern == name || star && strings.HasPrefix(name, start)
}

// MatchesAnyEvent reports whether an event type matches one of the patterns, or there are none.
func MatchesAnyEvent(patterns []string, name string) bool {
	for _, p := range patterns {
		if MatchesEvent(p, name) {
			return true
		}
	}
	return len(patterns) == 0
}

// NestsDeeper reports whether objects and arrays in text are nested more than limit deep. The
// text need not be valid JSON.
func NestsDeeper(text []byte, limit int) bool {
	depth, quoted := 0, false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case quoted && c == '\\':
			i++ // the escaped character
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{' || c == '[':
			if depth++; depth > limit {
				return true
			}
		case c == '}' || c == ']':
			depth--
		}
	}
	return false
}
