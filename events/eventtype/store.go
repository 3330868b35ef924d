package eventtype

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/redis/go-redis/v9"

	"spendhook/internal/invalid"
)

// Errors that callers check for.
var (
	// ErrNotFound says that a type is unknown or, from Remove, that the type has no stored
	// documentation.
	ErrNotFound = errors.New("unknown event type")
	// ErrFixed says that the daemon defines the type, so that it cannot be changed.
	ErrFixed = errors.New("the event type is one of the daemon's own")
	// ErrFull says that the number of types, or their bytes, has reached the limit.
	ErrFull = errors.New("no more event types can be kept")
)

// typesKey is the hash of all documented types: name to JSON. Its hash tag is its own.
const typesKey = "sh:{event-types}:all"

// The bounds of the hash. Concurrent calls of Put may exceed maxTypes and maxBytes by a few types.
const (
	maxTypes       = 1000
	maxBytes       = 1 << 20  // of all types
	maxTypeBytes   = 64 << 10 // of one
	maxDescription = 4000     // characters
)

// Store keeps the documentation of event types. It is safe for concurrent use; its methods block
// for round trips to Redis.
type Store struct {
	client    redis.UniversalClient
	catalogue *Catalogue
	now       func() time.Time
}

// NewStore returns a Store. It also lists the types of the catalogue.
func NewStore(client redis.UniversalClient, catalogue *Catalogue, now func() time.Time) *Store {
	return &Store{client: client, catalogue: catalogue, now: now}
}

// List returns all types by name. A type with damaged documentation has the documentation of the
// catalogue, or is left out.
func (s *Store) List(ctx context.Context) ([]Type, error) {
	kept, err := s.client.HGetAll(ctx, typesKey).Result()
	if err != nil {
		return nil, fmt.Errorf("list event types: %w", err)
	}
	types := maps.Clone(s.catalogue.known())
	for name, text := range kept {
		if t, err := decode(name, text); err == nil && !fixed(name) {
			types[name] = t
		}
	}
	return sorted(types), nil
}

// Get returns a type, or ErrNotFound.
func (s *Store) Get(ctx context.Context, name string) (Type, error) {
	text, err := s.client.HGet(ctx, typesKey, name).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		return Type{}, fmt.Errorf("read event type: %w", err)
	}
	if text != "" && !fixed(name) {
		return decode(name, text)
	}
	if t, ok := s.catalogue.known()[name]; ok {
		return t, nil
	}
	return Type{}, ErrNotFound
}

func decode(name, text string) (Type, error) {
	t := Type{Name: name}
	if err := json.Unmarshal([]byte(text), &t); err != nil {
		return Type{}, fmt.Errorf("decode event type: %w", err)
	}
	return t, nil
}

// Put stores or replaces the description, the schema and the example of a type. It returns the
// stored type, and whether the type is new. The error may be an *invalid.Error, ErrFixed or ErrFull.
func (s *Store) Put(ctx context.Context, t Type) (kept Type, added bool, err error) {
	if fixed(t.Name) {
		return Type{}, false, ErrFixed
	}
	if err := check(&t); err != nil {
		return Type{}, false, err
	}
	t.UpdatedAt = s.now().UTC().Truncate(time.Millisecond)
	text, err := json.Marshal(t)
	if err != nil {
		return Type{}, false, fmt.Errorf("encode event type: %w", err)
	}
	if len(text) > maxTypeBytes {
		problems := &invalid.Error{}
		problems.Add("", "TOO_LONG", "a type may have %d bytes in all", maxTypeBytes)
		return Type{}, false, problems
	}
	all, err := s.client.HGetAll(ctx, typesKey).Result()
	if err != nil {
		return Type{}, false, fmt.Errorf("read event types: %w", err)
	}
	_, known := all[t.Name]
	all[t.Name] = string(text)
	bytes := 0
	for name, text := range all {
		bytes += len(name) + len(text)
	}
	if len(all) > maxTypes || bytes > maxBytes {
		return Type{}, false, ErrFull
	}
	if err := s.client.HSet(ctx, typesKey, t.Name, text).Err(); err != nil {
		return Type{}, false, fmt.Errorf("store event type: %w", err)
	}
	return t, !known, nil
}

// Remove removes the stored documentation of a type; its entry in the catalogue stays. The error
// may be ErrNotFound or ErrFixed.
func (s *Store) Remove(ctx context.Context, name string) error {
	if fixed(name) {
		return ErrFixed
	}
	known, err := s.client.HExists(ctx, typesKey, name).Result()
	switch {
	case err != nil:
		return fmt.Errorf("read event type: %w", err)
	case !known:
		return ErrNotFound
	}
	if err := s.client.HDel(ctx, typesKey, name).Err(); err != nil {
		return fmt.Errorf("remove event type: %w", err)
	}
	return nil
}

// check returns the problems of a type. It also compacts the schema and the example.
func check(t *Type) error {
	problems := &invalid.Error{}
	checkName(problems, "name", t.Name)
	if utf8.RuneCountInString(t.Description) > maxDescription {
		problems.Add("description", "TOO_LONG", "must have at most %d characters", maxDescription)
	}
	if strings.TrimSpace(t.Description) == "" {
		problems.Add("description", "REQUIRED", "is required")
	}
	checkObject(problems, "schema", &t.Schema)
	checkObject(problems, "example", &t.Example)
	if len(problems.Fields) == 0 && len(t.Schema) > 0 {
		if err := compile(t.Schema); err != nil {
			addError(problems, err)
		}
	}
	return problems.OrNil()
}

func checkObject(problems *invalid.Error, field string, value *jsontext.Value) {
	if len(*value) == 0 {
		return
	}
	if value.Kind() != jsontext.KindBeginObject {
		problems.Add(field, "INVALID", "must be an object")
		return
	}
	*value = value.Clone()
	if err := value.Compact(); err != nil {
		problems.Add(field, "INVALID", "must be JSON")
	}
}
