package api

import (
	"cmp"
	"errors"
	"io"
	"mime"
	"net/http"
	"os"
	"reflect"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"

	"spendhook/api/gen"
	"spendhook/events"
	"spendhook/internal/requestmemory"
	"spendhook/internal/syntax"
	"spendhook/internal/timestamp"
)

// maxNesting is how deeply the objects and arrays of a body, or of one event of an array, may nest.
const maxNesting = 64

// receive reads the body of a request into q.body. The caller frees q.bodyMemory.
func (s *server) receive(w http.ResponseWriter, r *http.Request, q *request) (err error) {
	op := q.op
	limit, media := op.maxBody, mediaJSON
	if op.form {
		media = mediaForm
	}
	memory := s.opts.Bodies.Open(r.Context(), q.companyName())
	defer func() {
		if err != nil {
			memory.ShrinkTo(0)
		}
	}()
	raw, err := readAll(http.MaxBytesReader(w, r.Body, limit), min(r.ContentLength, limit), func(n int) error { //nolint:contextcheck // the request has the context
		return s.opts.Bodies.Grow(r.Context(), memory, n)
	})
	if errors.Is(err, requestmemory.ErrFull) {
		return newProblem("TOO_MANY_BODIES", "Too many bodies are being received; try again.")
	}
	if _, tooLarge := errors.AsType[*http.MaxBytesError](err); tooLarge {
		return newProblem("BODY_TOO_LARGE", "The body is larger than %d bytes.", limit)
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return newProblem("REQUEST_TIMEOUT", "The body did not arrive in time.").with("Connection", "close")
	}
	if err != nil {
		return newProblem("BODY_UNREADABLE", "The body could not be read.")
	}
	if len(raw) > 0 && (!isMedia(r.Header.Get("Content-Type"), media) || !isPlain(r.Header)) {
		return newProblem("UNSUPPORTED_MEDIA_TYPE", "The body must be %s in UTF-8, not compressed.", media)
	}
	if len(raw) == 0 && op.needsBody {
		return newProblem("BODY_REQUIRED", "A JSON body is required.")
	}
	q.body, q.bodyMemory = raw, memory
	return nil
}

// companyName is the company of the token, "" for none.
func (q *request) companyName() string {
	if q.Caller == nil || q.Company == nil {
		return ""
	}
	return q.Company.String()
}

// readAll is io.ReadAll that calls grow before each allocation. The first allocation is for the
// announced length, up to a bound. Later ones follow the received bytes, because a client could
// announce a large body and send nothing.
func readAll(from io.Reader, announced int64, grow func(n int) error) (text []byte, err error) {
	const trusted, spare = 16 << 10, 512
	size := int(min(max(announced, 0), trusted)) + spare
	for err == nil {
		if len(text) == cap(text) {
			if err = grow(size - cap(text)); err != nil {
				return nil, err
			}
			text = append(make([]byte, 0, size), text...)
			if size *= 2; announced > int64(len(text)) {
				size = min(size, int(announced)+spare)
			}
		}
		var n int
		n, err = from.Read(text[len(text):cap(text)])
		text = text[:len(text)+n]
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return text, err
}

func isMedia(contentType, media string) bool {
	if contentType == media {
		return true
	}
	kind, params, err := mime.ParseMediaType(contentType)
	charset, given := params["charset"]
	return err == nil && kind == media && (!given || strings.EqualFold(charset, "utf-8") || strings.EqualFold(charset, "utf8"))
}

// isPlain reports whether the body is not compressed.
func isPlain(h http.Header) bool {
	coding := h.Get("Content-Encoding")
	return coding == "" || strings.EqualFold(coding, "identity")
}

// decodeJSON reads text as one JSON value, strictly: no unknown or duplicate
// members, no trailing data, no invalid UTF-8, no wrong types. Its errors name
// the place and never repeat a value.
func decodeJSON(text []byte, into any) error {
	reading, nesting := strict, maxNesting
	switch into.(type) {
	case *events.Event: // events.Event checks the nesting of its fields and names the field
		reading, nesting = lenient, 2*maxNesting
	case *gen.CardCreate:
		reading = lenient
	}
	if syntax.NestsDeeper(text, nesting) {
		return malformed("The body nests deeper than %d levels.", nesting)
	}
	err := json.Unmarshal(text, into, reading)
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*jsontext.SyntacticError](err); ok {
		return syntaxProblem(e)
	}
	if e, ok := errors.AsType[*json.SemanticError](err); ok {
		return semanticProblem(e)
	}
	return malformed("The body is not valid JSON.")
}

