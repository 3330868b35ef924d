package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"time"

	"spendhook/api/gen"
	"spendhook/internal/pause"
)

// emitter sends batches of event records and counts how they were answered.
type emitter struct {
	api      *client
	retryFor time.Duration
	err      io.Writer // one line for each refused record

	accepted, duplicate, refused int
}

func (e *emitter) total() int { return e.accepted + e.duplicate + e.refused }

// send posts one batch. When the API refuses a batch as a whole, the batch is
// halved until the refusal names its record; ids make sending again safe.
func (e *emitter) send(ctx context.Context, batch []line) error {
	if len(batch) == 0 {
		return nil
	}
	var answer gen.EventBatchResult
	err := e.post(ctx, batch, &answer)
	refusal, refused := errors.AsType[*problem](err)
	switch {
	case err == nil:
		return e.count(batch, answer)
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

// refusesRecords tells a bad record from a request that none could pass.
func refusesRecords(p *problem) bool {
	switch p.Status {
	case http.StatusBadRequest, http.StatusConflict, http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity:
		return true
	}
	return false
}

func (e *emitter) count(batch []line, answer gen.EventBatchResult) error {
	if len(answer.Results) != len(batch) {
		return fmt.Errorf("sent %d events, got %d results", len(batch), len(answer.Results))
	}
	for i, r := range answer.Results {
		switch r.Status {
		case gen.EventItemResultStatusACCEPTED:
			e.accepted++
		case gen.EventItemResultStatusDUPLICATE:
			e.duplicate++
		default:
			e.refuse(batch[i].number, whyRefused(r))
		}
	}
	return nil
}

func whyRefused(r gen.EventItemResult) string {
	if r.Error == nil {
		return r.ID + ": " + string(r.Status)
	}
	return fmt.Sprintf("%s: %s: %s%s", r.ID, r.Error.Code, r.Error.Message, fieldErrors(r.Error.Errors))
}

// refuse tells why a record was refused; number is its line, 0 for none.
func (e *emitter) refuse(number int, why string) {
	e.refused++
	if number > 0 {
		why = fmt.Sprintf("line %d: %s", number, why)
	}
	fmt.Fprintln(e.err, why)
}

func (e *emitter) outcome() string {
	if e.duplicate > 0 {
		return "DUPLICATE"
	}
	return "ACCEPTED"
}

func (e *emitter) summary(out io.Writer) error {
	fmt.Fprintf(out, "accepted %d  duplicate %d  refused %d\n", e.accepted, e.duplicate, e.refused)
	if e.refused > 0 {
		return fmt.Errorf("%d of %d events were refused", e.refused, e.total())
	}
	return nil
}

// post sends the batch until it is answered, the answer is final, or
// retryFor has passed.
func (e *emitter) post(ctx context.Context, batch []line, answer *gen.EventBatchResult) error {
	deadline := time.Now().Add(e.retryFor)
	body := joinLines(batch)
	for attempt := 0; ; attempt++ {
		err := e.api.send(ctx, http.MethodPost, "/api/v1/events", body, answer)
		if err == nil || !retryable(ctx, err) {
			return err
		}
		wait := retryWait(attempt, err)
		if time.Now().Add(wait).After(deadline) {
			return err
		}
		if !pause.For(ctx, wait) {
			return ctx.Err()
		}
	}
}

func joinLines(batch []line) []byte {
	texts := make([][]byte, len(batch))
	for i, l := range batch {
		texts[i] = l.text
	}
	body := append([]byte{'['}, bytes.Join(texts, []byte{','})...)
	return append(body, ']')
}

// retryable holds for a daemon that is away or busy: 429, 503, 502 and 504
// of a proxy in front of it, and anything that never became an answer.
func retryable(ctx context.Context, err error) bool {
	p, answered := errors.AsType[*problem](err)
	if !answered {
		return ctx.Err() == nil
	}
	return p.temporary() || p.Status == http.StatusBadGateway || p.Status == http.StatusGatewayTimeout
}

// retryWait doubles from 200 ms to 10 s, with full jitter on the upper half,
// and is never less than what the daemon asked for.
func retryWait(attempt int, err error) time.Duration {
	wait := 200 * time.Millisecond << min(attempt, 6)
	wait = min(wait, 10*time.Second)
	wait = wait/2 + rand.N(wait/2) //nolint:gosec // jitter, not a secret
	if p, ok := errors.AsType[*problem](err); ok {
		wait = max(wait, p.retryAfter)
	}
	return wait
}
