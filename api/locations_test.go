package api

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/google/uuid"

	"spendhook/api/gen"
)

func (h *spendHarness) location(members string) uuid.UUID {
	h.t.Helper()
	id := uuid.New()
	h.load(fmt.Sprintf(`{"kind":"location","uuid":%q,"companyUuid":%q,%s}`, id, h.company, members))
	return id
}

func (h *spendHarness) lisbon() uuid.UUID {
	return h.location(`"name":"Lisbon","code":"PT-1","status":"INACTIVE","createdAt":"2026-01-01T00:00:00Z"`)
}

const plainLocation = `"name":"Porto","status":"ACTIVE","createdAt":"2026-01-02T00:00:00Z"`

var locationTests = suite{
	"2.5 location and 4.4 read v1": func(h *spendHarness) {
		id := h.lisbon()
		want := fmt.Sprintf(`{"code":"PT-1","name":"Lisbon","status":"INACTIVE","uuid":%q}`, id)
		if got := h.call("GET", "/api/v1/locations/"+id.String(), "").want(http.StatusOK).Body.String(); got != want {
			h.t.Errorf("got %s, want %s", got, want)
		}
	},
	"2.5 createdAt and 4.4 read v2": func(h *spendHarness) {
		id := h.lisbon()
		want := fmt.Sprintf(`{"code":"PT-1","createdAt":"2026-01-01T00:00:00.000Z","name":"Lisbon","status":"INACTIVE","uuid":%q}`, id)
		a := h.call("GET", "/api/v2/locations/"+strings.ToUpper(id.String()), "").want(http.StatusOK)
		if got := a.Body.String(); got != want || a.Header().Get("Deprecation") != "" {
			h.t.Errorf("got %s, want %s", got, want)
		}
	},
	"4.4 list v1": func(h *spendHarness) { h.listLocations("/api/v1/locations") },
	"4.4 list v2": func(h *spendHarness) { h.listLocations("/api/v2/locations") },
	"3.3 states of a location": func(h *spendHarness) {
		inactive, active := h.lisbon(), h.location(plainLocation)
		for query, want := range map[string][]uuid.UUID{
			"": {inactive, active}, "?status=ACTIVE": {active}, "?status=inactive": {inactive}, "?status=ACTIVE&page=1&size=1": {},
		} {
			if got := uuidsOf(h.t, elements(h.call("GET", "/api/v2/locations"+query, ""))); !slices.Equal(got, want) {
				h.t.Errorf("%s: %v, want %v", query, got, want)
			}
		}
	},
	"contract v1 is deprecated": func(h *spendHarness) {
		id := h.lisbon().String()
		for target, link := range map[string]string{
			"/api/v1/locations/" + id: "/api/v2/locations/" + id, "/api/v1/locations": "/api/v2/locations",
			"/api/v1/locations?status=ACTIVE&size=1": "/api/v2/locations",
		} {
			a := h.call("GET", target, "").want(http.StatusOK)
			if a.Header().Get("Deprecation") != "@1767225600" || relation(h.t, a, "successor-version") != link {
				h.t.Errorf("%s: %v", target, a.Header())
			}
			if linked := h.call("GET", link, "").want(http.StatusOK); linked.Header().Get("Deprecation") != "" {
				h.t.Errorf("%s: %v", link, linked.Header())
			}
		}
		if a := h.call("GET", "/api/v1/locations/"+strings.Repeat("%FF", 5000), ""); a.Header().Get("Deprecation") == "" || len(a.Header().Get("Link")) > maxLinks {
			h.t.Errorf("a link of %d bytes", len(a.Header().Get("Link")))
		}
		if a := h.call("GET", "/api/v1/locations/"+uuid.NewString(), "").want(http.StatusNotFound); a.Header().Get("Deprecation") == "" || relation(h.t, a, "successor-version") == "" {
			h.t.Errorf("not found: %v", a.Header())
		}
	},
	"7 bad input to locations": func(h *spendHarness) {
		id := h.lisbon().String()
		for _, path := range []string{"/api/v1/locations", "/api/v2/locations"} {
			for query, field := range map[string]string{
				"?status=OPEN": "status", "?status=": "status", "?page=-1": "page", "?page=x": "page", "?size=0": "size", "?size=-1": "size",
				"?size=x": "size", "?companyUuid=x": "companyUuid", "/x": "uuid", "/" + id + "0": "uuid",
			} {
				h.call("GET", path+query, "").wantField(field, "INVALID")
			}
			h.call("GET", path+"?state=ACTIVE", "").wantField("state", "UNKNOWN_PARAMETER")
			h.call("GET", path+"/"+uuid.NewString(), "").want(http.StatusNotFound, "NOT_FOUND")
			h.call("GET", path+"/"+id, "", bearer(h.boltToken)).want(http.StatusNotFound, "NOT_FOUND")
			h.call("GET", path+"/"+id, "", bearer(h.mint(nil, allScopes+" platform"))).wantField("companyUuid", "REQUIRED")
			if got := elements(h.call("GET", path, "", bearer(h.boltToken))); len(got) != 0 {
				h.t.Errorf("another company sees %s", got)
			}
			for _, method := range []string{"POST", "PATCH", "DELETE"} {
				h.call(method, path, "{}").want(http.StatusMethodNotAllowed)
			}
		}
	},
}

// listLocations shows the whole list, and pages only when asked to.
func (h *spendHarness) listLocations(path string) {
	h.t.Helper()
	want := []uuid.UUID{h.lisbon()}
	for i := range 24 {
		want = append(want, h.location(fmt.Sprintf(`"name":"L","status":"ACTIVE","createdAt":"2026-02-%02dT00:00:00Z"`, i+1)))
	}
	a := h.call("GET", path, "")
	list := elements(a)
	if got := uuidsOf(h.t, list); !slices.Equal(got, want) || a.Header().Get("X-Total-Count") != "25" {
		h.t.Errorf("%s of %v, want %v", a.Header().Get("X-Total-Count"), got, want)
	}
	if relation(h.t, a, "first") != path || relation(h.t, a, "last") != path || relation(h.t, a, "next") != "" {
		h.t.Errorf("Link %s", a.Header().Get("Link"))
	}
	if got := members(h.t, list[0]); got != "code name status uuid" {
		h.t.Errorf("listed with %s", got)
	}
	h.walk(path+"?size=7", want)
	h.walk(path+"?page=0", want)
	if got := as[[]gen.Location](h.call("GET", path+"?page=1", "")); len(got) != 5 {
		h.t.Errorf("the second page of 20 has %d", len(got))
	}
	if a := h.call("GET", path+"?size=1000000000", ""); relation(h.t, a, "first") != path+"?page=0&size=100" {
		h.t.Errorf("Link %s", a.Header().Get("Link"))
	}
}
