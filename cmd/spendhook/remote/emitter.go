package remote

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"spendhook/api/client"
	"spendhook/internal/terminal"
)

// emitter sends batches of event records and counts how they were answered.
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
			return err
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

// send posts one batch. When the API refuses a batch as a whole, the batch is
// halved until the refusal names its record; ids make sending again safe.
func (e *emitter) send(ctx context.Context, batch []line) error {
	if len(batch) == 0 {
		return nil
	}
	answer, err := e.IngestEventsWithBodyWithResponse(ctx, fields[client.IngestEventsParams](e.session), "application/json", bytes.NewReader(joinLines(batch)))
	refusal, refused := errors.AsType[*client.Error](err)
	switch {
	case err == nil && answer.JSON202 != nil:
		return e.count(batch, *answer.JSON202)
	case err == nil:
		return errors.New("the answer is not what this version of the API sends; is --url a spendhook daemon?")
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

// refusesRecords reports whether a record may be the cause of a refusal. Other refusals
// concern every request.
func refusesRecords(p *client.Error) bool {
	switch p.Status {
	case http.StatusBadRequest, http.StatusConflict, http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity:
		return true
	}
	return false
}

func (e *emitter) count(batch []line, answer client.EventBatchResult) error {
	if len(answer.Results) != len(batch) {
		return fmt.Errorf("sent %d events, got %d results", len(batch), len(answer.Results))
	}
	for i, r := range answer.Results {
		switch r.Status {
		case client.EventItemResultStatusACCEPTED:
			e.accepted++
		case client.EventItemResultStatusDUPLICATE:
			e.duplicate++
		default:
			e.refuse(batch[i].number, whyRefused(r))
		}
	}
	return nil
}

func whyRefused(r client.EventItemResult) string {
	id := ""
	if r.ID != nil {
		id = *r.ID
	}
	if r.Error == nil {
		return id + ": " + string(r.Status)
	}
	var why strings.Builder
	fmt.Fprintf(&why, "%s: %s: %s", id, r.Error.Code, r.Error.Message)
	if r.Error.Errors != nil {
		for _, f := range *r.Error.Errors {
			if !strings.Contains(r.Error.Message, f.Message) {
				fmt.Fprintf(&why, "; %s: %s", f.Field, f.Message)
			}
		}
	}
	return why.String()
}

// refuse tells why a record was refused; number is its line, 0 for none.
func (e *emitter) refuse(number int, why string) {
	e.refused++
	if number > 0 {
		why = fmt.Sprintf("line %d: %s", number, why)
	}
	fmt.Fprintln(e.term.Err, why)
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
