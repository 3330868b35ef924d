package api

import (
	"context"
	_ "embed" // the document
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/getkin/kin-openapi/openapi3"
)

//go:embed openapi.yaml
var documentSource []byte

const (
	bodyLimit      = 1 << 20 // bytes
	eventBodyLimit = 8 << 20
	tokenBodyLimit = 32 << 10
	singleBytes    = 512 << 10 // of an answer that is no list: an event and its metadata are the most
)

// operation is what the document says of one, as far as it is enforced here.
type operation struct {
	id, method, route string
	group             string   // its tag in lower case, a switch of tls.client_certificates; "" when it has not just one
	action            string   // its name in the audit log; "" when it has none
	lines             bool     // it can answer NDJSON too
	public            bool     // no token is needed; said by "security: []" and by nothing else
	scopes            []string // that the token needs
	path, query       map[string]*parameter
	hasBody           bool
	form              bool     // the body is a form, not JSON, and errors are those of OAuth
	maxBody           int64    // bytes
	answer            int64    // bytes that its answer may take in memory, while it is under way; 0 when that is bounded otherwise
	codes             []string // of its answers
}

// routes are the operations by path template and method.
type routes map[string]map[string]*operation

// document is the embedded document and its JSON. Nobody changes it.
type document struct {
	*openapi3.T
	text []byte
}

// parse reads the embedded document, once.
var parse = sync.OnceValues(func() (d document, err error) {
	if d.T, err = openapi3.NewLoader().LoadFromData(documentSource); err != nil {
		return d, err
	}
	if err = d.Validate(context.Background(), openapi3.DisableExamplesValidation()); err != nil {
		return d, err
	}
	d.text, err = d.MarshalJSON()
	return d, err
})

// loadDocument returns the embedded document as JSON, with the operations it
// describes.
func loadDocument() ([]byte, routes, error) {
	doc, err := parse()
	if err != nil {
		return nil, nil, err
	}
	all := routes{}
	for route, item := range doc.Paths.Map() {
		all[route] = map[string]*operation{}
		for method, op := range item.Operations() {
			all[route][method] = newOperation(doc.T, route, method, item, op)
		}
	}
	return doc.text, all, nil
}

func newOperation(doc *openapi3.T, route, method string, item *openapi3.PathItem, op *openapi3.Operation) *operation {
	o := &operation{
		id: op.OperationID, method: method, route: route,
		path: map[string]*parameter{}, query: map[string]*parameter{},
		hasBody: op.RequestBody != nil, maxBody: bodyLimit,
	}
	if o.id == "ingestEvents" {
		o.maxBody = eventBodyLimit
	}
	if len(op.Tags) == 1 {
		o.group = strings.ToLower(op.Tags[0])
	}
	if o.hasBody && op.RequestBody.Value.Content.Get(mediaForm) != nil {
		o.form, o.maxBody = true, tokenBodyLimit
	}
	for _, ref := range slices.Concat(item.Parameters, op.Parameters) {
		switch p := ref.Value; p.In {
		case openapi3.ParameterInQuery:
			o.query[p.Name] = newParameter(p)
		case openapi3.ParameterInPath:
			o.path[p.Name] = newParameter(p)
		}
	}
	security := doc.Security
	if op.Security != nil {
		security = *op.Security
		o.public = len(security) == 0
	}
	for _, requirement := range security { // alternatives of which one has the scopes
		for _, scopes := range requirement {
			o.scopes = append(o.scopes, scopes...)
		}
	}
	if method == http.MethodGet && !o.public && o.query["wait"] == nil {
		o.answer = singleBytes
		if o.query["size"] != nil {
			o.answer = pageBytes
		}
	}
	o.action = actions[o.id]
	if success := op.Responses.Value("200"); success != nil {
		o.lines = success.Value.Content.Get(mediaLines) != nil
	}
	for code := range op.Responses.Map() {
		o.codes = append(o.codes, code)
	}
	return o
}

// allowed lists the methods of a route, sorted, for an Allow header.
func (r routes) allowed(route string) []string {
	methods := []string{}
	for method := range r[route] {
		methods = append(methods, method)
		if method == http.MethodGet {
			methods = append(methods, http.MethodHead)
		}
	}
	slices.Sort(methods)
	return methods
}
