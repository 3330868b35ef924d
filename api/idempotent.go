package api

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"spendhook/internal/idempotency"
	"spendhook/storage/cards"
)

const (
	idempotencyHeader = "Idempotency-Key"
	keyReused         = "IDEMPOTENCY_KEY_REUSED"
	// keepTimeout comes on top of the request's own.
	keepTimeout = 400 * time.Millisecond
)

// once is do for a request that creates something: with an Idempotency-Key it
// is carried out once, and the stored answer is given from then on.
func (s *server) once(w http.ResponseWriter, r *http.Request, handle handlerFunc) {
	keys := r.Header.Values(idempotencyHeader)
	if len(keys) == 0 {
		s.do(w, r, handle)
		return
	}
	if len(keys) > 1 || !saneKey(keys[0]) {
		s.fail(w, r, fieldProblem(idempotencyHeader, "INVALID", "must be 1 to 255 printable ASCII characters, given once"))
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), s.opts.Timeout)
	defer cancel()
	send(w, s.runOnce(ctx, w, r, keys[0], handle))
}

func saneKey(key string) bool {
	return key != "" && len(key) <= 255 && !strings.ContainsFunc(key, func(c rune) bool { return c < ' ' || c > '~' })
}

func (s *server) runOnce(ctx context.Context, w http.ResponseWriter, r *http.Request, key string, handle handlerFunc) response {
	scope, sum := keyScope(callerOf(r)), fingerprint(r)
	saved, err := s.opts.Idempotency.Begin(ctx, scope, key, sum)
	if err != nil {
		return s.failure(w, r, keyProblem(err))
	}
	if saved != nil {
		return response{status: saved.Status, header: saved.Header, body: saved.Body}
	}
	res := s.run(ctx, w, r, handle)
	s.keep(r, scope, key, sum, res)
	return res
}

// keep stores an answer that is final, or lets the next request try again. It
// does so also when the caller has gone, and that it fails changes nothing
// about what was done.
func (s *server) keep(r *http.Request, scope, key string, sum [32]byte, res response) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), keepTimeout)
	defer cancel()
	var err error
	if final(res) {
		err = s.opts.Idempotency.Finish(ctx, scope, key, sum,
			idempotency.Response{Status: res.status, Header: res.header, Body: res.body, Secret: res.secret})
	} else {
		err = s.opts.Idempotency.Abort(ctx, scope, key, sum)
	}
	if err != nil {
		s.opts.Logger.WarnContext(ctx, "idempotency key not settled", "error", err)
	}
}

// final reports whether the same request would be answered the same again, and
// the key is this request's.
func final(res response) bool {
	switch res.status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusTooManyRequests:
		return false
	default:
		return res.status < http.StatusInternalServerError && res.code != keyReused
	}
}

// onceFor has storage record the Idempotency-Key, if there is one, with what the
// request creates: the request may come again when its answer was never kept,
// because this process or Redis died before.
func onceFor(r *http.Request) cards.Once {
	key := r.Header.Get(idempotencyHeader)
	if key == "" {
		return cards.Once{}
	}
	scope := keyScope(callerOf(r))
	return cards.Once{Key: sha256.Sum256([]byte(scope + "\x00" + key)), Fingerprint: fingerprint(r)}
}

// keyScope keeps the keys of one client from meeting another's.
func keyScope(c *caller) string {
	company := ""
	if c.Company != nil {
		company = c.Company.String()
	}
	return company + "|" + c.Subject
}

// fingerprint tells requests apart: method, path, query and body.
func fingerprint(r *http.Request) [32]byte {
	h := sha256.New()
	_, _ = fmt.Fprintf(h, "%s %s\n", r.Method, r.URL.RequestURI())
	_, _ = h.Write(raw(r))
	return [32]byte(h.Sum(nil))
}

func keyProblem(err error) error {
	switch {
	case errors.Is(err, idempotency.ErrReused):
		return cards.ErrKeyReused
	case errors.Is(err, idempotency.ErrInProgress):
		return newProblem(http.StatusConflict, "IDEMPOTENCY_KEY_IN_PROGRESS", "The first request with this Idempotency-Key is still under way.").
			with("Retry-After", "1")
	default:
		return err
	}
}
