package api

import (
	"context"
	_ "embed" // the document
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/go-json-experiment/json"
)

//go:embed openapi.yaml
var documentSource []byte

const (
	bodyLimit      = 1 << 20 // bytes
	eventBodyLimit = 8 << 20
	tokenBodyLimit = 32 << 10
	singleBytes    = 512 << 10 // memory of an answer with one object; the largest is an event with its metadata
	// readBytes is the memory to read a page of events: the raw events and the decoded ones. So one
	// company reads at most three such pages at a time.
	readBytes = 2 * pageBytes
)

// operation is the part of an operation in the document that this package enforces.
type operation struct {
	id, method, route string
	group             string   // its tag in lower case, a key of tls.client_certificates; "" unless it has one tag
	action            string   // its name in the audit log; "": not audited
	ndjson            bool     // it can answer NDJSON too
	public            bool     // no token is needed: the document says "security: []"
	scopes            []string // that the token needs
	ofCompany         bool     // it is about one company, whose companyUuid is in the token, the query or the body
	ofList            bool     // it lists the items of one company or of all companies
	idempotent        bool     // it takes an Idempotency-Key
	path, query       map[string]*parameter
	hasBody           bool
	needsBody         bool  // a JSON body must be sent
	form              bool  // the body is a form, not JSON, and errors are those of OAuth
	maxBody           int64 // bytes
	answerBytes       int64 // maximum memory of its answer; 0 when the handler reserves the memory, or the answer is small
	timeout           time.Duration
	codes             []string // status codes of its answers
}

// Operations that have a rule of their own.
const (
	ingestEvents = "ingestEvents"
	readFeed     = "readSubscriberFeed"
)

// timeouts has the operations that may take longer than the others, unless the time-out of Options is longer still: they wait
// for a receiver, or up to 30 s for events, or search for 2 s.
var timeouts = map[string]time.Duration{
	"listEvents":     3 * time.Second,
	"testSubscriber": 20 * time.Second, "verifySubscriber": 20 * time.Second, "updateSubscriber": 20 * time.Second, readFeed: 35 * time.Second,
}

// findsCompany has the operations whose handlers find the company: items of the body may name it, or
// the scopes of the token decide whether the request must name it.
var findsCompany = map[string]bool{
	ingestEvents: true, "createCards": true, "createConsoleLink": true, "endConsoleSession": true,
}

// routes are the operations by path template and method.
type routes map[string]map[string]*operation

// document is the embedded document, its JSON and its error codes. It is read-only.
type document struct {
	*openapi3.T
	text  []byte
	codes map[string]errorCode
}

// parse reads the embedded document, once.
var parse = sync.OnceValues(func() (d document, err error) {
	if d.T, err = openapi3.NewLoader().LoadFromData(documentSource); err != nil {
		return d, err
	}
	if err = d.Validate(context.Background(), openapi3.DisableExamplesValidation()); err != nil {
		return d, err
	}
	if d.text, err = served(d.T); err != nil {
		return d, err
	}
	var extensions struct {
		Codes map[string]errorCode `json:"x-error-codes"`
	}
	err = json.Unmarshal(d.text, &extensions, json.MatchCaseInsensitiveNames(true))
	d.codes = extensions.Codes
	return d, err
})

// exampleDay is the day of the examples in the document; exampleTime is a time on that day,
// in epoch milliseconds.
const (
	exampleDay  = "2026-11-20"
	exampleTime = "1795201200000"
)

// served returns the document as JSON for clients and generators, without the x-go-
// extensions.
func served(doc *openapi3.T) ([]byte, error) {
	text, err := doc.MarshalJSON()
	if err != nil {
		return nil, err
	}
	var whole any
	if err := json.Unmarshal(text, &whole); err != nil {
		return nil, err
	}
	eachObject(whole, func(object map[string]any) bool {
		maps.DeleteFunc(object, func(key string, _ any) bool { return strings.HasPrefix(key, "x-go-") })
		return true
	})
	return json.Marshal(whole, json.Deterministic(true))
}

