package config

import "log/slog"

const redacted = "[redacted]"

// Secret is a setting that must not be seen: however it is printed, encoded or
// logged, it says [redacted], or nothing when it is empty.
type Secret string

// Reveal returns the secret itself.
func (s Secret) Reveal() string { return string(s) }

// String hides the secret from fmt.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return redacted
}

// GoString hides the secret from %#v.
func (s Secret) GoString() string { return s.String() }

// MarshalJSON hides the secret from encoding/json.
func (s Secret) MarshalJSON() ([]byte, error) { return []byte(`"` + s.String() + `"`), nil }

// MarshalYAML hides the secret from yaml.
func (s Secret) MarshalYAML() (any, error) { return s.String(), nil }

// LogValue hides the secret from slog.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }
