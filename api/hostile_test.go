package api

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
)

// What says nothing of its security needs a token.
func TestOnlyAnEmptySecurityIsPublic(t *testing.T) {
	t.Parallel()
	for text, public := range map[string]bool{
		`security: []`:                         true,
		`security: [{bearer: []}]`:             false,
		`security: [{oauth2: ["cards:read"]}]`: false,
		`description: of its security nothing`: false,
	} {
		doc, err := openapi3.NewLoader().LoadFromData([]byte(`{openapi: 3.0.3, info: {title: x, version: x}, security: [{bearer: []}],
paths: {/x: {get: {operationId: x, responses: {"200": {description: x}}, ` + text + "}}}}"))
		if err != nil {
			t.Fatal(err)
		}
		item := doc.Paths.Value("/x")
		if op := newOperation(doc, "/x", http.MethodGet, item, item.Get); op.public != public {
			t.Errorf("%s: public %v", text, op.public)
		}
	}
}

// Eight megabytes are four million items; what is read of them is bounded.
func TestAHugeBatchIsNotReadWhole(t *testing.T) { // not parallel: it counts allocations
	huge := []byte("[" + strings.Repeat("1,", eventBodyLimit/2-2) + "1]")
	made := testing.AllocsPerRun(2, func() {
		if items, err := split(huge); items != nil || err == nil {
			t.Fatalf("%d items, %v", len(items), err)
		}
	})
	if made > 2*maxBatch {
		t.Errorf("%.0f allocations for an array that is refused", made)
	}
}

func TestThousandsOfUnknownParametersHaveAShortAnswer(t *testing.T) {
	t.Parallel()
	h := setup(t)
	var query strings.Builder
	for i := range 5000 {
		fmt.Fprintf(&query, "p%d&", i)
	}
	a := h.call("GET", "/api/v1/events?"+query.String(), "").want(http.StatusBadRequest, "VALIDATION_ERROR")
	if n := len(a.problem().Errors); n != maxProblems || a.Body.Len() > 8<<10 {
		t.Errorf("%d errors in %d bytes", n, a.Body.Len())
	}
}
