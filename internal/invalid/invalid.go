// Package invalid carries everything that is wrong with an input in one error,
// so that a caller mends it in one go.
package invalid

import (
	"fmt"
	"strings"
)

// Field is one thing that is wrong. Field is the path of the offending member
// ("" for the whole input), Code is stable and upper snake (REQUIRED, INVALID,
// TOO_LONG, ...), Message is for people and never repeats a secret.
type Field struct {
	Field, Code, Message string
}

// Error lists what is wrong with an input. Build it with Add and return OrNil.
// It is not safe for concurrent use.
type Error struct {
	Fields []Field
}

// Add notes one more problem; the message is made as by fmt.Sprintf.
func (e *Error) Add(field, code, format string, args ...any) {
	e.Fields = append(e.Fields, Field{Field: field, Code: code, Message: fmt.Sprintf(format, args...)})
}

// OrNil returns e when it has a problem to tell, else an untyped nil.
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
