package remote

import (
	"fmt"
	"reflect"
	"strconv"
	"time"
)

// moment is a time on the command line; see momentOf.
type moment struct{ time.Time }

// UnmarshalText implements encoding.TextUnmarshaler.
func (m *moment) UnmarshalText(text []byte) (err error) {
	m.Time, err = momentOf(string(text), time.Now())
	return err
}

// momentOf reads a time in RFC 3339, how long ago it was, such as 2h or 3d, or the local time at which a day begins: today,
// yesterday, or a date.
func momentOf(text string, now time.Time) (time.Time, error) {
	midnight := time.Date(now.Year(), now.Month(), now.Day(), 0, 0, 0, 0, now.Location())
	switch text {
	case "today":
		return midnight, nil
	case "yesterday":
		return midnight.AddDate(0, 0, -1), nil
	}
	if ago, err := time.ParseDuration(text); err == nil {
		return now.Add(-ago), nil
	}
	if days, ok := daysAgo(text); ok {
		return now.AddDate(0, 0, -days), nil
	}
	for _, layout := range []string{time.RFC3339Nano, time.DateOnly, "2006-01-02 15:04", "2006-01-02 15:04:05"} {
		if at, err := time.ParseInLocation(layout, text, now.Location()); err == nil {
			return at, nil
		}
	}
	return time.Time{}, fmt.Errorf("%q is no time such as 2026-11-20T19:00:00Z or 2026-11-20, no time span such as 2h or 3d, and neither today nor yesterday", text)
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
