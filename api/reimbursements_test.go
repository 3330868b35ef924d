package api

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/google/uuid"

	"spendhook/api/gen"
)

const reimbursementsPath = "/api/v3/reimbursements"

// reimbursement imports a reimbursement of ann with default members and the given ones.
func (h *spendHarness) reimbursement(members string) uuid.UUID {
	h.t.Helper()
	id := uuid.New()
	parts := []string{fmt.Sprintf(`{"kind":"reimbursement","uuid":%q,"companyUuid":%q`, id, h.company)}
	for name, value := range map[string]string{
		"audit":            `{"requestCreationDate":"2026-01-01","lastUpdateDate":"2026-06-01"}`,
		"requester":        fmt.Sprintf(`{"uuid":%q}`, h.ann),
		"amountValue":      `{"currency":"EUR","amount":1}`,
		"validationStatus": `{"status":"PENDING"}`,
	} {
		if !strings.Contains(members, `"`+name+`"`) {
			parts = append(parts, fmt.Sprintf("%q:%s", name, value))
		}
	}
	if members != "" {
		parts = append(parts, members)
	}
	h.load(strings.Join(parts, ",") + "}")
	return id
}

func (h *spendHarness) reimbursements(query string) gen.ReimbursementPage {
	h.t.Helper()
	return as[gen.ReimbursementPage](h.call("GET", reimbursementsPath+query, "").want(http.StatusOK))
}

// wantReimbursements expects exactly these, in order.
func (h *spendHarness) wantReimbursements(query string, want ...uuid.UUID) {
	h.t.Helper()
	page := h.reimbursements(query)
	var got []uuid.UUID
	for _, r := range page.Content {
		got = append(got, r.UUID)
	}
	if !slices.Equal(got, want) || page.TotalElements != int64(len(want)) {
		h.t.Errorf("%s: %v of %d, want %v", query, got, page.TotalElements, want)
	}
}

// dated imports a reimbursement whose audit member of that name is the day.
func (h *spendHarness) dated(name, day string) uuid.UUID {
	h.t.Helper()
	audit := map[string]string{"requestCreationDate": "2026-01-01", "lastUpdateDate": "2026-06-01"}
	audit[name] = day
	var parts []string
	for n, d := range audit {
		parts = append(parts, fmt.Sprintf("%q:%q", n, d))
	}
	return h.reimbursement(`"audit":{` + strings.Join(parts, ",") + `}`)
}

func (h *spendHarness) dateFilter(name string) {
	h.t.Helper()
	days := []string{"2026-03-01", "2026-03-02", "2026-03-03"}
	ids := map[string]uuid.UUID{}
	for _, day := range days {
		ids[day] = h.dated(name, day)
	}
	for query, want := range map[string][]string{
		"?" + name + "Start=2026-03-02&" + name + "End=2026-03-02": days[1:2],
		"?" + name + "Start=2026-03-02&" + name + "End=2026-03-31": days[1:],
		"?" + name + "Start=2026-02-01&" + name + "End=2026-03-02": days[:2],
		"?" + name + "Start=2026-03-02":                            days[1:],
		"?" + name + "End=2026-03-02":                              days[:2],
		"?" + name + "Start=2026-03-04&" + name + "End=9999-12-31": nil,
		"?" + name + "Start=0001-01-01&" + name + "End=2026-02-28": nil,
	} {
		page := h.reimbursements(query)
		got := map[uuid.UUID]bool{}
		for _, r := range page.Content {
			got[r.UUID] = true
		}
		for _, day := range days {
			if got[ids[day]] != slices.Contains(want, day) {
				h.t.Errorf("%s: lists %s: %v", query, day, got[ids[day]])
			}
		}
	}
	for _, bad := range []string{"2026-3-1", "2026-02-30", "2026-13-01", "20260301", "yesterday", "", "2026-03-01T00:00:00Z", "1", "%FF"} {
		for _, end := range []string{"Start", "End"} {
			h.call("GET", reimbursementsPath+"?"+name+end+"="+bad, "").wantField(name+end, "INVALID")
		}
	}
	h.call("GET", reimbursementsPath+"?"+name+"Start=2026-03-02&"+name+"End=2026-03-01", "").wantField(name+"Start", "INVALID")
}

