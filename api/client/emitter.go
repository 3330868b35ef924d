package client

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/google/uuid"

	"spendhook/internal/pause"
)

// The limits of one request of an Emitter. The API accepts larger ones, but a proxy before it may not.
const (
	maxArray      = 1000
	maxArrayBytes = 4 << 20
)

// errCutShort says that an answer could not be read to its end. After cutPause the request is repeated.
var errCutShort = errors.New("read the results of events")

const cutPause = time.Second

// EmitterOptions say how an Emitter connects. Of Options, Timeout is 10 s by default, and RetryFor, which bounds the
// time for one request with its repeats, is 60 s.
type EmitterOptions struct {
	Options

	// Company is needed for events without a company if the token has none.
	Company *uuid.UUID
}

// Emitter sends events, each at least once and so that it is accepted once: what is repeated has the same bytes, and
// the daemon knows an event by its id. It is safe for concurrent use.
type Emitter struct {
	sender *sender
	url    string
}

// NewEmitter returns an Emitter to the daemon with the base address server. It connects with its first event.
func NewEmitter(server string, o EmitterOptions) (*Emitter, error) {
	o.Timeout, o.RetryFor = cmp.Or(o.Timeout, 10*time.Second), cmp.Or(o.RetryFor, time.Minute)
	s, server, err := newSender(server, o.Options)
	if err != nil {
		return nil, err
	}
	to, err := url.Parse(server + "/api/v1/events")
	if err != nil {
		return nil, err
	}
	if o.Company != nil {
		to.RawQuery = url.Values{"companyUuid": {o.Company.String()}}.Encode()
	}
	return &Emitter{s, to.String()}, nil
}

// Send sends one event. It returns nil if the event is accepted, now or before; else an *Error if the daemon refuses
// the event or the request. After another error it is not known whether the event was accepted: send the same event
// again.
//
// ID and Timestamp are required: with new ones a repeat would be another event.
func (e *Emitter) Send(ctx context.Context, event EventInput) error {
	results, err := e.SendAll(ctx, []EventInput{event})
	if err != nil {
		return err
	}
	refusal := &Error{Status: http.StatusUnprocessableEntity}
	switch results[0].Status {
	case EventItemResultStatusACCEPTED, EventItemResultStatusDUPLICATE:
		return nil
	case EventItemResultStatusCONFLICT:
		refusal.Status = http.StatusConflict
	case EventItemResultStatusREJECTED:
	}
	if item := results[0].Error; item != nil {
		refusal.Code, refusal.Detail = item.Code, item.Message
		if item.Errors != nil {
			refusal.Errors = *item.Errors
		}
	}
	return refusal
}

// SendAll sends events in arrays, and returns the result of each, in their order. Events that are refused for a
// reason that passes are sent again, alone. An array that is too large for a proxy is divided. A refused event is no error:
// look at each Status. An event that is too large even alone (PAYLOAD_TOO_LARGE, or the daemon's code), or that cannot be
// read (MALFORMED_BODY), is REJECTED, and the others go on.
//
// After an error the results are those so far, as many as events; where Status is empty it is not known whether the event
// was accepted. Send the same events again.
func (e *Emitter) SendAll(ctx context.Context, events []EventInput) ([]EventItemResult, error) {
	results := make([]EventItemResult, len(events))
	texts := make([][]byte, len(events))
	for i := range events {
		event := &events[i]
		if event.ID == "" || event.Timestamp.IsZero() {
			return results, fmt.Errorf("event %d needs an id and a timestamp", i)
		}
		var err error
		if texts[i], err = encode(event); err != nil {
			return results, fmt.Errorf("event %s: %w", event.ID, err)
		}
		results[i].ID = &event.ID
	}
	for first := 0; first < len(texts); {
		end := endOfArray(texts, first)
		if err := e.sendArray(ctx, texts[first:end], results[first:end]); err != nil {
			return results, err
		}
		first = end
	}
	return results, nil
}

// encode leaves <, > and & in the metadata as they are: escaped, they could exceed the limit.
func encode(event *EventInput) ([]byte, error) {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	err := encoder.Encode(event)
	return bytes.TrimSuffix(text.Bytes(), []byte("\n")), err
}

