package eventtype

import (
	"context"
	"crypto/sha1" //nolint:gosec // see revisionOf
	_ "embed"     // the scripts
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/redis/go-redis/v9"

	"spendhook/internal/invalid"
	"spendhook/internal/syntax"
)

// typesKey is the hash of all documented types: name to JSON, and in the field "#" the bytes of
// all names and texts. Its hash tag is its own. absentKey never exists.
const (
	typesKey  = "sh:{event-types}:all"
	absentKey = "sh:{event-types}:none"
	bytesName = "#"
)

const (
	maxTypes       = 1000
	maxBytes       = 1 << 20  // of all types
	maxTypeBytes   = 64 << 10 // of one
	maxDescription = 4000     // characters

	freshFor = time.Second
)

var (
	//go:embed lua/put.lua
	putSource string
	//go:embed lua/remove.lua
	removeSource string

	putScript    = redis.NewScript(putSource)
	removeScript = redis.NewScript(removeSource)
)

// Options configure a Store; all but Catalogue are required.
type Options struct {
	Client    redis.UniversalClient
	Catalogue *Catalogue // of the settings; nil has the built-in types
	Now       func() time.Time
	Logger    *slog.Logger
}

// Store keeps the documentation of event types. It is safe for concurrent use.
type Store struct {
	opts Options

	mu   sync.Mutex // guards what follows, and is held while the list is read
	list []Type     // nil when this replica has changed a type since it was read
	read time.Time
}

// NewStore returns a Store.
func NewStore(o Options) *Store { return &Store{opts: o} }

// List returns all types, by name. The list may be a second old, or older while Redis does not
// answer, but always includes the changes of this Store. The caller must not change it.
func (s *Store) List(ctx context.Context) ([]Type, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.opts.Now()
	if age := now.Sub(s.read); s.list != nil && age >= 0 && age < freshFor {
		return s.list, nil
	}
	kept, err := s.opts.Client.HGetAll(ctx, typesKey).Result()
	if err != nil && s.list != nil {
		return s.list, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list event types: %w", err)
	}
	types := make(map[string]Type, len(kept))
	for name, text := range kept {
		if name == bytesName {
			continue
		}
		t, err := decode(name, text)
		if err != nil { // show the type as undocumented
			s.opts.Logger.WarnContext(ctx, "event type cannot be read", "event", name, "exception.message", err)
			continue
		}
		types[name] = t
	}
	s.list, s.read = merge(s.opts.Catalogue, types), now
	return s.list, nil
}

// Get returns a type, or ErrNotFound.
func (s *Store) Get(ctx context.Context, name string) (Type, error) {
	text, err := s.opts.Client.HGet(ctx, typesKey, name).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		return Type{}, fmt.Errorf("read event type: %w", err)
	}
	if text != "" && !fixed(name) {
		return decode(name, text)
	}
	for _, info := range s.opts.Catalogue.Types() {
		if info.Name == name {
			return known(info), nil
		}
	}
	return Type{}, ErrNotFound
}

func decode(name, text string) (Type, error) {
	t := Type{Name: name, Revision: revisionOf(text)}
	if err := json.Unmarshal([]byte(text), &t); err != nil {
		return Type{}, fmt.Errorf("decode event type: %w", err)
	}
	return t, nil
}

// revisionOf is the start of the SHA-1 of a stored text, which the scripts have too.
func revisionOf(text string) string {
	sum := sha1.Sum([]byte(text)) //nolint:gosec // it tells changes apart
	return hex.EncodeToString(sum[:8])
}

// Put stores the description, the schema and the example of a type, in place of the present
// ones. With revisions, it fails unless the type has one of them. It returns the stored type,
// and whether the type is new.
// *invalid.Error, ErrFixed, ErrChanged or ErrFull.
func (s *Store) Put(ctx context.Context, t Type, revisions ...string) (kept Type, added bool, err error) {
	if fixed(t.Name) {
		return Type{}, false, ErrFixed
	}
	if err := check(&t); err != nil {
		return Type{}, false, err
	}
	t.UpdatedAt = s.opts.Now().UTC().Truncate(time.Millisecond)
	text, err := json.Marshal(t)
	if err != nil {
		return Type{}, false, fmt.Errorf("encode event type: %w", err)
	}
	if len(text) > maxTypeBytes {
		problems := &invalid.Error{}
		problems.Add("", "TOO_LONG", "a type may have %d bytes in all", maxTypeBytes)
		return Type{}, false, problems
	}
	reply, err := s.run(ctx, putScript, t.Name, text, accepted(revisions), maxTypes, maxBytes)
	if err != nil {
		return Type{}, false, fmt.Errorf("store event type: %w", err)
	}
	switch reply {
	case -1:
		return Type{}, false, ErrChanged
	case -2:
		return Type{}, false, ErrFull
	}
	kept, err = decode(t.Name, string(text))
	return kept, reply == 1, err
}

// Remove removes the stored documentation of a type; its entry in the catalogue stays. With
// revisions, it fails unless the type has one of them.
// ErrNotFound, ErrFixed or ErrChanged.
func (s *Store) Remove(ctx context.Context, name string, revisions ...string) error {
	if fixed(name) {
		return ErrFixed
	}
	reply, err := s.run(ctx, removeScript, name, accepted(revisions))
	switch {
	case err != nil:
		return fmt.Errorf("remove event type: %w", err)
	case reply == -1:
		return ErrChanged
	case reply == 0:
		return ErrNotFound
	}
	return nil
}

// accepted is the form of revisions for the scripts.
func accepted(revisions []string) string {
	var text strings.Builder
	for _, revision := range revisions {
		text.WriteString("," + revision)
	}
	return text.String()
}

func (s *Store) run(ctx context.Context, source *redis.Script, args ...any) (int64, error) {
	defer func() {
		s.mu.Lock()
		s.list = nil
		s.mu.Unlock()
	}()
	return source.Run(ctx, s.opts.Client, []string{typesKey, absentKey}, args...).Int64()
}

// check compacts the schema and the example, too.
func check(t *Type) error {
	problems := &invalid.Error{}
	if !syntax.EventType(t.Name) {
		problems.Add("name", "INVALID", "must be an upper-case letter, then up to 63 of A-Z, 0-9 and _")
	}
	if utf8.RuneCountInString(t.Description) > maxDescription {
		problems.Add("description", "TOO_LONG", "must have at most %d characters", maxDescription)
	}
	if strings.TrimSpace(t.Description) == "" {
		problems.Add("description", "REQUIRED", "is required")
	}
	checkObject(problems, "schema", &t.Schema)
	checkObject(problems, "example", &t.Example)
	if len(problems.Fields) == 0 {
		checkSchema(problems, t.Schema, t.Example)
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
