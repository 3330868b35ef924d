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

// String returns "[redacted]", and "" for an empty secret.
func (t Text) String() string {
	if t == "" {
		return ""
	}
	return "[redacted]"
}

// Format writes String for every verb. For a wrong verb such as %d, fmt would otherwise ignore
// String and print the secret.
func (t Text) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, t.String()) }

// MarshalText returns String. JSON, YAML and logs use it.
func (t Text) MarshalText() ([]byte, error) { return []byte(t.String()), nil }
