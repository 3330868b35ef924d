// Package timestamp reads the two forms of a time that clients may send.
package timestamp

import (
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"
)

// Err is the error for any other form.
var Err = errors.New("an RFC 3339 date-time such as 2026-11-20T19:00:00Z, or whole epoch milliseconds, of the year 2000 or later (seconds are not accepted)")

// minMillis is the begin of the year 2000, in epoch milliseconds. A smaller number is most likely a time
// in seconds, which would be taken for January 1970.
const minMillis = 946684800000

// MaxMillis is the end of the year 9999, in epoch milliseconds.
const MaxMillis = 253402300799999

// Parse reads a date-time of RFC 3339, strictly but in either letter case, of the
// years 0 to 9999 in UTC. The error is Err.
func Parse(text string) (time.Time, error) {
	text = strings.ToUpper(text)
	t, err := time.Parse(time.RFC3339, text)
	t = t.UTC()
	if err != nil || !wellFormed(text) || t.Year() < 0 || t.Year() > 9999 {
		return time.Time{}, Err
	}
	return t, nil
}

// wellFormed refuses texts that time.Parse accepts but RFC 3339 does not allow: hours of one
// digit, a comma, an offset of more than a day.
func wellFormed(text string) bool {
	const hour = len("2026-11-20T")
	if len(text) < hour+len("19:00:00Z") || text[hour+2] != ':' || strings.Contains(text, ",") {
		return false
	}
	offset := text[len(text)-len("+00:00"):]
	return strings.HasSuffix(text, "Z") || offset[1:3] < "24" && offset[4:] < "60"
}

// ParseMillis reads whole epoch milliseconds of the years 2000 to 9999. The error is
// Err.
func ParseMillis(text string) (time.Time, error) {
	ms, err := strconv.ParseUint(text, 10, 63)
	if err != nil || ms < minMillis || ms > MaxMillis {
		return time.Time{}, Err
	}
	return time.UnixMilli(int64(ms)).UTC(), nil
}

// Decode reads a JSON string with a date-time, or a JSON number of epoch
// milliseconds. The error is Err, or the decoder's.
func Decode(dec *jsontext.Decoder) (time.Time, error) {
	token, err := dec.ReadToken()
	if err != nil {
		return time.Time{}, err
	}
	switch token.Kind() {
	case jsontext.KindString:
		return Parse(token.String())
	case jsontext.KindNumber:
		return ParseMillis(token.String())
	default:
		return time.Time{}, Err
	}
}
