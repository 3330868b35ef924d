package remote

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"

	"github.com/go-json-experiment/json/jsontext"
)

// Bounds of one ingest request: the API takes 1,000 records and 8 MiB; a
// little is left for brackets and commas.
const (
	maxBatchLines = 1000
	maxBatchBytes = 8<<20 - 4<<10
	maxLineBytes  = 1 << 20
)

// line is a line of the source with its number.
type line struct {
	number int
	text   []byte
}

// lineReader cuts a source of NDJSON into batches that fit one request.
type lineReader struct {
	in     *bufio.Scanner
	number int
	read   int64 // bytes
	bad    []line
	held   *line // read, but did not fit the last batch
}

func newLineReader(in io.Reader) *lineReader {
	r := &lineReader{in: bufio.NewScanner(in)}
	r.in.Buffer(nil, maxLineBytes)
	r.in.Split(func(data []byte, atEOF bool) (int, []byte, error) {
		n, text, err := bufio.ScanLines(data, atEOF)
		r.read += int64(n)
		return n, text, err
	})
	return r
}

// next returns the next batch, with io.EOF beside the last one. Lines that
// are not JSON objects are put into bad instead, valid until the next call.
func (r *lineReader) next() ([]line, error) {
	r.bad = nil
	var batch []line
	size := 0
	for len(batch) < maxBatchLines {
		l, err := r.take()
		if err != nil {
			return batch, err
		}
		switch {
		case len(l.text) == 0:
		case !isObject(l.text):
			r.bad = append(r.bad, line{number: l.number, text: excerpt(l.text)})
		case size+len(l.text)+1 > maxBatchBytes:
			r.held = &l
			return batch, nil
		default:
			size += len(l.text) + 1
			batch = append(batch, l)
		}
	}
	return batch, nil
}

func (r *lineReader) take() (line, error) {
	if r.held != nil {
		l := *r.held
		r.held = nil
		return l, nil
	}
	if !r.in.Scan() {
		err := r.in.Err()
		if errors.Is(err, bufio.ErrTooLong) {
			err = fmt.Errorf("line %d is longer than %d bytes", r.number+1, maxLineBytes)
		}
		return line{}, cmp.Or(err, io.EOF)
	}
	r.number++
	return line{number: r.number, text: bytes.Clone(bytes.TrimSpace(r.in.Bytes()))}, nil
}

func isObject(text []byte) bool {
	return text[0] == '{' && jsontext.Value(text).IsValid()
}

func excerpt(text []byte) []byte {
	const most = 60
	if len(text) <= most {
		return text
	}
	return append(bytes.Clone(text[:most]), "…"...)
}
