// Package secret has a text type that is never printed, encoded or logged in clear.
package secret

import (
	"fmt"
	"io"
)

// Text is a secret. However it is printed, encoded or logged, it is "[redacted]", or
// nothing when it is empty.
type Text string

// Reveal returns the secret itself.
func (t Text) Reveal() string { return string(t) }

// String returns what is shown instead.
func (t Text) String() string {
	if t == "" {
		return ""
	}
	return "[redacted]"
}

// Format writes what is shown for every verb, also for a wrong one such as %d, for
// which fmt would ignore String and print the value.
func (t Text) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, t.String()) }

// MarshalText returns what is shown, also for JSON, YAML and logs.
func (t Text) MarshalText() ([]byte, error) { return []byte(t.String()), nil }
