// Package eventtype is what is known of event types: the catalogue, which names the
// built-in ones and those of the settings and decides what may be used, and what people
// documented: a description, the schema of the metadata and an example. The latter
// decides nothing.
package eventtype

import (
	_ "embed" // what is known of the daemon's own types
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// Errors that a caller branches on.
var (
	// ErrNotFound says that nothing is known of a type, or nothing that could be removed.
	ErrNotFound = errors.New("unknown event type")
	// ErrFixed says that a type is one of the daemon's own, which cannot be changed.
	ErrFixed = errors.New("the event type is one of the daemon's own")
	// ErrChanged says that what is kept of a type is not what the caller has read.
	ErrChanged = errors.New("the event type was changed meanwhile")
	// ErrFull says that there are as many types, or bytes of them, as may be.
	ErrFull = errors.New("no more event types can be kept")
)

// Type is what is known of an event type.
type Type struct {
	Name        string
	Description string
	Schema      jsontext.Value // of the metadata, an object in JSON Schema 2020-12; nil: not known
	Example     jsontext.Value // of the metadata; nil: none
	Fixed       bool           // it is one of the daemon's own
	UpdatedAt   time.Time      // zero: not documented here
	Revision    string         // names this state of what was documented here; "" when nothing was
}

//go:embed builtin.json
var builtinText []byte

// builtin is the schema and the example of the types that the daemon itself raises.
var builtin = sync.OnceValue(func() (known map[string]record) {
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

// merge is what is known of all types, by name: those of the catalogue, and those that
// were documented here.
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
	r := builtin()[info.Name]
	return Type{Name: info.Name, Description: info.Description, Schema: r.Schema, Example: r.Example, Fixed: fixed(info.Name)}
}
