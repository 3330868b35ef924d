// Package cursor encodes the position of a list as a text that the client sends with its next
// request.
package cursor

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"

	"github.com/go-json-experiment/json"
)

// ErrBad says that a text is not a cursor of this list with this filter.
var ErrBad = errors.New("the cursor is not of this list")

const sumLen = 8

var nul = []byte(`\u0000`) // in JSON

// Encode encodes a place as a text of URL-safe characters. The text is bound to the list and
// its filter; filter may be any value that prints the same for equal filters. The binding
// detects mistakes and is no protection: the filter alone decides what a list may show. Encode
// panics when the place cannot be encoded as JSON.
func Encode(list string, filter, place any) string {
	payload, err := json.Marshal(place)
	if err != nil {
		panic(fmt.Sprintf("cursor of %s: %v", list, err)) // a place is a struct of texts and numbers
	}
	return base64.RawURLEncoding.EncodeToString(append(sum(list, filter, payload), payload...))
}

// Decode reads into place a text that Encode wrote for the same list and filter; the error for any
// other text is ErrBad. An empty text is the start of the list and does not change place.
func Decode(text, list string, filter, place any) error {
	if text == "" {
		return nil
	}
	raw, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil || len(raw) < sumLen || base64.RawURLEncoding.EncodeToString(raw) != text {
		return ErrBad
	}
	payload := raw[sumLen:]
	if bytes.Contains(payload, nul) { // a place has none, and databases refuse it
		return ErrBad
	}
	if string(sum(list, filter, payload)) != string(raw[:sumLen]) || json.Unmarshal(payload, place) != nil {
		return ErrBad
	}
	return nil
}

func sum(list string, filter any, payload []byte) []byte {
	h := fnv.New64a()
	_, _ = fmt.Fprintf(h, "%s\n%v\n", list, filter) // never fails
	_, _ = h.Write(payload)
	return binary.BigEndian.AppendUint64(nil, h.Sum64())
}