// lenient reads null as an absent member, as the document allows in events and in requests
// for cards.
var lenient = json.JoinOptions(json.RejectUnknownMembers(true), json.WithUnmarshalers(plainUUID))

// plainUUID reads UUIDs in the form of 36 characters only. It refuses the nil UUID, which means an
// absent UUID in the code.
var plainUUID = json.UnmarshalFromFunc(func(dec *jsontext.Decoder, id *uuid.UUID) error {
	if dec.PeekKind() != jsontext.KindString {
		return errors.ErrUnsupported
	}
	token, err := dec.ReadToken()
	if err != nil {
		return err
	}
	if text := token.String(); len(text) != len(uuid.UUID{}.String()) {
		return errUUID
	} else if *id, err = uuid.Parse(text); err != nil || *id == uuid.Nil {
		return errUUID
	}
	return nil
})

var errUUID = errors.New("not a UUID")

// strict refuses null, except in a map of changes, where null removes a member, and in a
// raw jsontext.Value. It reads times in the forms of package timestamp.
var strict = json.JoinOptions(json.RejectUnknownMembers(true), json.WithUnmarshalers(json.JoinUnmarshalers(
	plainUUID,
	json.UnmarshalFromFunc(func(dec *jsontext.Decoder, at *time.Time) (err error) {
		*at, err = timestamp.Decode(dec)
		return err
	}),
	json.UnmarshalFromFunc(func(dec *jsontext.Decoder, changes *map[string]*string) error {
		plain := map[string]*string{}
		err := json.UnmarshalDecode(dec, &plain, json.WithUnmarshalers(nil))
		*changes = plain
		return err
	}),
	json.UnmarshalFromFunc(func(dec *jsontext.Decoder, into any) error {
		if _, asIs := into.(*jsontext.Value); asIs || dec.PeekKind() != jsontext.KindNull {
			return errors.ErrUnsupported
		}
		if err := dec.SkipValue(); err != nil {
			return err
		}
		return errNull
	}),
)))

var errNull = errors.New("null")

func malformed(format string, args ...any) error {
	return newProblem("MALFORMED_BODY", format, args...)
}

func syntaxProblem(e *jsontext.SyntacticError) error {
	if errors.Is(e, jsontext.ErrDuplicateName) {
		return fieldProblem(clipped(string(e.JSONPointer)), "DUPLICATE_FIELD", "is given twice")
	}
	return malformed("The body is not valid JSON in UTF-8, at byte %d.", e.ByteOffset)
}

func semanticProblem(e *json.SemanticError) error {
	field := clipped(string(e.JSONPointer))
	if errors.Is(e, json.ErrUnknownName) {
		return fieldProblem(field, "UNKNOWN_FIELD", "is not a known field")
	}
	if errors.Is(e, errNull) {
		return fieldProblem(field, "INVALID", "must not be null; leave it out instead")
	}
	return fieldProblem(field, "INVALID", "must be %s", expected(e))
}

var uuidType = reflect.TypeFor[uuid.UUID]()

// expectedOf describes the values of a kind.
var expectedOf = map[reflect.Kind]string{
	reflect.String: "a string", reflect.Bool: "true or false", reflect.Int: "an integer", reflect.Int64: "an integer",
	reflect.Slice: "an array", reflect.Struct: "an object", reflect.Map: "an object",
}

// expected describes the value that was expected where e occurred.
func expected(e *json.SemanticError) string {
	switch {
	case errors.Is(e, timestamp.Err):
		return timestamp.Err.Error()
	case e.GoType == nil:
		return "of another type"
	case e.GoType == uuidType:
		return "a UUID that is not all zeros"
	default:
		return cmp.Or(expectedOf[e.GoType.Kind()], "of another type")
	}
}
