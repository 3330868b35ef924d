package api

import (
	"context"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"
	"github.com/gorilla/mux"

	"spendhook/auth"
	"spendhook/internal/requestmemory"
)

const (
	mediaJSON    = "application/json"
	mediaProblem = "application/problem+json"
	mediaForm    = "application/x-www-form-urlencoded"
	mediaNDJSON  = "application/x-ndjson"
)

// reply is the answer of a handler; a nil content is an empty body.
type reply struct {
	status   int
	content  any
	body     []byte // the encoded content, without write
	header   http.Header
	secret   bool                  // the content has a secret: it is encrypted when it is stored for an Idempotency-Key
	write    func(io.Writer) error // writes a large content as a stream; nil: body is written
	bytes    int64                 // the estimated memory of the answer
	readPath string                // the path from which a large content can be read later
}

func ok(content any) reply { return reply{status: http.StatusOK, content: content} }

// streamed is the answer 200 with a large content, which is encoded as it is written. Bytes is its
// estimated memory.
func streamed(content any, bytes int64) reply {
	rep := ok(content)
	rep.bytes, rep.write = bytes, func(w io.Writer) error { return json.MarshalWrite(w, content, encoding) }
	return rep
}

func accepted(content any) reply { return reply{status: http.StatusAccepted, content: content} }

// created is the answer with a new resource at path.
func created(content any, path string) reply {
	return reply{status: http.StatusCreated, content: content}.with("Location", path)
}

func noContent() reply { return reply{status: http.StatusNoContent} }

// with sets a header of the answer.
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

// Answer implements gen.ServerInterface. It answers an admitted request by handle, within the
// time-out.
func (s *server) Answer(w http.ResponseWriter, r *http.Request, company *uuid.UUID, body any, handle func(context.Context, *request) (reply, error)) {
	q := requestOf(r)
	q.sent, q.w = r, w
	if q.op.answerBytes > 0 {
		if err := s.reserve(r.Context(), q, q.op.answerBytes); err != nil {
			s.fail(w, r, err)
			return
		}
	}
	defer func() { q.memory.ShrinkTo(0) }()
	ctx, cancel := context.WithTimeout(r.Context(), max(q.op.timeout, s.opts.Timeout))
	defer cancel()
	s.once(ctx, q, func() reply {
		err := q.read(company, body)
		if err != nil {
			return s.failure(w, r, err)
		}
		q.setTarget()
		rep, err := handle(ctx, q)
		s.recordAudit(q, err) //nolint:contextcheck // a cancelled request must not lose the entry
		if err == nil && rep.content != nil && rep.write == nil {
			rep.body, err = encode(rep.content)
			rep.bytes = int64(len(rep.body))
		}
		if err != nil {
			return s.failure(w, r, err)
		}
		return rep
	})
}

// reserve waits for memory for the answer. The bytes of the answers under way are bounded in this process.
// They are reserved before the content is read, and released after it is written.
func (s *server) reserve(ctx context.Context, q *request, bytes int64) error {
	if bytes > singleBytes {
		q.paced = true
		if err := s.checkPace(account(q.Caller)); err != nil {
			return err
		}
	}
	q.memory = s.answers.Open(requestmemory.Bound{Holder: account(q.Caller)})
	if q.memory.Grow(ctx, bytes, s.opts.Timeout) != nil {
		return newProblem("OVERLOADED", "The memory for answers is used up, by the company or in total; try again.")
	}
	return nil
}

// account returns the key by which a caller's memory and bytes are counted: its company, or the client
// when it belongs to none.
func account(c *auth.Caller) string {
	if c.Company != nil {
		return c.Company.String()
	}
	return limitKey(c)
}

// fail answers with the problem of err.
func (s *server) fail(w http.ResponseWriter, r *http.Request, err error) {
	send(w, s.failure(w, r, err))
}

// failure returns the reply for an error. It logs an error that is not the fault of the caller.
func (s *server) failure(w http.ResponseWriter, r *http.Request, err error) reply {
	p, id := problemOf(err), w.Header().Get("X-Request-Id")
	if rec, ok := w.(*recorder); ok {
		rec.refused = p.status == http.StatusTooManyRequests || p.code == "OVERLOADED"
	}
	if p.cause != nil && r.Context().Err() == nil { // the client has not disconnected
		s.opts.Logger.LogAttrs(r.Context(), slog.LevelError, "request failed",
			slog.String("request_id", id), slog.Int("http.response.status_code", p.status), slog.Any("exception.message", p.cause))
	}
	if route := mux.CurrentRoute(r); route != nil {
		template, _ := route.GetPathTemplate() // "" for a path without a route
		p.setMissing(template)
	}
	if r.URL.Path == tokenPath {
		return oauthFailure(p)
	}
	header := http.Header{"Content-Type": {mediaProblem}}
	maps.Copy(header, p.header)
	return reply{status: p.status, header: header, body: encoded(p.document(r, s.opts.PublicURL+"/docs/errors#"+strings.ToLower(p.code), id, s.opts.Now()))}
}

// selfMeasured is the length up to which net/http sets Content-Length itself. A short answer
// has eight header fields. A ninth makes the header map grow, here and in the copy of
// net/http, which costs 2 µs a request.
const selfMeasured = 2048

// send writes a reply and ignores write errors: the client has disconnected. A stream
// that fails closes the connection, since the status has been sent.
func send(w http.ResponseWriter, rep reply) {
	h := w.Header()
	if rep.body != nil || rep.write != nil {
		h.Set("Content-Type", mediaJSON)
	}
	if len(rep.body) > selfMeasured {
		h.Set("Content-Length", strconv.Itoa(len(rep.body)))
	}
	maps.Copy(h, rep.header)
	w.WriteHeader(rep.status)
	if rep.write == nil {
		_, _ = w.Write(rep.body)
	} else if rep.write(w) != nil {
		panic(http.ErrAbortHandler)
	}
}

// encode writes times as RFC 3339 in UTC with milliseconds.
func encode(v any) ([]byte, error) { return json.Marshal(v, encoding) }

// encoded is encode for a value whose encoding cannot fail.
func encoded(v any) []byte {
	text, err := encode(v)
	if err != nil {
		panic(err)
	}
	return text
}

var encoding = json.JoinOptions(json.WithMarshalers(timeMarshaler), json.Deterministic(true), jsontext.AllowInvalidUTF8(true))

var timeMarshaler = json.MarshalToFunc(func(enc *jsontext.Encoder, t time.Time) error {
	return enc.WriteToken(jsontext.String(t.UTC().Format("2006-01-02T15:04:05.000Z")))
})
