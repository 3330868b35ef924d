package config

import "log/slog"

const redacted = "[redacted]"

// Secret is a setting that must not be seen: however it is printed, encoded or
// logged, it says [redacted].
type Secret string

// Reveal returns the secret itself.
func (s Secret) Reveal() string { return string(s) }

// String hides the secret from fmt.
func (s Secret) String() string { return redacted }

// GoString hides the secret from %#v.
func (s Secret) GoString() string { return redacted }

// MarshalJSON hides the secret from encoding/json.
func (s Secret) MarshalJSON() ([]byte, error) { return []byte(`"` + redacted + `"`), nil }

// MarshalYAML hides the secret from yaml.
func (s Secret) MarshalYAML() (any, error) { return redacted, nil }

// LogValue hides the secret from slog.
func (s Secret) LogValue() slog.Value { return slog.StringValue(redacted) }
