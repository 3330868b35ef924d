package main

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/google/uuid"
)

// TestConsoleFindsCompaniesByName: a support person finds the failures of a company by its name.
func TestConsoleFindsCompaniesByName(t *testing.T) {
	t.Parallel()
	w := newStory(t)
	w.failing = w.subscribe("Ledger", "/broken/x", "PAYMENT_PAID")
	w.emit("evt_1", "PAYMENT_PAID", nil)
	w.awaitDead("evt_1." + w.failing)
	token := secretFile(t, w.mint(""))
	cli := func(args ...string) result {
		t.Helper()
		return command(t, "", append([]string{"company"}, append(args, "--url", w.daemon.api, "--token-file", token)...)...)
	}
	cli("name", developerCompany.String(), "Ácme <b> Inc.", "--yes").want(t, exitOK, "Ácme <b> Inc.", "")
	cli("name", uuid.NewString(), "Bolt", "--yes").want(t, exitOK, "Bolt", "")
	cli("list", "--search", "acme").want(t, exitOK, developerCompany.String(), "")
	cli("get", developerCompany.String()).want(t, exitOK, "Ácme", "")
	if found := cli("list", "--search", "acme"); strings.Contains(found.stdout, "Bolt") {
		t.Errorf("found: %s", found.stdout)
	}

	v := w.session(t)
	_, _, page := v.get("/console/companies?find=inc")
	company := "company=" + developerCompany.String()
	for _, says := range []string{"Ácme &lt;b&gt; Inc.", "/console/dead?" + company + `">1</a>`, developerCompany.String()} {
		if !strings.Contains(page, says) {
			t.Errorf("the list does not say %q: %s", says, page)
		}
	}
	if strings.Contains(page, "Bolt") {
		t.Errorf("all are listed: %s", page)
	}
	if status, header, _ := v.get("/console/companies?find=" + developerCompany.String()); status != http.StatusSeeOther || header.Get("Location") != "/console/?"+company {
		t.Errorf("by UUID: %d %v", status, header)
	}
	for _, path := range []string{"/console/dead", "/console/deliveries", "/console/events", "/console/subscribers", "/console/?" + company} {
		eventually(t, patience, path+" names the company", func() bool { // the database may be slow
			_, _, page := v.get(path)
			return strings.Contains(page, "Ácme &lt;b&gt; Inc.")
		})
	}
	name := "/console/companies/" + developerCompany.String() + "/name"
	if to := v.submit(http.StatusSeeOther, name, url.Values{"name": {"Acme"}}); to != "/console/?"+company+"&done=named" {
		t.Error(to)
	}
	v.submit(http.StatusBadRequest, name, url.Values{"name": {" "}})
	eventually(t, patience, "the new name is shown", func() bool {
		_, _, page := v.get("/console/events")
		return strings.Contains(page, ">Acme</a>")
	})
	support := w.session(t, "--scope", "platform events:read")
	support.submit(http.StatusForbidden, name, url.Values{"name": {"Mine"}})
	own := newVisitor(t, w.daemon.api)
	own.enter(w.daemon.consoleLink(t))
	if status, _, _ := own.get("/console/companies"); status != http.StatusForbidden {
		t.Errorf("a company lists all: %d", status)
	}
	eventually(t, patience, "its own name is shown", func() bool {
		_, _, page := own.get("/console/")
		return strings.Contains(page, ">Acme</span>")
	})
	if status, header, _ := v.send(http.MethodGet, "/console/companies?find="+developerCompany.String(), nil, "HX-Request", "true"); status != http.StatusOK || header.Get("HX-Redirect") != "/console/?"+company {
		t.Errorf("by UUID, as one types: %d %v", status, header)
	}
}