// endOfArray returns how far the array goes that begins with first.
func endOfArray(texts [][]byte, first int) int {
	size := len("[]")
	for i := first; i < len(texts); i++ {
		size += len(texts[i]) + len(",")
		if i > first && (size > maxArrayBytes || i-first == maxArray) {
			return i
		}
	}
	return len(texts)
}

// sendArray sends what fits into one request, until no event is refused for a reason that passes.
func (e *Emitter) sendArray(ctx context.Context, texts [][]byte, results []EventItemResult) error {
	s := *e.sender
	deadline := s.now().Add(s.retryFor)
	pending := make([]int, len(texts)) // indexes
	for i := range pending {
		pending[i] = i
	}
	for {
		got, err := e.post(ctx, &s, deadline, texts, pending)
		if errors.Is(err, errCutShort) && s.now().Add(cutPause).Before(deadline) && pause.For(ctx, cutPause) {
			continue
		}
		for i, result := range got {
			results[pending[i]].Status, results[pending[i]].Error = result.Status, result.Error
		}
		if err != nil {
			return err
		}
		var again []int
		wait := 0
		for i, result := range got {
			if result.Error != nil && result.Error.RetryAfter != nil {
				again, wait = append(again, pending[i]), max(wait, *result.Error.RetryAfter)
			}
		}
		if pending = again; len(pending) == 0 {
			return nil
		}
		pauseFor := time.Duration(max(min(wait, 1<<30), 1)) * time.Second
		if s.now().Add(pauseFor).After(deadline) {
			return fmt.Errorf("%d events are still refused: %s", len(pending), results[pending[0]].Error.Message)
		}
		if !pause.For(ctx, pauseFor) {
			return context.Cause(ctx)
		}
		for _, n := range pending { // until the next answer it is not known
			results[n].Status, results[n].Error = "", nil
		}
	}
}

// post sends the texts of pending as an array, which it halves while one of them may be to blame for a refusal. It returns a
// result for each, or after an error those of the first ones.
func (e *Emitter) post(ctx context.Context, s *sender, deadline time.Time, texts [][]byte, pending []int) ([]EventItemResult, error) {
	s.retryFor = deadline.Sub(s.now())
	body := []byte{'['}
	for i, n := range pending {
		if i > 0 {
			body = append(body, ',')
		}
		body = append(body, texts[n]...)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, e.url, bytes.NewReader(append(body, ']')))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := s.Do(req)
	if refusal, ok := errors.AsType[*Error](err); ok && refusal.blamesBody() {
		if len(pending) == 1 {
			return []EventItemResult{refusal.ofItem()}, nil
		}
		half := len(pending) / 2
		got, err := e.post(ctx, s, deadline, texts, pending[:half])
		if err != nil {
			return got, err
		}
		rest, err := e.post(ctx, s, deadline, texts, pending[half:])
		return append(got, rest...), err
	}
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	var answer EventBatchResult
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		return nil, fmt.Errorf("%w: %w", errCutShort, err)
	}
	if len(answer.Results) != len(pending) {
		return nil, fmt.Errorf("sent %d events, got %d results", len(pending), len(answer.Results))
	}
	return answer.Results, nil
}

// blamesBody reports whether the body is the cause of the refusal. Others, such as one of a token, would meet any request.
func (e *Error) blamesBody() bool {
	return e.Status == http.StatusRequestEntityTooLarge || e.Code == "MALFORMED_BODY"
}

// ofItem is the refusal of a request as the result of its only event.
func (e *Error) ofItem() EventItemResult {
	item := ItemError{Code: e.Code, Message: cmp.Or(e.Detail, e.Title, http.StatusText(e.Status))}
	if e.Code == "HTTP_ERROR" { // of a proxy
		item.Code = "PAYLOAD_TOO_LARGE"
	}
	if len(e.Errors) > 0 {
		item.Errors = &e.Errors
	}
	return EventItemResult{Status: EventItemResultStatusREJECTED, Error: &item}
}
