package api

import (
	"context"
	"log/slog"
	"maps"
	"net/http"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/gorilla/mux"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

const (
	mediaJSON    = "application/json"
	mediaProblem = "application/problem+json"
	mediaForm    = "application/x-www-form-urlencoded"
)

// reply is the answer of a handler; a nil content is an empty body.
type reply struct {
	status   int
	content  any
	body     []byte // the encoded content, without stream
	header   http.Header
	secret   bool   // the content holds a secret: stored for an Idempotency-Key, it is encrypted
	stream   bool   // the content is encoded as it is written
	bytes    int64  // about what the answer takes in memory
	readPath string // the path to read the content later, for an answer that may be large
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

// withLocation adds the Location of the created resource, and the path to read it later.
func (r reply) withLocation(path string, company uuid.UUID) reply {
	r.readPath = path + "?companyUuid=" + company.String()
	return r.with("Location", path)
}

// handlerFunc decodes a request, makes one domain call and returns the reply. The context
// has a deadline.
type handlerFunc func(ctx context.Context, c *caller) (reply, error)

// do answers a request with the reply of handle, within the time-out.
func (s *server) do(w http.ResponseWriter, r *http.Request, handle handlerFunc) {
	s.doWithin(w, r, s.opts.Timeout, handle)
}

// doFor is do for a request about one company.
func (s *server) doFor(w http.ResponseWriter, r *http.Request, named *uuid.UUID, handle func(ctx context.Context, company uuid.UUID) (reply, error)) {
	s.do(w, r, func(ctx context.Context, c *caller) (reply, error) {
		company, err := c.companyFor(named)
		if err != nil {
			return reply{}, err
		}
		return handle(ctx, company)
	})
}

func (s *server) doWithin(w http.ResponseWriter, r *http.Request, limit time.Duration, handle handlerFunc) {
	memory, err := s.reserve(r)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	defer memory.shrinkTo(0)
	ctx, cancel := context.WithTimeout(r.Context(), limit)
	defer cancel()
	rep := s.run(ctx, w, r, handle)
	memory.shrinkTo(rep.bytes)
	send(w, rep)
}

// reserve waits for the memory of the answer to a request; nil when the answer takes little.
func (s *server) reserve(r *http.Request) (*reservation, error) {
	c := callerOf(r)
	if c == nil || c.answerBytes == 0 {
		return nil, nil
	}
	return s.reserveBytes(r.Context(), c, c.answerBytes)
}

func (s *server) reserveBytes(ctx context.Context, c *caller, bytes int64) (*reservation, error) {
	if bytes > singleBytes {
		c.paced = true
		if err := s.checkPace(account(c)); err != nil {
			return nil, err
		}
	}
	return s.answers.reserve(ctx, account(c), bytes, s.opts.Timeout)
}

// account returns the key by which a caller's memory, bytes and delayed refusals are counted:
// its company, or the client when it belongs to none.
func account(c *caller) string {
	if c.Company != nil {
		return c.Company.String()
	}
	return limitKey(c.Caller)
}

// run calls handle and encodes its reply.
func (s *server) run(ctx context.Context, w http.ResponseWriter, r *http.Request, handle handlerFunc) reply {
	c := callerOf(r)
	rep, err := handle(ctx, c)
	s.recordAudit(r, c, err)
	if err == nil && rep.content != nil && !rep.stream {
		rep.body, err = encode(rep.content)
		rep.bytes = int64(len(rep.body))
	}
	if err != nil {
		return s.failure(w, r, err)
	}
	return rep
}

// fail answers with the problem of err.
func (s *server) fail(w http.ResponseWriter, r *http.Request, err error) {
	send(w, s.failure(w, r, err))
}

// failure makes a reply of an error, and logs one that is not the caller's.
func (s *server) failure(w http.ResponseWriter, r *http.Request, err error) reply {
	p, id := problemOf(err), w.Header().Get("X-Request-Id")
	if rec, ok := w.(*recorder); ok {
		rec.refused = p.status == http.StatusTooManyRequests || p.code == "OVERLOADED"
	}
	s.logFailure(r, id, p)
	if route := mux.CurrentRoute(r); route != nil {
		template, _ := route.GetPathTemplate() // none at a path without a route
		p.setMissing(template)
	}
	header := http.Header{"Content-Type": {mediaProblem}}
	maps.Copy(header, p.header)
	text, err := encode(p.document(r, s.typeOf(p.code), id, s.opts.Now()))
	if err != nil {
		s.opts.Logger.Error("encode problem", "request_id", id, "exception.message", err)
	}
	return reply{status: p.status, header: header, body: text}
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

// send writes a reply and ignores write errors: the client has disconnected. A stream
// that fails closes the connection, since the status has been sent.
func send(w http.ResponseWriter, rep reply) {
	h := w.Header()
	if rep.stream {
		h.Set("Content-Type", mediaJSON)
		maps.Copy(h, rep.header)
		w.WriteHeader(rep.status)
		if json.MarshalWrite(w, rep.content, encoding) != nil {
			panic(http.ErrAbortHandler)
		}
		return
	}
	if rep.body != nil {
		h.Set("Content-Type", mediaJSON)
		if len(rep.body) > selfMeasured {
			h.Set("Content-Length", strconv.Itoa(len(rep.body)))
		}
	}
	maps.Copy(h, rep.header)
	w.WriteHeader(rep.status)
	_, _ = w.Write(rep.body)
}

// encode writes times as RFC 3339 in UTC with milliseconds.
func encode(v any) ([]byte, error) { return json.Marshal(v, encoding) }

var encoding = json.JoinOptions(json.WithMarshalers(timeMarshaler), json.Deterministic(true), jsontext.AllowInvalidUTF8(true))

var timeMarshaler = json.MarshalToFunc(func(enc *jsontext.Encoder, t time.Time) error {
	return enc.WriteToken(jsontext.String(t.UTC().Format("2006-01-02T15:04:05.000Z")))
})
