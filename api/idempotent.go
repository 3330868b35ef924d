package api

import (
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"strings"

	"github.com/google/uuid"

	"spendhook/internal/idempotency"
	"spendhook/storage/cards"
)

const (
	idempotencyHeader = "Idempotency-Key"
	keyReused         = "IDEMPOTENCY_KEY_REUSED"
	maxStored         = 64 << 10 // bytes of an answer
)

// once answers a request by run. With an Idempotency-Key the request is carried out once, and repeated
// requests get the stored answer. An array of events needs no key, since each event has an id.
func (s *server) once(ctx context.Context, q *request, run func() reply) {
	key := q.sent.Header.Get(idempotencyHeader)
	_, given := q.sent.Header[idempotencyHeader]
	if !q.op.idempotent || !given || q.op.id == ingestEvents && isArray(q.body) {
		rep := run()
		q.memory.ShrinkTo(rep.bytes)
		send(q.w, rep)
		return
	}
	if !validKey(key) {
		s.fail(q.w, q.sent, fieldProblem(idempotencyHeader, "INVALID", "must be 1 to 255 printable ASCII characters, given once"))
		return
	}
	claim, saved, err := s.opts.Idempotency.Begin(ctx, idempotency.Request{
		Company: or(q.Company, uuid.Nil), Scope: q.keyScope(), Key: key, Fingerprint: q.fingerprint(),
	})
	switch {
	case err != nil:
		s.fail(q.w, q.sent, err)
	case saved != nil && saved.Read != "":
		s.readAgain(ctx, q, saved)
	case saved != nil:
		send(q.w, reply{status: saved.Status, header: saved.Header, body: saved.Body})
	default:
		send(q.w, s.runAndStore(q.sent, claim, run))
	}
}

// runAndStore carries the request out and stores its answer. After a panic it releases the key.
func (s *server) runAndStore(r *http.Request, claim *idempotency.Claim, run func() reply) reply {
	rep := reply{status: http.StatusInternalServerError} // if run panics
	defer func() { s.storeAnswer(r, claim, rep) }()
	rep = run()
	return rep
}

// readAgain answers with the current state of the created resource, when the first answer was
// too large to store.
func (s *server) readAgain(ctx context.Context, q *request, saved *idempotency.Response) {
	get := q.sent.Clone(ctx) // the context holds the admitted request with its caller
	get.Method, get.Body = http.MethodGet, http.NoBody
	at, err := url.Parse(saved.Read)
	if err != nil {
		s.fail(q.w, q.sent, fmt.Errorf("saved response: %w", err))
		return
	}
	get.URL = at
	s.router.ServeHTTP(&withSavedStatus{q.w, saved}, get)
}

// withSavedStatus writes the status and the headers of the first answer in place of the status 200.
type withSavedStatus struct {
	http.ResponseWriter
	saved *idempotency.Response
}

// WriteHeader writes the saved status in place of 200.
func (w *withSavedStatus) WriteHeader(status int) {
	if status == http.StatusOK {
		status = w.saved.Status
		maps.Copy(w.Header(), w.saved.Header)
	}
	w.ResponseWriter.WriteHeader(status)
}

func validKey(key string) bool {
	return key != "" && len(key) <= 255 && !strings.ContainsFunc(key, func(c rune) bool { return c < ' ' || c > '~' })
}

// storeAnswer stores the answer of a successful request. After a failure it releases the key, so
// that a retry can succeed. It also runs when the client has disconnected. An error is only
// logged, since the request has been carried out; unless the answer cannot be encoded, it is stored later.
func (s *server) storeAnswer(r *http.Request, claim *idempotency.Claim, rep reply) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), s.opts.StoreTimeout)
	defer cancel()
	var err error
	if rep.status < http.StatusMultipleChoices {
		answer := idempotency.Response{Status: rep.status, Header: rep.header, Body: rep.body, Secret: rep.secret}
		if len(rep.body) > maxStored && rep.readPath != "" {
			answer.Body, answer.Read = nil, rep.readPath
		}
		err = claim.Finish(ctx, answer)
	} else {
		err = claim.Abort(ctx)
	}
	if err != nil {
		s.opts.Logger.WarnContext(ctx, "idempotency key not stored or released in time", "exception.message", err)
	}
}

// creationKey returns the Idempotency-Key for package cards, which stores it together with the
// created row. So a retry creates nothing even if this process or Redis crashed before the
// answer was stored.
func (q *request) creationKey() cards.Once {
	key := q.sent.Header.Get(idempotencyHeader)
	if key == "" {
		return cards.Once{}
	}
	return cards.Once{Key: sha256.Sum256([]byte(q.keyScope() + "\x00" + key)), Fingerprint: q.fingerprint()}
}

// keyScope separates the Idempotency-Keys of different clients.
func (q *request) keyScope() string { return q.companyName() + "|" + q.Subject }

// fingerprint is a hash of method, path, query and body.
func (q *request) fingerprint() [32]byte {
	h := sha256.New()
	_, _ = fmt.Fprintf(h, "%s %s\n", q.sent.Method, q.sent.URL.RequestURI())
	_, _ = h.Write(q.body)
	return [32]byte(h.Sum(nil))
}
