// Package invalid reports all problems of an input in one error, so that a client can fix them
// together.
package invalid

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// Field is one problem of an input. Field is the name of a member of the input, the JSON
// pointer (RFC 6901) to a deeper member, or "" for the whole input. Code is stable and upper
// snake (REQUIRED, INVALID, TOO_LONG, ...). Message is for people and never repeats a secret.
type Field struct {
	Field   string `json:"field"`
	Code    string `json:"code"`
	Message string `json:"message"`
}

// Error lists the problems of an input. Build it with Add and return OrNil.
// It is not safe for concurrent use.
type Error struct {
	Fields []Field
}

// Add adds a problem; the message is formatted as by fmt.Sprintf.
func (e *Error) Add(field, code, format string, args ...any) {
	e.Fields = append(e.Fields, Field{Field: field, Code: code, Message: fmt.Sprintf(format, args...)})
}

// OrNil returns e when it has a problem, else an untyped nil.
func (e *Error) OrNil() error {
	if e == nil || len(e.Fields) == 0 {
		return nil
	}
	return e
}

// Error joins the problems as "field: message; field: message".
func (e *Error) Error() string {
	parts := make([]string, len(e.Fields))
	for i, f := range e.Fields {
		parts[i] = f.Message
		if f.Field != "" {
			parts[i] = f.Field + ": " + f.Message
		}
	}
	return strings.Join(parts, "; ")
}

// MaxText is how many characters a text may have.
const MaxText = 255

// isText reports whether both databases can store s, and it is short enough.
func isText(s string) bool {
	return utf8.RuneCountInString(s) <= MaxText && utf8.ValidString(s) && strings.IndexByte(s, 0) < 0
}

// IsName reports whether s is text and not blank.
func IsName(s string) bool { return isText(s) && strings.TrimSpace(s) != "" }

// Text adds a problem when a value is no valid text or is too long.
func (e *Error) Text(field, value string) {
	if !isText(value) {
		e.Add(field, "INVALID", "must be text of at most %d characters", MaxText)
	}
}

// OneOf adds a problem when a value is none of those allowed, in any letter case.
func (e *Error) OneOf(field, value string, allowed ...string) {
	for _, a := range allowed {
		if strings.EqualFold(a, value) {
			return
		}
	}
	e.Add(field, "INVALID", "must be one of %s", strings.Join(allowed, ", "))
}
