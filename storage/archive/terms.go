package archive

import (
	"bytes"
	"hash/fnv"
	"io"
	"slices"
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
	dec   *jsontext.Decoder
	text  strings.Builder // of all values, a line each
	value string          // that a field is looked for
	found bool            // the field has it
}

// readContent reads the value of an event, and looks for a field with a value. A damaged event has no content.
func readContent(ref events.Ref, stored, path, value string) *content {
	event, err := layout.Parse(ref, stored)
	if err != nil {
		return &content{}
	}
	c := &content{dec: jsontext.NewDecoder(bytes.NewReader(event.Body)), value: value}
	if c.read(path, true, true) != nil {
		return &content{}
	}
	return c
}

// read reads the next value. If follows, path is what is left of the path of the field that is looked for: the names of
// members with dots between them. The elements of an array have the path of the array. If indexed, so are its words.
func (c *content) read(path string, follows, indexed bool) error {
	token, err := c.dec.ReadToken()
	if err != nil {
		return err
	}
	kind := token.Kind()
	if kind == jsontext.KindBeginObject || kind == jsontext.KindBeginArray {
		return c.readAll(path, follows, indexed, kind)
	}
	if kind == jsontext.KindNull {
		return nil
	}
	text := token.String()
	c.found = c.found || follows && path == "" && text == c.value
	if indexed {
		c.text.WriteString(text)
		c.text.WriteByte('\n')
	}
	return nil
}

// unindexed are the members of an event that have words which all events have, or nobody asks for.
var unindexed = []string{"companyUuid", "timestamp"}

// readAll reads the values of an object or an array.
func (c *content) readAll(path string, follows, indexed bool, of jsontext.Kind) error {
	whole := c.dec.StackDepth() == 1 // it is the event
	for {
		if next := c.dec.PeekKind(); next == jsontext.KindEndObject || next == jsontext.KindEndArray {
			_, err := c.dec.ReadToken()
			return err
		}
		rest, onward, words := path, follows, indexed
		if of == jsontext.KindBeginObject {
			name, err := c.dec.ReadToken()
			if err != nil {
				return err
			}
			rest, onward = step(path, name.String())
			onward = onward && follows
			words = indexed && (!whole || !slices.Contains(unindexed, name.String()))
		}
		if err := c.read(rest, onward, words); err != nil {
			return err
		}
	}
}

// step follows a path to a member, whose name may have dots.
func step(path, name string) (rest string, follows bool) {
	if rest, follows = strings.CutPrefix(path, name); rest == "" {
		return rest, follows
	}
	return strings.CutPrefix(rest, ".")
}
