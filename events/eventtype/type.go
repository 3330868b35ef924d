// Package eventtype manages event types. The catalogue has the built-in types and those of the
// settings, and decides which types may be used. The store has their documentation: a
// description, a schema of the metadata and an example. Documentation has no effect on which
// events are accepted.
package eventtype

import (
	_ "embed" // the built-in types
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"spendhook/internal/invalid"
	"spendhook/internal/syntax"
)

// Type describes an event type. Its JSON form is its stored documentation.
type Type struct {
	Name        string         `json:"-"`
	Description string         `json:"description,omitempty"`
	Schema      jsontext.Value `json:"schema,omitempty"`   // of the metadata, an object in JSON Schema 2020-12; nil: not known
	Example     jsontext.Value `json:"example,omitempty"`  // of the metadata; nil: none
	UpdatedAt   time.Time      `json:"updatedAt,omitzero"` // zero: no stored documentation
	Fixed       bool           `json:"-"`                  // the daemon defines the type
}

//go:embed builtin.json
var builtinText []byte

// builtin has the types of section 6 of the interface specification and the operational types.
var builtin = sync.OnceValue(func() (known map[string]Type) {
	if err := json.Unmarshal(builtinText, &known); err != nil {
		panic("builtin.json: " + err.Error())
	}
	return known
})

// fixed reports whether the daemon defines a type: the type is built in with a schema, or reserved.
func fixed(name string) bool { return len(builtin()[name].Schema) > 0 || Reserved(name) }

// The types of operational events, which the daemon itself raises about subscribers and
// deliveries (see package operational).
const (
	SubscriberDisabled  = "SUBSCRIBER_DISABLED"
	SubscriberFailing   = "SUBSCRIBER_FAILING"
	SubscriberRecovered = "SUBSCRIBER_RECOVERED"
	DeliveryDead        = "DELIVERY_DEAD"
)

// Reserved reports whether name is a type that only the daemon itself raises, now
// or in a later release.
func Reserved(name string) bool {
	return strings.HasPrefix(name, "SUBSCRIBER_") || name == DeliveryDead
}

// Catalogue has the known event types. It is immutable and safe for concurrent use. A nil
// Catalogue has the built-in types and allows any type.
type Catalogue struct {
	types  map[string]Type
	strict bool
}

// NewCatalogue returns a catalogue of the built-in types and extra ones. An extra type with the
// name of a built-in one replaces its description. A strict catalogue allows no other names.
func NewCatalogue(extra []Type, strict bool) *Catalogue {
	c := &Catalogue{types: maps.Clone(builtin()), strict: strict}
	for _, e := range extra {
		t := c.types[e.Name]
		t.Description = e.Description
		c.types[e.Name] = t
	}
	for name, t := range c.types {
		t.Name, t.Fixed = name, fixed(name)
		c.types[name] = t
	}
	return c
}

func (c *Catalogue) known() map[string]Type {
	if c == nil {
		c = NewCatalogue(nil, false)
	}
	return c.types
}

// Types lists the known types by name, without stored documentation.
func (c *Catalogue) Types() []Type { return sorted(c.known()) }

func sorted(types map[string]Type) []Type {
	return slices.SortedFunc(maps.Values(types), func(a, b Type) int { return strings.Compare(a.Name, b.Name) })
}

func (c *Catalogue) allows(name string) bool {
	if c == nil || !c.strict {
		return true
	}
	_, known := c.types[name]
	return known
}

// Check adds a problem unless events may have the type name. A strict catalogue allows only known types.
func (c *Catalogue) Check(problems *invalid.Error, field, name string) {
	switch {
	case name == "":
		problems.Add(field, "REQUIRED", "is required")
	case !checkName(problems, field, name):
	case !c.allows(name):
		problems.Add(field, "UNKNOWN_EVENT_TYPE", "is not in the event catalogue")
	}
}

// CheckPattern adds a problem unless subscribers may have the pattern: a type that Check allows, or a
// pattern that matches other types than operational ones, in a strict catalogue a known one.
func (c *Catalogue) CheckPattern(problems *invalid.Error, field, pattern string) {
	start, star := strings.CutSuffix(pattern, "*")
	switch {
	case !star:
		c.Check(problems, field, pattern)
	case !syntax.EventPattern(pattern):
		problems.Add(field, "INVALID", "must be an event type, or the start of one and then *")
	case Reserved(start):
		problems.Add(field, "INVALID", "matches operational events only, which must be listed by name")
	case c != nil && c.strict && !slices.ContainsFunc(c.Types(), func(t Type) bool { return Matches(pattern, t.Name) }):
		problems.Add(field, "UNKNOWN_EVENT_TYPE", "matches nothing in the event catalogue")
	}
}

// Matches reports whether a subscriber with the pattern gets events of a type. Operational events match
// only by name, so that a subscriber to everything does not get the troubles of others.
func Matches(pattern, name string) bool {
	return pattern == name || !Reserved(name) && syntax.MatchesEvent(pattern, name)
}

func checkName(problems *invalid.Error, field, name string) bool {
	valid := syntax.EventType(name)
	if !valid {
		problems.Add(field, "INVALID", "must be a letter or digit, then up to 127 of A-Z, a-z, 0-9, _, ., : and -")
	}
	return valid
}
