package archive

import (
	"bytes"
	"hash/fnv"
	"io"
	"strconv"
	"strings"
	"unicode"

	"github.com/go-json-experiment/json/jsontext"

	"spendhook/events"
	"spendhook/events/layout"
	"spendhook/internal/fold"
)

// A term is a hash of a word of an event, of its company and of its day. So the index of terms needs no other columns,
// and a common word of a large company has only the events of a day. Different words may have the same term: a search
// examines the events that it finds.
type term uint32

const (
	maxTerms = 300 // of an event

	// termMask leaves a million terms for a partition of PostgreSQL. A list of several events takes some 4 bytes for each
	// in its index, a list of one event 50.
	termMask = 1<<20 - 1
)

func newTerm(k key, word string) term {
	h := fnv.New32a() // its Write never fails
	_, _ = h.Write(k.Company[:])
	_, _ = io.WriteString(h, strconv.FormatInt(k.Accepted/dayMS, 10)+"/"+word)
	return term(h.Sum32())
}

// words divides a text. Letters, digits and hyphens are parts of words; case and accents do not matter.
func words(text string) []string {
	return strings.FieldsFunc(fold.Text(text), func(r rune) bool { return r != '-' && !unicode.IsLetter(r) && !unicode.IsDigit(r) })
}

// termsOf returns the terms of words, each once.
func termsOf(k key, words []string) []term {
	var all []term
	seen := make(map[term]bool, len(words))
	for _, word := range words {
		if t := newTerm(k, word); !seen[t] && len(all) < maxTerms {
			seen[t] = true
			all = append(all, t)
		}
	}
	return all
}

// numbers are terms as the value of a column of PostgreSQL with an array.
func numbers(terms []term) string {
	out := make([]byte, 0, len(terms)*8)
	for _, t := range terms {
		out = append(strconv.AppendUint(out, uint64(t&termMask), 10), ',')
	}
	return "{" + string(bytes.TrimSuffix(out, []byte{','})) + "}"
}

// tokens are terms as words for the full-text index of SQLite.
func tokens(terms []term, separator string) string {
	list := make([]string, len(terms))
	for i, t := range terms {
		list[i] = strconv.FormatUint(uint64(t), 36)
	}
	return strings.Join(list, separator)
}

// content is what an event can be found by.
type content struct {
	fields map[field]bool
	words  []string
}

type field struct{ path, value string }

// contentOf reads the value of an event. A damaged one has no content.
func contentOf(ref events.Ref, value string) content {
	stored, err := layout.Parse(ref, value)
	if err != nil {
		return content{}
	}
	r := contentReader{dec: jsontext.NewDecoder(bytes.NewReader(stored.Body)), fields: map[field]bool{}}
	if r.value("") != nil {
		return content{}
	}
	return content{r.fields, words(r.text.String())}
}

type contentReader struct {
	dec    *jsontext.Decoder
	fields map[field]bool
	text   strings.Builder
}

// value reads the value at a path: the names of members with dots between them. The elements of an array have the path
// of the array.
func (r *contentReader) value(path string) error {
	token, err := r.dec.ReadToken()
	if err != nil {
		return err
	}
	switch token.Kind() {
	case jsontext.KindBeginObject, jsontext.KindBeginArray:
		return r.members(path, token.Kind())
	case jsontext.KindNull:
		return nil
	default:
		r.add(path, token.String())
		return nil
	}
}

func (r *contentReader) add(path, text string) {
	r.fields[field{path, text}] = true
	if path != "companyUuid" && path != "timestamp" { // words that all have, or nobody asks for
		r.text.WriteString(text)
		r.text.WriteByte('\n')
	}
}

func (r *contentReader) members(path string, of jsontext.Kind) error {
	for {
		if next := r.dec.PeekKind(); next == jsontext.KindEndObject || next == jsontext.KindEndArray {
			_, err := r.dec.ReadToken()
			return err
		}
		member := path
		if of == jsontext.KindBeginObject {
			name, err := r.dec.ReadToken()
			if err != nil {
				return err
			}
			member = strings.TrimPrefix(path+"."+name.String(), ".")
		}
		if err := r.value(member); err != nil {
			return err
		}
	}
}
