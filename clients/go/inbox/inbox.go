// Package inbox receives the deliveries of Spendhook, and works on each event once.
//
//	verifier, err := inbox.NewVerifier(inbox.VerifierOptions{Secrets: []string{secret}})
//	...
//	store := &inbox.SQLStore{DB: db}
//	if err := store.Migrate(ctx); err != nil {
//	...
//	box, err := inbox.New(inbox.Options[*sql.Tx]{
//		Verifier: verifier,
//		Store:    store,
//		Work: func(ctx context.Context, e *inbox.Event, tx *sql.Tx) error {
//			if e.Type != "PAYMENT_PAID" {
//				return nil // such as SUBSCRIBER_TEST
//			}
//			_, err := tx.ExecContext(ctx, "INSERT INTO payments …", e.ID)
//			return err
//		},
//	})
//	...
//	http.Handle("/hooks", box) // without a method: the handshake of CloudEvents is OPTIONS
//
// The id of an event is noted in the transaction in which Work does its work. So a repeated delivery, a crash, or
// the feed, which has all events, changes the database once. Other effects of Work, such as a mail, may be repeated
// if the transaction fails after them.
package inbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strings"
	"sync"
	"time"
)

const (
	// maxBody is larger than the body of any delivery, in bytes.
	maxBody = 1 << 20
	// refusedEvery is the least time between two reports of refused deliveries: anybody can send some.
	refusedEvery = time.Minute
)

// Store keeps the ids of the events that were worked on, and the place in the feed. T is what Work gets to work with,
// such as *sql.Tx. Implementations are safe for concurrent use, by several processes if they share the data.
type Store[T any] interface {
	// Transaction calls do. It keeps everything that do did if do returns nil, else nothing, and then it returns
	// an error. After a panic of do it keeps nothing, and goes on with the panic.
	Transaction(ctx context.Context, do func(tx Transaction, work T) error) error
}

// Transaction is the part of a transaction that the Inbox needs. It is used by one goroutine.
type Transaction interface {
	// Add notes an event; false: it is known already. Two transactions with one id are not both told true,
	// unless one of them is undone. It returns false only if the event was noted by a transaction that was committed, or
	// by this one: while another transaction with this id is open, it waits for that one or fails. sequence is 0 if it
	// is unknown.
	Add(ctx context.Context, id string, sequence int64) (added bool, err error)
	// Cursor returns the text that SetCursor stored last; "" at first.
	Cursor(ctx context.Context) (string, error)
	// SetCursor replaces the cursor, which has at most 64 characters.
	SetCursor(ctx context.Context, cursor string) error
}

// Options say what an Inbox does. Verifier, Store and Work are required.
type Options[T any] struct {
	Verifier *Verifier
	Store    Store[T]
	// Work works on a new event, in the transaction in which its id is noted. If it fails or panics, the event is delivered
	// again, and the feed is not read beyond it, so that none is skipped: return nil to give up on an event whose work
	// always fails. Work should end within 15 seconds, when the sender hangs up and ctx of a delivery ends; nothing else
	// bounds it. It must be safe for concurrent use.
	Work func(ctx context.Context, e *Event, tx T) error
	// Feed is what CatchUp, FillGaps and Follow read; nil: nothing.
	Feed *Feed
	// Origin is the host name of the daemon, as WebHook-Request-Origin has it: that of its public_url. A receiver of the
	// format cloudevents agrees to deliveries from there. "": it agrees to none, because the handshake is not signed.
	Origin string
	// Failed is called with the reason of each answer 500 or 503, of an answer 401 once a minute at most, and of each pause of
	// FillGaps and Follow; and for each page of the feed with the number of events since the last reading that the daemon no
	// longer keeps. nil: slog.Default gets a warning. It must be safe for concurrent use.
	Failed func(error)
	// Passed is called for each event of the feed that is passed over because it has no body. It may be called again for
	// one event, when a page is read again. A panic is an error of the reading. nil: not called. It must be safe for
	// concurrent use.
	Passed func(Passed)
}

// Inbox is an http.Handler of deliveries to one subscriber. It is safe for concurrent use.
type Inbox[T any] struct {
	o     Options[T]
	chain *chain

	refusedMu sync.Mutex
	refusedAt time.Time // when a refused delivery was last reported

	backoff              func(failures int) time.Duration // after an error; tests replace these
	lateness, checkEvery time.Duration
}

