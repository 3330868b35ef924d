package api

import (
	"fmt"
	"net/http"

	"github.com/google/uuid"
)

const statementsPath = "/api/v2/billing-statements/"

func (h *spendHarness) statement(members string) uuid.UUID {
	h.t.Helper()
	id := uuid.New()
	h.load(fmt.Sprintf(`{"kind":"statement","statementUuid":%q,"companyUuid":%q,%s}`, id, h.company, members))
	return id
}

func (h *spendHarness) twoStatements() (june, july uuid.UUID) {
	june = h.statement(`"month":6,"year":2026,"status":"CLOSED","totalAmount":90071992547409.93,"currency":"EUR","closingDate":"2026-06-30"`)
	july = h.statement(`"month":7,"year":2026,"status":"OPEN","totalAmount":-1.5,"currency":"EUR","closingDate":"2026-07-31"`)
	return june, july
}

var statementTests = suite{
	"2.6 billing statement and 4.5 by month and year": func(h *spendHarness) {
		june, july := h.twoStatements()
		for path, want := range map[string]string{
			"6/2026": fmt.Sprintf(`{"closingDate":"2026-06-30","currency":"EUR","month":6,"statementUuid":%q,"status":"CLOSED","totalAmount":90071992547409.93,"year":2026}`, june),
			"7/2026": fmt.Sprintf(`{"closingDate":"2026-07-31","currency":"EUR","month":7,"statementUuid":%q,"status":"OPEN","totalAmount":-1.5,"year":2026}`, july),
		} {
			if got := h.call("GET", statementsPath+path, "").want(http.StatusOK).Body.String(); got != want {
				h.t.Errorf("got %s, want %s", got, want)
			}
		}
	},
	"4.5 current statement and 3.4 its states": func(h *spendHarness) {
		h.call("GET", statementsPath+"current", "").want(http.StatusNotFound, "NOT_FOUND")
		h.twoStatements()
		current := h.call("GET", statementsPath+"current", "").want(http.StatusOK).Body.String()
		if july := h.call("GET", statementsPath+"7/2026", "").Body.String(); current != july {
			h.t.Errorf("current is %s, july %s", current, july)
		}
	},
	"7 bad input to statements": func(h *spendHarness) {
		h.twoStatements()
		for path, field := range map[string]string{
			"0/2026": "month", "13/2026": "month", "-1/2026": "month", "x/2026": "month", "1.5/2026": "month", "99999999999999999999/2026": "month",
			"1/1999": "year", "1/2101": "year", "1/26": "year", "1/x": "year", "current/2026": "month", "current?companyUuid=x": "companyUuid",
		} {
			h.call("GET", statementsPath+path, "").wantField(field, "INVALID")
		}
		for _, path := range []string{"1/2000", "12/2100"} {
			h.call("GET", statementsPath+path, "").want(http.StatusNotFound, "NOT_FOUND")
		}
		a := h.call("GET", statementsPath+"13/1999", "")
		a.wantField("month", "INVALID")
		a.wantField("year", "INVALID")
		h.call("GET", "/api/v2/billing-statements", "").want(http.StatusNotFound, "NO_SUCH_ROUTE")
		h.call("GET", statementsPath+"current?month=7", "").wantField("month", "UNKNOWN_PARAMETER")
	},
	"contract company scope of statements": func(h *spendHarness) {
		h.twoStatements()
		free := bearer(h.mint(nil, allScopes+" platform"))
		for _, path := range []string{"current", "7/2026"} {
			h.call("GET", statementsPath+path, "", bearer(h.boltToken)).want(http.StatusNotFound, "NOT_FOUND")
			h.call("GET", statementsPath+path, "", free).wantField("companyUuid", "REQUIRED")
			h.call("GET", statementsPath+path+"?companyUuid="+h.company.String(), "", free).want(http.StatusOK)
			h.call("GET", statementsPath+path+"?companyUuid="+h.bolt.String(), "").want(http.StatusForbidden, "COMPANY_MISMATCH")
		}
	},
}
