package api

import (
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"time"

	"spendhook/internal/idempotency"
	"spendhook/storage/creations"
)

const (
	idempotencyHeader = "Idempotency-Key"
	keyReused         = "IDEMPOTENCY_KEY_REUSED"
	// storeTimeout bounds the time to store an answer, after the time-out of the request.
	storeTimeout = 400 * time.Millisecond
	maxStored    = 64 << 10 // bytes of an answer
)

// once is do for a request that creates or sends something. With an Idempotency-Key the
// request is carried out once, and repetitions get the stored answer.
func (s *server) once(w http.ResponseWriter, r *http.Request, handle handlerFunc) {
	s.onceWithin(w, r, s.opts.Timeout, handle)
}

func (s *server) onceWithin(w http.ResponseWriter, r *http.Request, limit time.Duration, handle handlerFunc) {
	keys := r.Header.Values(idempotencyHeader)
	if len(keys) == 0 {
		s.doWithin(w, r, limit, handle)
		return
	}
	if len(keys) > 1 || !saneKey(keys[0]) {
		s.fail(w, r, fieldProblem(idempotencyHeader, "INVALID", "must be 1 to 255 printable ASCII characters, given once"))
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), limit)
	defer cancel()
	scope, sum := keyScope(callerOf(r)), fingerprint(r)
	saved, err := s.opts.Idempotency.Begin(ctx, scope, keys[0], sum)
	switch {
	case err != nil:
		s.fail(w, r, err)
	case saved != nil && saved.Read != "":
		s.readAgain(w, r, saved)
	case saved != nil:
		send(w, reply{status: saved.Status, header: saved.Header, body: saved.Body})
	default:
		rep := s.run(ctx, w, r, handle)
		s.storeAnswer(r, scope, keys[0], sum, rep)
		send(w, rep)
	}
}

// readAgain answers with the current state of the created resource, when the first answer was
// too large to store.
func (s *server) readAgain(w http.ResponseWriter, r *http.Request, saved *idempotency.Response) {
	get := r.Clone(r.Context()) // the clone keeps the authenticated caller
	get.Method, get.Body = http.MethodGet, http.NoBody
	at, err := url.Parse(saved.Read)
	if err != nil {
		s.fail(w, r, fmt.Errorf("saved response: %w", err))
		return
	}
	get.URL = at
	c := callerOf(r)
	c.entry, c.answerBytes = nil, singleBytes // the first request has its audit entry
	s.router.ServeHTTP(&restated{w, saved}, get)
}

// restated replaces a status 200 by the saved status, and adds the saved headers.
type restated struct {
	http.ResponseWriter
	saved *idempotency.Response
}

// WriteHeader writes the saved status in place of 200.
func (w *restated) WriteHeader(status int) {
	if status == http.StatusOK {
		status = w.saved.Status
		maps.Copy(w.Header(), w.saved.Header)
	}
	w.ResponseWriter.WriteHeader(status)
}

func saneKey(key string) bool {
	return key != "" && len(key) <= 255 && !strings.ContainsFunc(key, func(c rune) bool { return c < ' ' || c > '~' })
}

// storeAnswer stores the answer of a successful request. After a failure it releases the key, so
// that a retry can succeed. It also runs when the client has disconnected. An error is only
// logged, since the request has been carried out.
func (s *server) storeAnswer(r *http.Request, scope, key string, sum [32]byte, rep reply) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), storeTimeout)
	defer cancel()
	var err error
	if rep.status < http.StatusMultipleChoices {
		answer := idempotency.Response{Status: rep.status, Header: rep.header, Body: rep.body, Secret: rep.secret}
		if len(rep.body) > maxStored && rep.readPath != "" {
			answer.Body, answer.Read = nil, rep.readPath
		}
		err = s.opts.Idempotency.Finish(ctx, scope, key, sum, answer)
	} else {
		err = s.opts.Idempotency.Abort(ctx, scope, key, sum)
	}
	if err != nil {
		s.opts.Logger.WarnContext(ctx, "idempotency key not settled", "exception.message", err)
	}
}

// creationKey returns the Idempotency-Key for package cards, which stores it together with the
// created row. So a retry creates nothing even if this process or Redis crashed before the
// answer was stored.
func creationKey(r *http.Request) creations.Once {
	key := r.Header.Get(idempotencyHeader)
	if key == "" {
		return creations.Once{}
	}
	scope := keyScope(callerOf(r))
	return creations.Once{Key: sha256.Sum256([]byte(scope + "\x00" + key)), Fingerprint: fingerprint(r)}
}

// keyScope separates the Idempotency-Keys of different clients.
func keyScope(c *caller) string {
	company := ""
	if c.Company != nil {
		company = c.Company.String()
	}
	return company + "|" + c.Subject
}

// fingerprint is a hash of method, path, query and body.
func fingerprint(r *http.Request) [32]byte {
	h := sha256.New()
	_, _ = fmt.Fprintf(h, "%s %s\n", r.Method, r.URL.RequestURI())
	_, _ = h.Write(bodyOf(r))
	return [32]byte(h.Sum(nil))
}
