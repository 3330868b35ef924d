package api

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/gorilla/mux"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"spendhook/events"
)

const (
	mediaJSON    = "application/json"
	mediaProblem = "application/problem+json"
	mediaForm    = "application/x-www-form-urlencoded"
)

// reply is what a handler answers; a nil content is an empty body.
type reply struct {
	status  int
	content any
	header  http.Header
	secret  bool   // the content holds a secret
	stream  bool   // the content is encoded as it is written
	bytes   int64  // about what a stream takes in memory
	read    string // the path to read the content later, for an answer that may be large
}

func ok(content any) reply { return reply{status: http.StatusOK, content: content} }

func noContent() reply { return reply{status: http.StatusNoContent} }

// with adds a header that the answer has beside the usual ones.
func (r reply) with(name, value string) reply {
	r.header = maps.Clone(r.header)
	if r.header == nil {
		r.header = http.Header{}
	}
	r.header.Set(name, value)
	return r
}

// at adds the Location of the created resource, and the path to read it later.
func (r reply) at(path string, company uuid.UUID) reply {
	r.read = path + "?companyUuid=" + company.String()
	return r.with("Location", path)
}

// response is a reply or a problem in its final bytes, or the content of a stream.
type response struct {
	status int
	header http.Header
	body   []byte
	stream any
	bytes  int64  // that it takes in memory
	read   string // the path to read the content later
	code   string // of a problem
	secret bool   // stored for an Idempotency-Key, the body is encrypted
}

// handlerFunc decodes a request, makes one domain call and returns the reply. The context
// has a deadline.
type handlerFunc func(ctx context.Context, c *caller) (reply, error)

// do answers a request with what handle says, within the time-out.
func (s *server) do(w http.ResponseWriter, r *http.Request, handle handlerFunc) {
	s.doWithin(w, r, s.opts.Timeout, handle)
}

func (s *server) doWithin(w http.ResponseWriter, r *http.Request, limit time.Duration, handle handlerFunc) {
	memory, err := s.board(r)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	defer memory.keep(0)
	ctx, cancel := context.WithTimeout(r.Context(), limit)
	defer cancel()
	res := s.run(ctx, w, r, handle)
	memory.keep(res.bytes)
	send(w, res)
}

// board takes the memory of an answer before it is read; nil when it takes little.
func (s *server) board(r *http.Request) (*share, error) {
	c := callerOf(r)
	if c == nil || c.bytes == 0 {
		return nil, nil
	}
	return s.boardBytes(r.Context(), c, c.bytes)
}

func (s *server) boardBytes(ctx context.Context, c *caller, bytes int64) (*share, error) {
	if bytes > singleBytes {
		c.paced = true
		if err := s.checkPace(account(c)); err != nil {
			return nil, err
		}
	}
	return s.flight.take(ctx, account(c), bytes, s.opts.Timeout)
}

// account names what a caller's memory, bytes and delayed refusals are counted for: its
// company, or the client when it belongs to none.
func account(c *caller) string {
	if c.Company != nil {
		return c.Company.String()
	}
	return limitKey(c.Caller)
}

// run calls handle and encodes what it says.
func (s *server) run(ctx context.Context, w http.ResponseWriter, r *http.Request, handle handlerFunc) response {
	c := callerOf(r)
	rep, err := handle(ctx, c)
	s.record(r, c, err)
	if err != nil {
		return s.failure(w, r, err)
	}
	res := response{status: rep.status, header: rep.header, secret: rep.secret, read: rep.read}
	switch {
	case rep.content == nil:
		return res
	case rep.stream:
		res.stream, res.bytes = rep.content, rep.bytes
		return res
	}
	if res.body, err = encode(rep.content); err != nil {
		return s.failure(w, r, err)
	}
	res.bytes = int64(len(res.body))
	return res
}

// fail answers with the problem of err.
func (s *server) fail(w http.ResponseWriter, r *http.Request, err error) {
	send(w, s.failure(w, r, err))
}

// failure makes a response of an error, and logs one that is not the caller's.
func (s *server) failure(w http.ResponseWriter, r *http.Request, err error) response {
	if s.opts.Unavailable(err) {
		err = fmt.Errorf("%w: %w", events.ErrUnavailable, err)
	}
	p, id := problemOf(err), w.Header().Get("X-Request-Id")
	if rec, ok := w.(*recorder); ok {
		rec.refused = p.status == http.StatusTooManyRequests || p.code == "OVERLOADED"
	}
	s.logFailure(r, id, p)
	if route := mux.CurrentRoute(r); route != nil {
		template, _ := route.GetPathTemplate() // none at a path without a route
		p.naming(template)
	}
	header := http.Header{"Content-Type": {mediaProblem}}
	maps.Copy(header, p.header)
	text, err := encode(p.document(r, s.typeOf(p.code), id, s.opts.Now()))
	if err != nil {
		s.opts.Logger.Error("encode problem", "request_id", id, "exception.message", err)
	}
	return response{status: p.status, header: header, body: text, code: p.code}
}

// logFailure logs a problem that the caller did not cause, unless the client disconnected.
func (s *server) logFailure(r *http.Request, id string, p *problem) {
	if p.cause != nil && r.Context().Err() == nil {
		s.opts.Logger.LogAttrs(r.Context(), slog.LevelError, "request failed",
			slog.String("request_id", id), slog.Int("http.response.status_code", p.status), slog.Any("exception.message", p.cause))
	}
}

// selfMeasured is the length up to which net/http sets Content-Length itself. A short answer
// has eight header fields. A ninth makes the header map grow, here and in the copy of
// net/http, which costs 2 µs a request.
const selfMeasured = 2048

// send writes a response and ignores write errors: the client has disconnected. A stream
// that fails closes the connection, since the status has been sent.
func send(w http.ResponseWriter, res response) {
	h := w.Header()
	if res.stream != nil {
		h.Set("Content-Type", mediaJSON)
		maps.Copy(h, res.header)
		w.WriteHeader(res.status)
		if json.MarshalWrite(w, res.stream, encoding) != nil {
			panic(http.ErrAbortHandler)
		}
		return
	}
	if res.body != nil {
		h.Set("Content-Type", mediaJSON)
		if len(res.body) > selfMeasured {
			h.Set("Content-Length", strconv.Itoa(len(res.body)))
		}
	}
	maps.Copy(h, res.header)
	w.WriteHeader(res.status)
	_, _ = w.Write(res.body)
}

// encode writes times as RFC 3339 in UTC with milliseconds.
func encode(v any) ([]byte, error) { return json.Marshal(v, encoding) }

var encoding = json.JoinOptions(json.WithMarshalers(timeMarshaler), json.Deterministic(true), jsontext.AllowInvalidUTF8(true))

var timeMarshaler = json.MarshalToFunc(func(enc *jsontext.Encoder, t time.Time) error {
	return enc.WriteToken(jsontext.String(t.UTC().Format("2006-01-02T15:04:05.000Z")))
})
