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
)

// Errors that callers check for.
var (
	// ErrNotFound says that a type is unknown, or has no stored documentation to remove.
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
