// Package eventtype manages event types. The catalogue has the built-in types and those of the
// settings, and decides which types may be used. The store has their documentation: a
// description, a schema of the metadata and an example. Documentation has no effect on which
// events are accepted.
package eventtype

import (
	_ "embed" // the documentation of the daemon's own types
	"errors"
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

// Errors that callers check for.
var (
	// ErrNotFound says that a type is unknown, or that it has no stored documentation, which
	// Remove would remove.
	ErrNotFound = errors.New("unknown event type")
	// ErrFixed says that a type is one of the daemon's own, which cannot be changed.
	ErrFixed = errors.New("the event type is one of the daemon's own")
	// ErrChanged says that the stored type has changed since the caller has read it.
	ErrChanged = errors.New("the event type was changed meanwhile")
	// ErrFull says that the number of types, or their bytes, has reached the limit.
	ErrFull = errors.New("no more event types can be kept")
)

// Type describes an event type. Its JSON form is its stored documentation.
type Type struct {
	Name        string         `json:"-"`
	Description string         `json:"description,omitempty"`
	Schema      jsontext.Value `json:"schema,omitempty"`   // of the metadata, an object in JSON Schema 2020-12; nil: not known
	Example     jsontext.Value `json:"example,omitempty"`  // of the metadata; nil: none
	UpdatedAt   time.Time      `json:"updatedAt,omitzero"` // zero: not documented here
	Fixed       bool           `json:"-"`                  // it is one of the daemon's own
	Revision    string         `json:"-"`                  // identifies the stored version of the documentation; "" when there is none
}

//go:embed builtin.json
var builtinText []byte

// builtin has the schemas and examples of the types that the daemon itself raises.
var builtin = sync.OnceValue(func() (known map[string]Type) {
	if err := json.Unmarshal(builtinText, &known); err != nil {
		panic("builtin.json: " + err.Error()) // it is part of the program
	}
	return known
})

// fixed reports whether a type is the daemon's own. Names that are reserved for later
// releases are, too.
func fixed(name string) bool {
	_, ok := builtin()[name]
	return ok || Reserved(name)
}

// merge lists the types of the catalogue and the documented types, by name.
func merge(catalogue *Catalogue, kept map[string]Type) []Type {
	all := make(map[string]Type, len(kept))
	for _, info := range catalogue.Types() {
		all[info.Name] = known(info)
	}
	for name, t := range kept {
		if !fixed(name) {
			all[name] = t
		}
	}
	return slices.SortedFunc(maps.Values(all), func(a, b Type) int { return strings.Compare(a.Name, b.Name) })
}

// known is a type of the catalogue that was not documented here.
func known(info Type) Type {
	t := builtin()[info.Name]
	t.Name, t.Description, t.Fixed = info.Name, info.Description, fixed(info.Name)
	return t
}

// The types of operational events, which the daemon itself raises about subscribers and
// deliveries (see package operational).
const (
	SubscriberDisabled  = "SUBSCRIBER_DISABLED"
	SubscriberFailing   = "SUBSCRIBER_FAILING"
	SubscriberRecovered = "SUBSCRIBER_RECOVERED"
	DeliveryDead        = "DELIVERY_DEAD"
)

var operational = []Type{
	{Name: SubscriberDisabled, Description: "a subscriber was disabled because it kept failing or answered 410 Gone; raised by the daemon only"},
	{Name: SubscriberFailing, Description: "a subscriber has failed several attempts in a row; raised by the daemon only"},
	{Name: SubscriberRecovered, Description: "a subscriber that was failing accepted a delivery again; raised by the daemon only"},
	{Name: DeliveryDead, Description: "a delivery was given up after its last attempt; raised by the daemon only"},
}

// The types of section 6 of the interface specification.
var specified = []Type{
	{Name: "PAYMENT_PAID", Description: "a payment was paid"},
	{Name: "CARD_CREATION_REQUEST_CREATED", Description: "a card creation request was created"},
	{Name: "CARD_CREATION_REQUEST_ERROR", Description: "a card creation request failed; carries an error code and an error message"},
}

// IsOperational reports whether the daemon itself raises events of this type.
func IsOperational(name string) bool {
	return slices.ContainsFunc(operational, func(t Type) bool { return t.Name == name })
}

// Reserved reports whether name is a type that only the daemon itself raises, now
// or in a later release.
func Reserved(name string) bool {
	return strings.HasPrefix(name, "SUBSCRIBER_") || IsOperational(name)
}

// Catalogue has the known event types. It is immutable and safe for concurrent use; a nil
// Catalogue has the built-in types and allows any type.
type Catalogue struct {
	types  map[string]Type
	strict bool
}

// NewCatalogue holds the built-in types and extra ones, which may also redescribe a
// built-in type. A strict catalogue allows no other names.
func NewCatalogue(extra []Type, strict bool) *Catalogue {
	c := &Catalogue{types: map[string]Type{}, strict: strict}
	for _, t := range slices.Concat(specified, operational, extra) {
		c.types[t.Name] = t
	}
	return c
}

// Types lists the known types by name, each with its description only.
func (c *Catalogue) Types() []Type {
	if c == nil {
		c = NewCatalogue(nil, false)
	}
	return slices.SortedFunc(maps.Values(c.types), func(a, b Type) int { return strings.Compare(a.Name, b.Name) })
}

func (c *Catalogue) allows(name string) bool {
	if c == nil || !c.strict {
		return true
	}
	_, known := c.types[name]
	return known
}

// Check adds to problems if a field is no type that events and subscriptions may use: any when
// the catalogue is not strict, else only known ones.
func (c *Catalogue) Check(problems *invalid.Error, field, name string) {
	switch {
	case name == "":
		problems.Add(field, "REQUIRED", "is required")
	case !syntax.EventType(name):
		problems.Add(field, "INVALID", "must be an upper-case letter, then up to 63 of A-Z, 0-9 and _")
	case !c.allows(name):
		problems.Add(field, "UNKNOWN_EVENT_TYPE", "is not in the event catalogue")
	}
}
