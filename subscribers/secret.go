package subscribers

import (
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"io"
	"log/slog"
)

const redacted = "[redacted]"

// Secret is a signing secret of Standard Webhooks: "whsec_" and the base64 of
// its bytes. Every way to print, log or encode it gives "[redacted]".
type Secret string

// Reveal returns the secret itself.
func (s Secret) Reveal() string { return string(s) }

// String returns "[redacted]".
func (s Secret) String() string { return redacted }

// Format writes "[redacted]" for every verb, also for a wrong one such as %d,
// for which fmt would ignore String and print the value.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, redacted) }

// MarshalText returns "[redacted]"; JSON encoders use it too.
func (s Secret) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// LogValue returns "[redacted]".
func (s Secret) LogValue() slog.Value { return slog.StringValue(redacted) }

// newSecret makes a secret of 32 random bytes (Standard Webhooks asks for
// 24 to 64).
func newSecret() Secret {
	var key [32]byte
	_, _ = rand.Read(key[:]) // never fails: it ends the program instead
	return Secret("whsec_" + base64.StdEncoding.EncodeToString(key[:]))
}
