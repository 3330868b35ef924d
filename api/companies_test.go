package api

import (
	"net/http"
	"strings"
	"testing"

	"github.com/google/uuid"

	"spendhook/api/gen"
)

// TestACompanyIsNamedAndFound with the entries of the audit log.
func TestACompanyIsNamedAndFound(t *testing.T) {
	t.Parallel()
	h := setup(t)
	id := uuid.New()
	path := "/api/v1/companies/" + id.String()
	h.call("GET", path, "", h.platform()).want(http.StatusNotFound, "NOT_FOUND")
	a := h.call("PUT", path, `{"name":" Ácme Inc. "}`, h.platform()).want(http.StatusCreated)
	if c := as[gen.Company](a); c.UUID != id || c.Name != "Ácme Inc." {
		h.t.Errorf("named: %+v", c)
	}
	h.call("PUT", path, `{"name":"Ácme Inc."}`, h.platform()).want(http.StatusOK)
	if got := h.call("GET", path, "", h.platform()).want(http.StatusOK); got.Body.String() != a.Body.String() {
		h.t.Errorf("read: %s", got.Body)
	}
	list := as[gen.CompanyList](h.call("GET", "/api/v1/companies?search=inc%20acme", "", h.platform()).want(http.StatusOK))
	if len(list.Content) != 1 || list.Content[0].UUID != id {
		h.t.Errorf("found: %+v", list)
	}
	names := 0
	for _, e := range h.auditedOf("action=company.name") {
		if e.CompanyUUID != nil && *e.CompanyUUID == id {
			names++
		}
	}
	if names != 2 {
		h.t.Errorf("%d entries in the audit log", names)
	}
}

var companyTests = suite{
	"companies are listed page by page": func(h *spendHarness) {
		for _, name := range []string{"Zed 1", "Zed 2", "Zed 3"} {
			h.call("PUT", "/api/v1/companies/"+uuid.NewString(), `{"name":"`+name+`"}`, h.platform()).want(http.StatusCreated)
		}
		first := as[gen.CompanyList](h.call("GET", "/api/v1/companies?search=zed&size=2", "", h.platform()).want(http.StatusOK))
		next := as[gen.CompanyList](h.call("GET", "/api/v1/companies?search=zed&size=2&cursor="+first.NextCursor, "", h.platform()).want(http.StatusOK))
		if len(first.Content) != 2 || len(next.Content) != 1 || next.Content[0].Name != "Zed 3" || next.NextCursor != "" {
			h.t.Errorf("%+v, then %+v", first, next)
		}
		h.call("GET", "/api/v1/companies?search=other&cursor="+first.NextCursor, "", h.platform()).want(http.StatusBadRequest, "VALIDATION_ERROR")
	},
	"names of companies are the platform's": func(h *spendHarness) {
		path := "/api/v1/companies/" + h.company.String()
		for _, request := range [][3]string{{"GET", "/api/v1/companies", ""}, {"GET", path, ""}, {"PUT", path, `{"name":"Mine"}`}} {
			h.call(request[0], request[1], request[2]).want(http.StatusForbidden, "INSUFFICIENT_SCOPE")
		}
		for _, wrong := range []string{`{}`, `{"name":" "}`, `{"name":"a\nb"}`, `{"name":"` + strings.Repeat("é", 201) + `"}`} {
			h.call("PUT", path, wrong, h.platform()).want(http.StatusBadRequest, "VALIDATION_ERROR")
		}
		h.call("PUT", path, `{"name":"`+strings.Repeat("é", 200)+`"}`, h.platform()).want(http.StatusOK) // the import has named it
		h.call("GET", "/api/v1/companies?search="+strings.Repeat("a", 201), "", h.platform()).want(http.StatusBadRequest, "VALIDATION_ERROR")
		h.call("GET", "/api/v1/companies?search="+strings.Repeat("a", 200), "", h.platform()).want(http.StatusOK)
	},
}
