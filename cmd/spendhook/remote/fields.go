package remote

import (
	"fmt"
	"reflect"
	"strconv"
	"time"
)

// moment is a time on the command line: in RFC 3339, or how long ago, such as 2h.
type moment struct{ time.Time }

// UnmarshalText implements encoding.TextUnmarshaler.
func (m *moment) UnmarshalText(text []byte) (err error) {
	if ago, err := time.ParseDuration(string(text)); err == nil {
		m.Time = time.Now().Add(-ago)
		return nil
	}
	if days, ok := daysAgo(string(text)); ok {
		m.Time = time.Now().AddDate(0, 0, -days)
		return nil
	}
	if m.Time, err = time.Parse(time.RFC3339Nano, string(text)); err != nil {
		return fmt.Errorf("%q is neither a time such as 2026-11-20T19:00:00Z nor a time span such as 2h or 3d", text)
	}
	return nil
}

func daysAgo(text string) (int, bool) {
	if len(text) < 2 || text[len(text)-1] != 'd' {
		return 0, false
	}
	days, err := strconv.Atoi(text[:len(text)-1])
	return days, err == nil && days >= 0
}

// fields builds a T, the parameters or the body of an operation, from flags. Each flag sets
// the field with the same name; fields without a flag are omitted. It panics for a flag
// without a field, unless the flag is tagged local or maybe.
func fields[T any](s *session, flags ...any) *T {
	built := new(T)
	to := reflect.ValueOf(built).Elem()
	if f := to.FieldByName("CompanyUUID"); f.IsValid() && s.connection.CompanyUUID != nil {
		assign(f, reflect.ValueOf(s.connection.CompanyUUID))
	}
	for _, from := range flags {
		copyFields(to, reflect.ValueOf(from))
	}
	return built
}

func copyFields(to, from reflect.Value) {
	for field, value := range from.Fields() {
		_, local := field.Tag.Lookup("local")
		_, maybe := field.Tag.Lookup("maybe")
		_, argument := field.Tag.Lookup("arg")
		switch f := to.FieldByName(field.Name); {
		case local || argument || field.Anonymous || (maybe && !f.IsValid()):
		case !f.IsValid():
			panic(fmt.Sprintf("%s has no field for %s of %s", to.Type(), field.Name, from.Type()))
		case !value.IsZero():
			assign(f, value)
		}
	}
}

// assign copies the value of from into to. Either may be a pointer.
func assign(to, from reflect.Value) {
	if from.Kind() == reflect.Pointer {
		from = from.Elem()
	}
	if m, ok := reflect.TypeAssert[moment](from); ok {
		from = reflect.ValueOf(m.Time)
	}
	if to.Kind() == reflect.Pointer {
		to.Set(reflect.New(to.Type().Elem()))
		to = to.Elem()
	}
	if to.Kind() == reflect.Slice && from.Kind() == reflect.Slice && to.Type().Elem() != from.Type().Elem() {
		list := reflect.MakeSlice(to.Type(), from.Len(), from.Len())
		for i := range from.Len() {
			list.Index(i).Set(from.Index(i).Convert(to.Type().Elem()))
		}
		from = list
	}
	to.Set(from.Convert(to.Type()))
}