var reimbursementTests = suite{
	"2.4 page object": func(h *spendHarness) {
		for range 5 {
			h.reimbursement(``)
		}
		a := h.call("GET", reimbursementsPath+"?page=1&size=2", "").want(http.StatusOK)
		if got := members(h.t, a.Body.Bytes()); got != "content number size totalElements totalPages" {
			h.t.Errorf("answered %s", got)
		}
		if p := as[gen.ReimbursementPage](a); p.TotalElements != 5 || p.TotalPages != 3 || p.Number != 1 || p.Size != 2 || len(p.Content) != 2 {
			h.t.Errorf("answered %+v", p)
		}
		if p := h.reimbursements("?page=9"); p.TotalElements != 5 || p.TotalPages != 1 || len(p.Content) != 0 || p.Content == nil {
			h.t.Errorf("behind the end %+v", p)
		}
	},
	"2.4 reimbursement with every field": func(h *spendHarness) {
		ids := make([]any, 5)
		for i := range ids {
			ids[i] = uuid.NewSHA1(h.company, []byte{byte(i)})
		}
		given := fmt.Sprintf(`"description":"Lunch <é>",
			"audit":{"requestCreationDate":"2026-01-01","expenseDate":"2026-01-02","finalApprovalDate":"2026-01-03","paymentDate":"2026-01-04","lastUpdateDate":"2026-01-05"},
			"labels":[{"uuid":%q,"name":"Project"}],"groups":[{"uuid":%q,"name":"Team"}],"locations":[{"uuid":%q,"name":"Lisbon"}],
			"attachments":[{"uuid":%q,"fileName":"bill.pdf"}],
			"merchant":{"name":"Café","description":"Food","categoryCode":5812,"category":"Restaurants","countryCode":"PT"},
			"amountValue":{"currency":"EUR","amount":90071992547409.93},
			"validationStatus":{"status":"PAID","comment":"ok"},
			"paymentDetail":{"paymentMethod":"BANK_TRANSFER","paymentMethodNote":"n","markedAsPaidBy":"boss@example.com"}`, ids[:4]...)
		id := h.reimbursement(strings.Join(strings.Fields(given), " "))
		link := func(resource string, id any) string {
			return fmt.Sprintf(`"links":[{"href":"https://api.spendhook.test/api/%s/%s","rel":"self"}]`, resource, id)
		}
		want := `{"amountValue":{"amount":90071992547409.93,"currency":"EUR"},` +
			fmt.Sprintf(`"attachments":[{"fileName":"bill.pdf",%s,"uuid":%q}],`, link("v2/attachments", ids[3]), ids[3]) +
			`"audit":{"expenseDate":"2026-01-02","finalApprovalDate":"2026-01-03","lastUpdateDate":"2026-01-05","paymentDate":"2026-01-04","requestCreationDate":"2026-01-01"},` +
			`"description":"Lunch <é>",` +
			fmt.Sprintf(`"groups":[{%s,"name":"Team","uuid":%q}],`, link("v2/groups", ids[1]), ids[1]) +
			fmt.Sprintf(`"labels":[{%s,"name":"Project","uuid":%q}],`, link("v2/labels", ids[0]), ids[0]) +
			fmt.Sprintf(`"locations":[{%s,"name":"Lisbon","uuid":%q}],`, link("v2/locations", ids[2]), ids[2]) +
			`"merchant":{"category":"Restaurants","categoryCode":5812,"countryCode":"PT","description":"Food","name":"Café"},` +
			`"paymentDetail":{"markedAsPaidBy":"boss@example.com","paymentMethod":"BANK_TRANSFER","paymentMethodNote":"n"},` +
			fmt.Sprintf(`"requester":{%s,"name":"Ánn Mûller","uuid":%q},`, link("v3/users", h.ann), h.ann) +
			fmt.Sprintf(`"uuid":%q,"validationStatus":{"comment":"ok","status":"PAID"}}`, id)
		body := h.call("GET", reimbursementsPath, "").want(http.StatusOK).Body.String()
		if got := strings.TrimSuffix(strings.TrimPrefix(body, `{"content":[`), `],"number":0,"size":20,"totalElements":1,"totalPages":1}`); got != want {
			h.t.Errorf("got\n%s\nwant\n%s", got, want)
		}
	},
	"2.4 reimbursement with the fewest fields": func(h *spendHarness) {
		h.reimbursement(``)
		body := h.call("GET", reimbursementsPath, "").want(http.StatusOK).Body.String()
		for _, part := range []string{`"labels":[]`, `"groups":[]`, `"locations":[]`, `"attachments":[]`, `"merchant":{}`, `"audit":{"lastUpdateDate":"2026-06-01","requestCreationDate":"2026-01-01"}`} {
			if !strings.Contains(body, part) {
				h.t.Errorf("no %s in %s", part, body)
			}
		}
	},
	"3.2 the ten validation statuses": func(h *spendHarness) {
		ids := map[string]uuid.UUID{}
		for _, status := range []string{"PENDING", "APPROVED", "SENT_TO_PAY", "PAYMENT_IN_PROGRESS", "PAID", "REJECTED", "FINANCE_REJECTED", "CANCELLED", "NOT_FOUND", "UNAUTHORIZED"} {
			ids[status] = h.reimbursement(`"validationStatus":{"status":"` + status + `"}`)
		}
		for status, id := range ids {
			h.wantReimbursements("?statuses="+status, id)
			h.wantReimbursements("?statuses="+strings.ToLower(status), id)
			if got := h.reimbursements("?uuids=" + id.String()).Content[0].ValidationStatus.Status; string(got) != status {
				h.t.Errorf("%s is shown as %s", status, got)
			}
		}
	},
	"4.3 page and size, 8 their defaults": func(h *spendHarness) {
		for range 21 {
			h.reimbursement(``)
		}
		if p := h.reimbursements(""); p.Number != 0 || p.Size != 20 || len(p.Content) != 20 || p.TotalPages != 2 {
			h.t.Errorf("page %d of size %d with %d", p.Number, p.Size, len(p.Content))
		}
		if p := h.reimbursements("?page=1&size=1000000000"); p.Number != 1 || p.Size != 100 || p.TotalPages != 1 {
			h.t.Errorf("page %d of size %d", p.Number, p.Size)
		}
		for query, field := range map[string]string{"?page=-1": "page", "?page=a": "page", "?page=99999999999": "page", "?size=0": "size", "?size=-1": "size", "?size=1.0": "size", "?page=0&page=1": "page"} {
			h.call("GET", reimbursementsPath+query, "").wantField(field, "INVALID")
		}
	},
	"4.3 requestCreationDateStart and requestCreationDateEnd": func(h *spendHarness) { h.dateFilter("requestCreationDate") },
	"4.3 expenseDateStart and expenseDateEnd":                 func(h *spendHarness) { h.dateFilter("expenseDate") },
	"4.3 finalApprovalDateStart and finalApprovalDateEnd":     func(h *spendHarness) { h.dateFilter("finalApprovalDate") },
	"4.3 paymentDateStart and paymentDateEnd":                 func(h *spendHarness) { h.dateFilter("paymentDate") },
	"4.3 lastUpdateDateStart and lastUpdateDateEnd":           func(h *spendHarness) { h.dateFilter("lastUpdateDate") },
	"4.3 categoryCodes": func(h *spendHarness) {
		a := h.reimbursement(`"merchant":{"categoryCode":5812},"audit":{"requestCreationDate":"2026-01-01","lastUpdateDate":"2026-01-02"}`)
		b := h.reimbursement(`"merchant":{"categoryCode":742},"audit":{"requestCreationDate":"2026-01-01","lastUpdateDate":"2026-01-01"}`)
		h.reimbursement(`"merchant":{"categoryCode":1}`)
		h.reimbursement(``)
		h.wantReimbursements("?categoryCodes=5812", a)
		h.wantReimbursements("?categoryCodes=0742", b)
		h.wantReimbursements("?categoryCodes=742,5812,9", a, b)
		h.wantReimbursements("?categoryCodes=742&categoryCodes=5812", a, b)
		h.wantReimbursements("?categoryCodes=742%2C+5812&categoryCodes=9", a, b)
		for _, bad := range []string{"x", "", "1,", "-1", "%2B1", "1.0", "1;2", "1,,2", "2147483648"} {
			h.call("GET", reimbursementsPath+"?categoryCodes="+url.QueryEscape(strings.ReplaceAll(bad, "%2B", "+")), "").wantField("categoryCodes", "INVALID")
		}
	},
	"4.3 requesterUuids": func(h *spendHarness) {
		anns, ivos := h.reimbursement(``), h.reimbursement(fmt.Sprintf(`"requester":{"uuid":%q}`, h.ivo))
		h.wantReimbursements("?requesterUuids="+h.ann.String(), anns)
		h.wantReimbursements("?requesterUuids="+strings.ToUpper(h.ivo.String())+","+uuid.NewString(), ivos)
		h.wantReimbursements("?requesterUuids=" + h.bo.String())
		for _, bad := range []string{"x", "", h.ann.String() + ",x", h.ann.String() + ","} {
			h.call("GET", reimbursementsPath+"?requesterUuids="+bad, "").wantField("requesterUuids", "INVALID")
		}
	},
	"4.3 statuses": func(h *spendHarness) {
		paid, rejected := h.reimbursement(`"validationStatus":{"status":"PAID"},"audit":{"requestCreationDate":"2026-01-01","lastUpdateDate":"2026-01-02"}`),
			h.reimbursement(`"validationStatus":{"status":"REJECTED"},"audit":{"requestCreationDate":"2026-01-01","lastUpdateDate":"2026-01-01"}`)
		h.reimbursement(``)
		h.wantReimbursements("?statuses=PAID,REJECTED", paid, rejected)
		h.wantReimbursements("?statuses=PAID&statuses=REJECTED,CANCELLED", paid, rejected)
		for _, bad := range []string{"x", "", "PAID,", "PAID,x", "PAID REJECTED"} {
			h.call("GET", reimbursementsPath+"?statuses="+url.QueryEscape(bad), "").wantField("statuses", "INVALID")
		}
	},
	"4.3 requesterName": func(h *spendHarness) {
		anns := h.reimbursement(``)
		h.reimbursement(fmt.Sprintf(`"requester":{"uuid":%q}`, h.ivo))
		for _, part := range []string{"Ánn Mûller", "ann", "MULLER", "n m", "û"} {
			h.wantReimbursements("?requesterName="+url.QueryEscape(part), anns)
		}
		for _, part := range []string{"_", "%", "bo", "ann muller jr"} {
			h.wantReimbursements("?requesterName=" + url.QueryEscape(part))
		}
		for _, bad := range []string{"", "%00", strings.Repeat("x", 256), "%ff"} {
			h.call("GET", reimbursementsPath+"?requesterName="+bad, "").wantField("requesterName", "INVALID")
		}
	},
	"4.3 uuids": func(h *spendHarness) {
		a := h.dated("lastUpdateDate", "2026-01-02")
		b := h.dated("lastUpdateDate", "2026-01-01")
		h.reimbursement(``)
		h.wantReimbursements("?uuids="+b.String()+","+strings.ToUpper(a.String())+"&uuids="+uuid.NewString(), a, b)
		h.call("GET", reimbursementsPath+"?uuids="+a.String()+",x,"+b.String(), "").wantField("uuids", "INVALID")
		h.call("GET", reimbursementsPath+"?uuids="+strings.Repeat(a.String()+",", 500)+b.String(), "").wantField("uuids", "TOO_MANY")
	},
	"4.3 all filters together": func(h *spendHarness) {
		given := `"audit":{"requestCreationDate":"2026-01-01","expenseDate":"2026-01-02","finalApprovalDate":"2026-01-03","paymentDate":"2026-01-04","lastUpdateDate":"2026-01-05"},
			"merchant":{"categoryCode":5812},"validationStatus":{"status":"PAID"}`
		id := h.reimbursement(strings.Join(strings.Fields(given), " "))
		h.reimbursement(``)
		parts := []string{"?page=0&size=5&categoryCodes=5812&statuses=PAID&requesterName=ann&uuids=" + id.String() + "&requesterUuids=" + h.ann.String()}
		for day, name := range []string{"requestCreationDate", "expenseDate", "finalApprovalDate", "paymentDate", "lastUpdateDate"} {
			parts = append(parts, fmt.Sprintf("%sStart=2026-01-0%d&%sEnd=2026-01-0%d", name, day+1, name, day+1))
		}
		query := strings.Join(parts, "&")
		h.wantReimbursements(query, id)
		for _, change := range [][2]string{{"5812", "5813"}, {"PAID", "PENDING"}, {"=ann", "=ivo"}, {id.String(), uuid.NewString()}, {h.ann.String(), h.ivo.String()}, {"paymentDateStart=2026-01-04&paymentDateEnd=2026-01-04", "paymentDateEnd=2026-01-03"}} {
			h.wantReimbursements(strings.Replace(query, change[0], change[1], 1))
		}
	},
	"4.3 one answer reports all errors": func(h *spendHarness) {
		a := h.call("GET", reimbursementsPath+"?expenseDateEnd=x&statuses=x&uuids=x&categoryCodes=x", "").want(http.StatusBadRequest, "VALIDATION_ERROR")
		for _, field := range []string{"expenseDateEnd", "statuses", "uuids", "categoryCodes"} {
			a.wantField(field, "INVALID")
		}
		h.call("GET", reimbursementsPath+"?status=PAID", "").wantField("status", "UNKNOWN_PARAMETER")
	},
	"contract sort and company scope of reimbursements": func(h *spendHarness) {
		old, recent := h.dated("lastUpdateDate", "2025-12-31"), h.dated("lastUpdateDate", "2026-01-01")
		same := []uuid.UUID{h.dated("lastUpdateDate", "2025-06-01"), h.dated("lastUpdateDate", "2025-06-01")}
		slices.SortFunc(same, func(a, b uuid.UUID) int { return strings.Compare(a.String(), b.String()) })
		h.wantReimbursements("", recent, old, same[0], same[1])
		none := as[gen.ReimbursementPage](h.call("GET", reimbursementsPath, "", bearer(h.boltToken)).want(http.StatusOK))
		if none.TotalElements != 0 {
			h.t.Errorf("another company sees %+v", none)
		}
		h.call("GET", reimbursementsPath+"?companyUuid="+h.bolt.String(), "").want(http.StatusForbidden, "COMPANY_MISMATCH")
		h.call("GET", reimbursementsPath, "", bearer(h.mint(nil, allScopes))).want(http.StatusForbidden, "INSUFFICIENT_SCOPE")
		platform := bearer(h.mint(nil, "reimbursements:read platform"))
		if page := as[gen.ReimbursementPage](h.call("GET", reimbursementsPath+"?uuids="+old.String(), "", platform)); page.TotalElements != 1 {
			h.t.Errorf("the platform sees %+v", page)
		}
	},
}
