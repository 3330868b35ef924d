package api

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/google/uuid"
)

// An operation without a security requirement of its own needs a token.
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

// A body of 8 MiB can hold four million items. The parser stops after maxBatch.
func TestAHugeBatchIsNotParsedWhole(t *testing.T) { // not parallel: it counts allocations
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

// A Content-Length of 8 MiB alone makes the daemon allocate no 8 MiB.
func TestContentLengthAllocatesNothing(t *testing.T) {
	t.Parallel()
	taken := 0
	grow := func(n int) error { taken += n; return nil }
	text, err := readAll(strings.NewReader("{}"), eventBodyLimit, grow)
	if err != nil || string(text) != "{}" || cap(text) > 32<<10 || taken < cap(text) {
		t.Errorf("%q with a capacity of %d bytes, of which %d are counted, %v", text, cap(text), taken, err)
	}
	long := strings.Repeat("x", eventBodyLimit)
	for _, announced := range []int64{eventBodyLimit, -1, 0, 100} {
		taken = 0
		text, err := readAll(strings.NewReader(long), announced, grow)
		if err != nil || string(text) != long || taken < len(text) || announced == eventBodyLimit && taken > len(text)+bytes.MinRead {
			t.Errorf("announced %d: %d bytes, %d counted, %v", announced, len(text), taken, err)
		}
	}
	full := errors.New("full")
	if text, err := readAll(strings.NewReader(long), -1, func(n int) error {
		if n > 1<<20 {
			return full
		}
		return nil
	}); len(text) > 0 || !errors.Is(err, full) {
		t.Errorf("%d bytes, %v", len(text), err)
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

// A cursor of another company is refused.
func TestCursorOfAnotherCompanyIsRefused(t *testing.T) {
	t.Parallel()
	h := setup(t)
	other := uuid.New()
	for i := range 3 {
		h.call("POST", "/api/v1/events", event(fmt.Sprint("mine-", i))).want(http.StatusAccepted)
		h.call("POST", "/api/v1/events", event(fmt.Sprint("theirs-", i)), bearer(h.mint(&other, allScopes))).want(http.StatusAccepted)
	}
	create(h, hooks)
	h.call("POST", "/api/v1/events/mine-0/replay", "").want(http.StatusAccepted)
	h.call("POST", "/api/v1/events/mine-1/replay", "").want(http.StatusAccepted)
	mine := bearer(h.token)
	platform := bearer(h.mint(nil, allScopes+" platform"))
	for _, path := range []string{"/api/v1/events", "/api/v1/deliveries"} {
		for _, who := range []option{mine, platform} {
			next := as[struct{ NextCursor string }](h.call("GET", path+"?size=1&companyUuid="+h.company.String(), "", who).want(http.StatusOK)).NextCursor
			if next == "" {
				t.Fatalf("%s has no second page", path)
			}
			h.call("GET", path+"?size=1&cursor="+next, "", mine).want(http.StatusOK)
			h.call("GET", path+"?size=1&cursor="+next, "", bearer(h.mint(&other, allScopes))).wantField("cursor", "INVALID")
		}
	}
}
