// Package syntax checks the syntax of event types, and the nesting of JSON.
package syntax

// MaxEventType is the maximum number of characters of an event type.
const MaxEventType = 64

// EventType reports whether name matches [A-Z][A-Z0-9_]{0,63}.
func EventType(name string) bool {
	for i, c := range []byte(name) {
		letter := c >= 'A' && c <= 'Z'
		if !letter && (i == 0 || c != '_' && (c < '0' || c > '9')) {
			return false
		}
	}
	return name != "" && len(name) <= MaxEventType
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
