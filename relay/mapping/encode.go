package mapping

import (
	"encoding/base64"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"
	"github.com/go-json-experiment/json/jsontext"
)

var (
	errTooLong = fmt.Errorf("is longer than %d bytes", maxMetadata)
	errTooDeep = fmt.Errorf("is nested more than %d deep", maxMetadataDeep)
	errText    = errors.New("has a text that is not valid UTF-8")
)

// encode writes a value as JSON of at most maxMetadata bytes: members sorted by name, what comes from JSON as it is,
// bytes in base64, timestamps in RFC 3339, durations as in 1.5s.
func encode(v ref.Val) ([]byte, error) {
	e := &encoder{}
	e.value(v, 0)
	return e.text, e.err
}

// encoder writes until the first error.
type encoder struct {
	text []byte
	err  error
}

// fits reports whether n more bytes are allowed.
func (e *encoder) fits(n int) bool {
	if e.err == nil && n > maxMetadata-len(e.text) {
		e.err = errTooLong
	}
	return e.err == nil
}

// add appends text that is JSON.
func (e *encoder) add(text string) {
	if e.fits(len(text)) {
		e.text = append(e.text, text...)
	}
}

func (e *encoder) quoted(text string) {
	if !e.fits(len(text)) {
		return
	}
	quoted, err := jsontext.AppendQuote(nil, text)
	if err != nil {
		e.err = errText
	}
	e.add(string(quoted))
}

func (e *encoder) value(v ref.Val, depth int) {
	switch v := v.(type) {
	case types.Null:
		e.add("null")
	case types.Bool:
		e.add(strconv.FormatBool(bool(v)))
	case types.Int:
		e.add(strconv.FormatInt(int64(v), 10))
	case types.Uint:
		e.add(strconv.FormatUint(uint64(v), 10))
	case types.Double:
		e.double(float64(v))
	case number:
		e.add(v.text)
	case types.String:
		e.quoted(string(v))
	case types.Bytes:
		e.quoted(base64.StdEncoding.EncodeToString(v))
	case types.Timestamp:
		e.quoted(v.Time.UTC().Format(time.RFC3339Nano))
	case types.Duration:
		e.quoted(strconv.FormatFloat(v.Seconds(), 'f', -1, 64) + "s")
	case *object:
		e.add(string(v.raw))
	case *list:
		e.add(string(v.raw))
	case traits.Mapper:
		e.members(v, depth+1)
	case traits.Lister:
		e.items(v, depth+1)
	default:
		e.err = fmt.Errorf("has a value that is no JSON, of the type %s", v.Type().TypeName())
	}
}

// double writes the shortest digits that mean f, as ECMAScript does.
func (e *encoder) double(f float64) {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		e.err = errors.New("has a number that is not finite")
		return
	}
	format := byte('f')
	if size := math.Abs(f); size != 0 && (size < 1e-6 || size >= 1e21) {
		format = 'e'
	}
	e.add(strconv.FormatFloat(f, format, -1, 64))
}

func (e *encoder) members(m traits.Mapper, depth int) {
	if depth > maxMetadataDeep {
		e.err = errTooDeep
		return
	}
	e.add("{")
	for i, key := range sortedKeys(m) {
		name, ok := key.(types.String)
		if !ok {
			e.err = errors.New("has a name that is not a text")
		}
		if e.err != nil {
			return
		}
		if i > 0 {
			e.add(",")
		}
		v, _ := m.Find(key)
		e.quoted(string(name))
		e.add(":")
		e.value(v, depth)
	}
	e.add("}")
}

func (e *encoder) items(l traits.Lister, depth int) {
	if depth > maxMetadataDeep {
		e.err = errTooDeep
		return
	}
	e.add("[")
	first := true
	for it := l.Iterator(); it.HasNext() == types.True && e.err == nil; first = false {
		if !first {
			e.add(",")
		}
		e.value(it.Next(), depth)
	}
	e.add("]")
}