// eachObject calls visit for the objects in a JSON value. It does not look into an object for
// which visit returns false.
func eachObject(node any, visit func(object map[string]any) bool) {
	switch node := node.(type) {
	case map[string]any:
		if visit(node) {
			for _, child := range node {
				eachObject(child, visit)
			}
		}
	case []any:
		for _, child := range node {
			eachObject(child, visit)
		}
	}
}

// asOf moves the dates of the examples to the day before now. Then the examples can be sent
// unchanged: the API refuses events that are too old or in the future.
func asOf(text []byte, now time.Time) []byte {
	day, _ := time.Parse(time.DateOnly, exampleDay)
	days := now.UTC().Truncate(24*time.Hour).Sub(day) - 24*time.Hour
	at, _ := strconv.ParseInt(exampleTime, 10, 64)
	shift := func(t time.Time) string { return t.Add(days).Format(time.DateOnly) }
	return []byte(strings.NewReplacer(
		exampleDay, shift(day),
		day.AddDate(0, 0, -1).Format(time.DateOnly), shift(day.AddDate(0, 0, -1)),
		exampleTime, strconv.FormatInt(at+days.Milliseconds(), 10),
	).Replace(string(text)))
}

// routes returns the operations that the document describes.
func (d document) routes() routes {
	all := routes{}
	for route, item := range d.Paths.Map() {
		all[route] = map[string]*operation{}
		for method, op := range item.Operations() {
			all[route][method] = newOperation(d.T, route, method, item, op)
		}
	}
	return all
}

func newOperation(doc *openapi3.T, route, method string, item *openapi3.PathItem, op *openapi3.Operation) *operation {
	o := &operation{
		id: op.OperationID, method: method, route: route,
		path: map[string]*parameter{}, query: map[string]*parameter{},
		hasBody: op.RequestBody != nil, maxBody: bodyLimit, timeout: timeouts[op.OperationID],
	}
	o.action, _ = op.Extensions["x-audit"].(string)
	if o.id == ingestEvents {
		o.maxBody = eventBodyLimit
	}
	if len(op.Tags) == 1 {
		o.group = strings.ToLower(op.Tags[0])
	}
	if o.hasBody {
		o.form = op.RequestBody.Value.Content.Get(mediaForm) != nil
		o.needsBody = op.RequestBody.Value.Required && !o.form
	}
	if o.form {
		o.maxBody = tokenBodyLimit
	}
	for _, ref := range slices.Concat(item.Parameters, op.Parameters) {
		switch p := ref.Value; p.In {
		case openapi3.ParameterInQuery:
			o.query[p.Name] = newParameter(p)
			o.ofCompany = o.ofCompany || strings.HasSuffix(ref.Ref, "/CompanyUuid") && !findsCompany[o.id]
			o.ofList = o.ofList || strings.HasSuffix(ref.Ref, "/CompanyFilter")
		case openapi3.ParameterInPath:
			o.path[p.Name] = newParameter(p)
		case openapi3.ParameterInHeader:
			o.idempotent = o.idempotent || p.Name == idempotencyHeader
		}
	}
	security := doc.Security
	if op.Security != nil {
		security = *op.Security
		o.public = len(security) == 0
	}
	for _, requirement := range security { // alternatives; one of them has the scopes
		for _, scopes := range requirement {
			o.scopes = append(o.scopes, scopes...)
		}
	}
	o.answerBytes = answerBytesOf(o)
	if success := op.Responses.Value("200"); success != nil {
		o.ndjson = success.Value.Content.Get(mediaNDJSON) != nil
	}
	for code := range op.Responses.Map() {
		o.codes = append(o.codes, code)
	}
	return o
}

// answerBytesOf returns the answerBytes of an operation whose parameters are set.
func answerBytesOf(o *operation) int64 {
	switch {
	case o.method != http.MethodGet || o.public || o.id == readFeed:
		return 0
	case o.id == "listEvents":
		return readBytes
	case o.query["size"] != nil || o.id == "listEventTypes":
		return pageBytes
	default:
		return singleBytes
	}
}
