package expression

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/go-json-experiment/json/jsontext"
)

const (
	// maxBody is the longest JSON that a transform makes, in bytes: as long as the metadata of an event.
	maxBody = 256 << 10
	// lightWeight is the weight that is encoded without a turn.
	lightWeight = 500
)

var (
	errBody = fmt.Errorf("the result is longer than %d bytes", maxBody)
	errText = errors.New("a string of the result is not valid UTF-8")
)

// encode writes a value as JSON. The limit of the text bounds the time too, since each value adds to it.
func encode(r *run, v value) ([]byte, error) {
	if weight(v) > lightWeight {
		if err := r.takeTurn(); err != nil {
			return nil, err
		}
	}
	e := encoder{}
	e.value(v)
	return e.text, e.err
}

// encoder writes until the first error.
type encoder struct {
	text []byte
	err  error
}

func (e *encoder) add(text string) {
	if e.err == nil && len(text) > maxBody-len(e.text) {
		e.err = errBody
	}
	if e.err == nil {
		e.text = append(e.text, text...)
	}
}

func (e *encoder) quoted(text string) {
	if len(text) > maxBody {
		e.err = errBody
		return
	}
	quoted, err := jsontext.AppendQuote(nil, text)
	if err != nil {
		e.err = errText
	}
	e.add(string(quoted))
}

func (e *encoder) value(v value) {
	if e.err != nil {
		return
	}
	switch v := v.(type) {
	case nil:
		e.add("null")
	case error:
		e.err = v
	case *list:
		e.add("[")
		for i, item := range v.items {
			e.comma(i)
			e.value(item)
		}
		e.add("]")
	case *object:
		e.add("{")
		for i, name := range slices.Sorted(maps.Keys(v.fields)) {
			e.comma(i)
			e.quoted(name)
			e.add(":")
			e.value(v.fields[name])
		}
		e.add("}")
	default:
		e.scalar(v)
	}
}

func (e *encoder) comma(i int) {
	if i > 0 {
		e.add(",")
	}
}

func (e *encoder) scalar(v value) {
	if f, ok := v.(float64); ok && (math.IsNaN(f) || math.IsInf(f, 0)) {
		e.err = fmt.Errorf("%v is not a number in JSON", f)
		return
	}
	text, _ := textOf(v) // the other values are not scalar
	switch v.(type) {
	case string, time.Time, time.Duration:
		e.quoted(text)
	default:
		e.add(text)
	}
}