// New returns an Inbox.
func New[T any](o Options[T]) (*Inbox[T], error) {
	if o.Verifier == nil || o.Store == nil || o.Work == nil {
		return nil, errors.New("an inbox needs a verifier, a store and the work")
	}
	if o.Failed == nil {
		o.Failed = func(err error) { slog.Warn("spendhook inbox", "error", err) } //nolint:sloglint // the nil default
	}
	if o.Passed == nil {
		o.Passed = func(Passed) {}
	}
	return &Inbox[T]{o: o, chain: newChain(), backoff: backoff, lateness: lateness, checkEvery: checkEvery}, nil
}

// ServeHTTP answers a delivery: 204 when the event was worked on, now or before; 200 with the text of a challenge; 401
// for a signature that is not valid; 413 for a body of more than 1 MiB; 503 while the keys cannot be read; 500 if
// the store or the work failed, also by a panic other than http.ErrAbortHandler. After 500 and 503 Spendhook delivers again.
// The handshake of CloudEvents from Origin is answered 200, any other request that is no POST 405.
func (i *Inbox[T]) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		i.handshake(w, r)
		return
	}
	status, answer := i.receive(w, r)
	if answer != "" {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("X-Content-Type-Options", "nosniff")
	}
	w.WriteHeader(status)
	_, _ = io.WriteString(w, answer)
}

// handshake agrees to deliveries if the daemon asks for that (CloudEvents, HTTP 1.1 Web Hooks for Event Delivery 1.0, 4).
func (i *Inbox[T]) handshake(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Allow", http.MethodPost)
	if r.Method != http.MethodOptions || i.o.Origin == "" || !strings.EqualFold(r.Header.Get("WebHook-Request-Origin"), i.o.Origin) {
		http.Error(w, "only POST is allowed", http.StatusMethodNotAllowed)
		return
	}
	w.Header().Set("WebHook-Allowed-Origin", i.o.Origin)
	w.Header().Set("WebHook-Allowed-Rate", "*")
}

func (i *Inbox[T]) receive(w http.ResponseWriter, r *http.Request) (status int, answer string) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if _, large := errors.AsType[*http.MaxBytesError](err); large {
		return http.StatusRequestEntityTooLarge, "the body is too large"
	}
	if err != nil {
		return http.StatusBadRequest, "the body cannot be read"
	}
	err = i.o.Verifier.Verify(r, body)
	if errors.Is(err, ErrKeysUnavailable) {
		i.o.Failed(err)
		return http.StatusServiceUnavailable, "the keys cannot be read now"
	}
	if err != nil {
		i.refused(err)
		return http.StatusUnauthorized, "the signature is not valid"
	}
	e := newEvent(r.Header.Get(headerID), numberOf(r.Header, headerSequence), body)
	if text := e.challenge(); text != "" {
		return http.StatusOK, text
	}
	added, err := i.once(r.Context(), e)
	if p, ok := errors.AsType[*panicError](err); ok && p.value == any(http.ErrAbortHandler) {
		panic(p.value)
	}
	if err != nil {
		i.o.Failed(fmt.Errorf("event %s: %w", e.ID, err))
		return http.StatusInternalServerError, "try again later"
	}
	if added {
		i.chain.delivered(e.Sequence, numberOf(r.Header, headerPrevious))
	}
	return http.StatusNoContent, ""
}

// refused reports why a delivery was refused: of a wrong secret only the sender would learn.
func (i *Inbox[T]) refused(err error) {
	now := i.o.Verifier.now()
	i.refusedMu.Lock()
	due := now.Sub(i.refusedAt).Abs() >= refusedEvery // the clock may have been set back
	if due {
		i.refusedAt = now
	}
	i.refusedMu.Unlock()
	if due {
		i.o.Failed(fmt.Errorf("a delivery was refused: %w; check the signing secret", err))
	}
}

// once works on an event unless it is known. A panic is an error, after the store has undone the transaction.
func (i *Inbox[T]) once(ctx context.Context, e *Event) (worked bool, err error) {
	defer recovered(&err)
	added := false
	err = i.o.Store.Transaction(ctx, func(tx Transaction, work T) (err error) {
		if added, err = tx.Add(ctx, e.ID, e.Sequence); err != nil || !added {
			return err
		}
		return i.o.Work(ctx, e, work)
	})
	return added && err == nil, err
}

// panicError is a panic as an error.
type panicError struct {
	value any
	stack []byte
}

func (e *panicError) Error() string { return fmt.Sprintf("panic: %v\n%s", e.value, e.stack) }

// recovered makes a panic of the function that defers it the error.
func recovered(err *error) {
	if value := recover(); value != nil {
		*err = &panicError{value, debug.Stack()}
	}
}
