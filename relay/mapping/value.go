package mapping

import (
	"bytes"
	"errors"
	"reflect"
	"slices"
	"strings"

	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"
	"github.com/go-json-experiment/json/jsontext"
)

// newValue returns the value of valid JSON without white space around it.
func newValue(raw jsontext.Value) ref.Val {
	switch raw.Kind() {
	case jsontext.KindBeginObject:
		return &object{raw: raw}
	case jsontext.KindBeginArray:
		return &list{raw: raw}
	case jsontext.KindString:
		text, _ := jsontext.AppendUnquote(nil, raw) // it is valid
		return types.String(text)
	case jsontext.KindNumber:
		return newNumber(string(raw))
	case jsontext.KindTrue:
		return types.True
	case jsontext.KindFalse:
		return types.False
	default:
		return types.NullValue
	}
}

// each calls use with the names and values of an object, or with "" and the values of a list.
func each(raw jsontext.Value, use func(name string, value ref.Val)) {
	// parse has looked for names that are there twice.
	d := jsontext.NewDecoder(bytes.NewBuffer(raw), jsontext.AllowDuplicateNames(true))
	begin, _ := d.ReadToken()
	for d.PeekKind() != jsontext.KindEndObject && d.PeekKind() != jsontext.KindEndArray {
		name := ""
		if begin.Kind() == jsontext.KindBeginObject {
			token, err := d.ReadToken()
			if err != nil {
				return
			}
			name = token.String()
		}
		value, err := d.ReadValue()
		if err != nil {
			return
		}
		end := int(d.InputOffset()) // what ReadValue returns is valid until the next call only
		use(name, newValue(raw[end-len(value):end]))
	}
}

// object is a JSON object. It is not safe for concurrent use, since it is read when it is first used.
type object struct {
	raw     jsontext.Value
	names   []types.String // in the order of raw
	members map[string]ref.Val
}

func (o *object) load() *object {
	if o.members == nil {
		o.members = make(map[string]ref.Val)
		each(o.raw, func(name string, value ref.Val) {
			o.names = append(o.names, types.String(name))
			o.members[name] = value
		})
	}
	return o
}

var errNative = errors.New("there is no other form of JSON")

func (o *object) ConvertToNative(reflect.Type) (any, error) { return nil, errNative }

func (o *object) ConvertToType(t ref.Type) ref.Val { return convert(o, t) }

func (o *object) Type() ref.Type { return types.MapType }

func (o *object) Value() any { return o.raw }

func (o *object) Size() ref.Val { return types.Int(len(o.load().names)) }

func (o *object) Find(key ref.Val) (ref.Val, bool) {
	name, ok := key.(types.String)
	if !ok {
		return nil, false
	}
	v, found := o.load().members[string(name)]
	return v, found
}

func (o *object) Get(key ref.Val) ref.Val {
	if v, found := o.Find(key); found {
		return v
	}
	return types.NewErr("no such key: %v", key)
}

func (o *object) Contains(key ref.Val) ref.Val {
	_, found := o.Find(key)
	return types.Bool(found)
}

func (o *object) Iterator() traits.Iterator {
	keys := make([]ref.Val, len(o.load().names))
	for i, name := range o.names {
		keys[i] = name
	}
	return iterate(keys)
}

func (o *object) Equal(other ref.Val) ref.Val {
	m, ok := other.(traits.Mapper)
	if !ok || o.Size() != m.Size() {
		return types.False
	}
	for _, name := range o.names {
		if v, found := m.Find(name); !found || types.Equal(o.members[string(name)], v) != types.True {
			return types.False
		}
	}
	return types.True
}

// list is a JSON list. It is not safe for concurrent use, since it is read when it is first used.
type list struct {
	raw  jsontext.Value
	read traits.Lister
}

func (l *list) load() traits.Lister {
	if l.read == nil {
		var items []ref.Val
		each(l.raw, func(_ string, value ref.Val) { items = append(items, value) })
		l.read = types.NewRefValList(types.DefaultTypeAdapter, items)
	}
	return l.read
}

func (l *list) ConvertToNative(reflect.Type) (any, error) { return nil, errNative }

func (l *list) ConvertToType(t ref.Type) ref.Val { return convert(l, t) }

func (l *list) Type() ref.Type { return types.ListType }

func (l *list) Value() any { return l.raw }

func (l *list) Size() ref.Val { return l.load().Size() }

func (l *list) Get(index ref.Val) ref.Val { return l.load().Get(index) }

func (l *list) Contains(v ref.Val) ref.Val { return l.load().Contains(v) }

func (l *list) Iterator() traits.Iterator { return l.load().Iterator() }

func (l *list) Equal(other ref.Val) ref.Val { return l.load().Equal(other) }

func (l *list) Add(other ref.Val) ref.Val { return l.load().Add(other) }

// convert converts a value to its own type, or to the value that stands for its type.
func convert(v ref.Val, t ref.Type) ref.Val {
	switch t.TypeName() {
	case v.Type().TypeName():
		return v
	case types.TypeType.TypeName():
		return v.Type().(ref.Val)
	}
	return types.NewErr("no such overload")
}

// ordered is a map that is always read in the same order: that of cel-go is the random one of a Go map.
type ordered struct{ traits.Mapper }

// Iterator returns the keys in an order that depends on them alone.
func (m ordered) Iterator() traits.Iterator { return iterate(sortedKeys(m.Mapper)) }

func sortedKeys(m traits.Mapper) []ref.Val {
	var keys []ref.Val
	for it := m.Iterator(); it.HasNext() == types.True; {
		keys = append(keys, it.Next())
	}
	slices.SortFunc(keys, func(a, b ref.Val) int {
		if x, ok := a.(traits.Comparer); ok && a.Type() == b.Type() {
			if order, ok := x.Compare(b).(types.Int); ok {
				return int(order)
			}
		}
		return strings.Compare(a.Type().TypeName(), b.Type().TypeName())
	})
	return keys
}

func iterate(keys []ref.Val) traits.Iterator {
	return types.NewRefValList(types.DefaultTypeAdapter, keys).Iterator()
}
