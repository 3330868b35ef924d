package remote

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"spendhook/api/client"
	"spendhook/internal/terminal"
)

// emitter sends batches of event records and counts their results.
type emitter struct {
	*session

	accepted, duplicate, refused int
}

func (e *emitter) total() int { return e.accepted + e.duplicate + e.refused }

// stream sends the lines of a file.
func (e *emitter) stream(ctx context.Context, name string) error {
	in, size, err := terminal.Open(name, e.term.In)
	if err != nil {
		return err
	}
	defer in.Close()
	bar := terminal.NewProgress(e.term.Err, "events", size, time.Now)
	defer bar.Finish()
	lines := newLineReader(in)
	for {
		batch, err := lines.next()
		for _, bad := range lines.bad {
			e.refuse(bad.number, "not a JSON object: "+string(bad.text))
		}
		if err := e.send(ctx, batch); err != nil {
			bar.Finish()
			return fmt.Errorf("%w\n%d events were sent before; send the file again, since events that are known are not accepted twice", err, e.total())
		}
		bar.Update(int64(e.total()), lines.read)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
	}
	bar.Finish()
	return e.summary()
}

// send posts one batch. If the API refuses the batch as a whole, send halves it until the refused
// record is alone. An accepted record may be sent again: its id makes it a duplicate.
func (e *emitter) send(ctx context.Context, batch []line) error {
	if len(batch) == 0 {
		return nil
	}
	answer, err := e.IngestEventsWithBodyWithResponse(ctx, fields[client.IngestEventsParams](e.session), "application/json", bytes.NewReader(joinLines(batch)))
	refusal, refused := errors.AsType[*client.Error](err)
	switch {
	case err == nil && answer.JSON2XX != nil:
		return e.count(ctx, batch, *answer.JSON2XX)
	case err == nil:
		return errors.New("the answer is not from this API; is --url the address of a spendhook daemon?")
	case !refused || !refusesRecords(refusal):
		return err
	case len(batch) == 1:
		e.refuse(batch[0].number, refusal.Error())
		return nil
	}
	half := len(batch) / 2
	if err := e.send(ctx, batch[:half]); err != nil {
		return err
	}
	return e.send(ctx, batch[half:])
}

// refusesRecords reports whether a single record may be the cause of a refusal. Other refusals
// would meet any request.
func refusesRecords(p *client.Error) bool {
	switch p.Status {
	case http.StatusBadRequest, http.StatusConflict, http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity:
		return true
	}
	return false
}

// count counts the results of a batch, and sends the records again that were refused for a reason that
// passes. The request with only these waits as long as the API says.
func (e *emitter) count(ctx context.Context, batch []line, answer client.EventBatchResult) error {
	if len(answer.Results) != len(batch) {
		return fmt.Errorf("sent %d events, got %d results", len(batch), len(answer.Results))
	}
	later := func(r client.EventItemResult) bool { return r.Error != nil && r.Error.RetryAfter != nil }
	progress := slices.ContainsFunc(answer.Results, func(r client.EventItemResult) bool { return !later(r) })
	var again []line
	for i, r := range answer.Results {
		switch {
		case r.Status == client.EventItemResultStatusACCEPTED:
			e.accepted++
		case r.Status == client.EventItemResultStatusDUPLICATE:
			e.duplicate++
		case later(r) && progress:
			again = append(again, batch[i])
		default:
			e.refuse(batch[i].number, refusalReason(r))
		}
	}
	return e.send(ctx, again)
}

func refusalReason(r client.EventItemResult) string {
	id := ""
	if r.ID != nil {
		id = *r.ID
	}
	if r.Error == nil {
		return id + ": " + string(r.Status)
	}
	var reason strings.Builder
	fmt.Fprintf(&reason, "%s: %s: %s", id, r.Error.Code, r.Error.Message)
	if r.Error.Errors != nil {
		for _, f := range *r.Error.Errors {
			if !strings.Contains(r.Error.Message, f.Message) {
				fmt.Fprintf(&reason, "; %s: %s", f.Field, f.Message)
			}
		}
	}
	return reason.String()
}

// refuse counts a refused record and prints the reason. number is the line of the record; 0 for a
// record that is not from a file.
func (e *emitter) refuse(number int, reason string) {
	e.refused++
	if number > 0 {
		reason = fmt.Sprintf("line %d: %s", number, reason)
	}
	fmt.Fprintln(e.term.Err, terminal.Escape(reason, ""))
}

func (e *emitter) outcome() string {
	if e.duplicate > 0 {
		return "DUPLICATE"
	}
	return "ACCEPTED"
}

func (e *emitter) summary() error {
	fmt.Fprintf(e.term.Out, "accepted %d  duplicate %d  refused %d\n", e.accepted, e.duplicate, e.refused)
	if e.refused > 0 {
		return fmt.Errorf("%d of %d events were refused", e.refused, e.total())
	}
	return nil
}

func joinLines(batch []line) []byte {
	texts := make([][]byte, len(batch))
	for i, l := range batch {
		texts[i] = l.text
	}
	body := append([]byte{'['}, bytes.Join(texts, []byte{','})...)
	return append(body, ']')
}

// Limits of one request. The API accepts 1,000 records and 8 MiB, including brackets and commas.
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

// lineReader divides an NDJSON source into batches that fit into one request.
type lineReader struct {
	in     *bufio.Scanner
	number int
	read   int64 // bytes
	bad    []line
	held   *line // the first line that did not fit into the last batch
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

// next returns the next batch, and io.EOF with the last one. It puts lines that are not JSON
// objects into bad, which is valid until the next call.
func (r *lineReader) next() ([]line, error) {
	r.bad = nil
	var batch []line
	size := 0
	for len(batch) < maxBatchLines {
		l, err := r.nextLine()
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

func (r *lineReader) nextLine() (line, error) {
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
