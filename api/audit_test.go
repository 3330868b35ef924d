package api

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/api/gen"
	"spendhook/audit"
	"spendhook/internal/redistest"
	"spendhook/internal/waittest"
	"spendhook/storage"
	"spendhook/storage/cards"
	"spendhook/storage/storagetest"
)

func (h *harness) audited(query string, options ...option) []gen.AuditEntry {
	h.t.Helper()
	eventually(h.t, func() bool { // a Redis that took longer than half a second gets entries later
		files, err := os.ReadDir(h.auditDir)
		return err == nil && !slices.ContainsFunc(files, func(f os.DirEntry) bool {
			info, err := f.Info()
			return err != nil || info.Size() > 0
		})
	})
	return as[gen.AuditList](h.call("GET", "/api/v1/audit?size=100&"+query, "", options...).want(http.StatusOK)).Content
}

// unaudited lists operations other than GET that need no audit entry, with the reason.
var unaudited = map[string]string{
	"ingestEvents":         "events are data, listed and kept by themselves",
	"testSubscriberFilter": "it changes nothing",
}

// checkActions returns an error for an operation that changes something and has no x-audit in the
// document, and is not in unaudited.
func checkActions(all routes) error {
	for _, operations := range all {
		for method, op := range operations {
			if method == http.MethodGet || op.public || unaudited[op.id] != "" {
				continue
			}
			if op.action == "" {
				return fmt.Errorf("%s has no x-audit, and is not in unaudited", op.id)
			}
		}
	}
	return nil
}

// TestEveryChangeHasAnAction: every changing operation has an action.
func TestEveryChangeHasAnAction(t *testing.T) {
	t.Parallel()
	all := documentedRoutes(t)
	if err := checkActions(all); err != nil {
		t.Error(err)
	}
	ids := map[string]bool{}
	for _, operations := range all {
		for method, op := range operations {
			ids[op.id] = true
			if method == http.MethodGet && op.action != "" {
				t.Errorf("%s reads, and has an action", op.id)
			}
		}
	}
	for id, what := range unaudited {
		if !ids[id] || what == "" {
			t.Errorf("%s: %q", id, what)
		}
	}
	all["/new"] = map[string]*operation{"POST": {id: "new"}}
	if checkActions(all) == nil {
		t.Error("an operation without an action is accepted")
	}
}

// TestChangesAreAudited sends every changing request of the table of routes. Each one makes
// exactly one audit entry, with its target.
func TestChangesAreAudited(t *testing.T) {
	t.Parallel()
	w := setupTwo(t)
	all := w.routes()
	for _, line := range table {
		c := &check{twoCompanies: w, access: line, op: all[line.route]}
		c.method, _, _ = strings.Cut(line.route, " ")
		if c.op == nil || c.method == http.MethodGet || c.op.public || unaudited[c.op.id] != "" {
			continue
		}
		token, company := w.acme.token, &w.acme.company
		if c.kind == global {
			token, company = w.mint(nil, allScopes+" platform"), nil
		}
		a := c.send(bearer(token), header("X-Forwarded-For", "2001:db8::7")).want(line.status)
		id := a.Header().Get("X-Request-Id")
		entries := slices.DeleteFunc(w.audited("", bearer(token)), func(e gen.AuditEntry) bool { return *e.RequestID != id })
		if len(entries) != 1 {
			t.Errorf("%s: %d entries", line.route, len(entries))
			continue
		}
		e := entries[0]
		if e.Action != c.op.action || e.Outcome != gen.AuditEntryOutcomeSuccess || c.kind != global && (e.CompanyUUID == nil || *e.CompanyUUID != *company) ||
			e.Actor.Kind != gen.AuditActorKindClient || e.Actor.Subject == "" || !cmp.Equal(e.Actor.CompanyUUID, company) || textOf(e.Address) != "2001:db8::7" {
			t.Errorf("%s: %+v", line.route, e)
		}
		if len(e.Target.Ids) == 0 || e.Target.Ids[0] == "" {
			t.Errorf("%s: no target in %+v", line.route, e.Target)
		}
	}
}

const newSubscriber = `{"name":"n","callbackUrl":"http://127.0.0.1:9/secret-path","events":["A"]}`

func TestEntriesHaveActionDetailAndFields(t *testing.T) {
	t.Parallel()
	h := setup(t)
	sub := as[gen.SubscriberWithSecret](h.call("POST", "/api/v1/subscribers", newSubscriber).want(http.StatusCreated))
	id := sub.UUID.String()
	h.call("PATCH", "/api/v1/subscribers/"+id, `{"enabled":false,"name":"m","companyUuid":"`+h.company.String()+`"}`).want(http.StatusOK)
	h.call("POST", "/api/v1/subscribers/add-event", `{"callbackUrl":"http://127.0.0.1:9/secret-path","event":"B"}`).want(http.StatusCreated)
	h.call("DELETE", "/api/v1/subscribers/delete-event?event=B&callbackUrl=http://127.0.0.1:9/secret-path", "").want(http.StatusNoContent)
	var got [][]string
	for _, e := range h.audited("target=" + id) {
		got = append(got, append([]string{e.Action, textOf(e.Detail)}, e.Fields...))
	}
	want := [][]string{
		{"subscriber.delete-event", "B"},
		{"subscriber.add-event", "B", "callbackUrl", "event"},
		{"subscriber.update", "", "enabled", "name"},
		{"subscriber.create", "", "callbackUrl", "events", "name"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	body := h.call("GET", "/api/v1/audit", "").Body.String()
	for _, secret := range []string{"secret-path", sub.Secret} {
		if strings.Contains(body, secret) {
			t.Errorf("the audit log has %s", secret)
		}
	}
}

func TestLockAndUnlockAreDifferentActions(t *testing.T) {
	t.Parallel()
	w := setupTwo(t)
	card := "/api/v3/cards/" + w.acme.fill("{card}") + "/lock"
	w.call("PATCH", card, `{"lock":true}`, bearer(w.acme.token)).want(http.StatusOK)
	w.call("PATCH", card, `{"lock":false}`, bearer(w.acme.token)).want(http.StatusOK)
	list := w.audited("target="+w.acme.fill("{card}"), bearer(w.acme.token))
	if len(list) != 2 || list[0].Action != "card.unlock" || list[1].Action != "card.lock" {
		t.Errorf("%+v", list)
	}
}

// A refused request changes nothing, nor does a repeated answer of an Idempotency-Key.
func TestRequestsThatChangeNothingAreNotAudited(t *testing.T) {
	t.Parallel()
	h := setup(t)
	key := header("Idempotency-Key", "k")
	for range 3 {
		h.call("POST", "/api/v1/subscribers", newSubscriber, key).want(http.StatusCreated)
	}
	h.call("POST", "/api/v1/subscribers", newSubscriber).want(http.StatusConflict)
	h.call("POST", "/api/v1/subscribers", `{}`).want(http.StatusBadRequest)
	h.call("DELETE", "/api/v1/subscribers/"+uuid.NewString(), "").want(http.StatusNotFound)
	h.call("DELETE", "/api/v1/subscribers/"+uuid.NewString(), "", noToken).want(http.StatusUnauthorized)
	h.call("POST", "/api/v1/subscribers", newSubscriber, bearer(h.mint(&h.company, "subscribers:read"))).want(http.StatusForbidden)
	h.call("GET", "/api/v1/subscribers", "").want(http.StatusOK)
	h.call("POST", "/api/v1/events", `{"id":"e","event":"A","timestamp":"`+time.Now().Format(time.RFC3339)+`"}`).want(http.StatusAccepted)
	if list := h.audited(""); len(list) != 1 {
		t.Errorf("%+v", list)
	}
}

func TestAChangeThatMayHaveBeenMadeIsAudited(t *testing.T) {
	t.Parallel()
	client := redistest.New(t)
	h := setupOn(t, client)
	sub := as[gen.Subscriber](h.call("POST", "/api/v1/subscribers", newSubscriber).want(http.StatusCreated))
	client.AddHook(faults{func(cmd redis.Cmder) error {
		if cmd.Name() == "evalsha" && commandNames(cmd, sub.UUID.String()) {
			return context.DeadlineExceeded
		}
		return nil
	}})
	h.call("DELETE", "/api/v1/subscribers/"+sub.UUID.String(), "").want(http.StatusServiceUnavailable)
	list := h.audited("action=subscriber.delete")
	if len(list) != 1 || list[0].Outcome != gen.AuditEntryOutcomeUnknown || list[0].Target.Ids[0] != sub.UUID.String() {
		t.Errorf("%+v", list)
	}
}

// A link that may have been created has no id that the audit log could name.
func TestALinkThatMayHaveBeenCreatedHasNoTarget(t *testing.T) {
	t.Parallel()
	client := redistest.New(t)
	h := setupOn(t, client)
	client.AddHook(faults{func(cmd redis.Cmder) error {
		if cmd.Name() == "evalsha" && commandNames(cmd, ":link") {
			return context.DeadlineExceeded
		}
		return nil
	}})
	h.call("POST", "/api/v1/console-links", "").want(http.StatusServiceUnavailable)
	list := h.audited("action=console-link.create")
	if len(list) != 1 || list[0].Outcome != gen.AuditEntryOutcomeUnknown || len(list[0].Target.Ids) != 0 {
		t.Errorf("%+v", list)
	}
}

// interrupted fails after it has stored a job.
type interrupted struct{ cardSubmitter }

func (i interrupted) Submit(ctx context.Context, company uuid.UUID, requests []cards.Request, once cards.Once) (cards.Job, error) {
	_, err := i.cardSubmitter.Submit(ctx, company, requests, once)
	return cards.Job{}, errors.Join(err, context.DeadlineExceeded)
}

func TestABulkThatMayHaveBeenCreatedIsAuditedForItsCompany(t *testing.T) {
	t.Parallel()
	h := setup(t, func(o *Options) { o.CardJobs = interrupted{o.CardJobs} })
	h.call("POST", bulkPath, bulkOf(`{"type":"VIRTUAL","alias":"a","userUuid":"`+uuid.NewString()+`"}`)).want(http.StatusServiceUnavailable)
	list := h.audited("action=card.bulk-create")
	if len(list) != 1 || list[0].Outcome != gen.AuditEntryOutcomeUnknown || list[0].CompanyUUID == nil || *list[0].CompanyUUID != h.company {
		t.Errorf("%+v", list)
	}
}

func TestAuditIsForOperators(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.call("POST", "/api/v1/subscribers", newSubscriber).want(http.StatusCreated)
	other := uuid.New()
	h.call("POST", "/api/v1/subscribers", newSubscriber, bearer(h.mint(&other, allScopes))).want(http.StatusCreated)
	h.options.Audit.Record(audit.Entry{
		Actor: audit.Actor{Kind: audit.CommandLine, Subject: "root"}, Action: "keys.rotate", Target: audit.Target{Kind: "key"}, Outcome: audit.Success,
	})
	without := strings.ReplaceAll(allScopes, "operator", "platform")
	h.call("GET", "/api/v1/audit", "", bearer(h.mint(&h.company, without))).want(http.StatusForbidden, "INSUFFICIENT_SCOPE")
	h.call("GET", "/api/v1/audit", "", bearer(h.mint(nil, allScopes))).want(http.StatusForbidden, "INSUFFICIENT_SCOPE")
	for token, want := range map[string]int{h.token: 1, h.mint(&other, allScopes): 1, h.mint(nil, allScopes+" platform"): 3} {
		if got := as[gen.AuditList](h.call("GET", "/api/v1/audit", "", bearer(token)).want(http.StatusOK)).Content; len(got) != want {
			t.Errorf("%d entries, want %d", len(got), want)
		}
	}
	for _, method := range []string{"DELETE", "POST", "PUT", "PATCH"} {
		h.call(method, "/api/v1/audit", "").want(http.StatusMethodNotAllowed)
	}
}

func TestAuditPagesAndFilters(t *testing.T) {
	t.Parallel()
	h := setup(t)
	for i := range 7 {
		h.options.Audit.Record(audit.Entry{
			Actor: audit.Actor{Kind: audit.Client, Subject: "s"}, Action: "card.lock", CompanyUUID: &h.company,
			Target: audit.Target{Kind: "card", IDs: []string{string(rune('a' + i))}}, Outcome: audit.Success,
		})
	}
	path, ids := "/api/v1/audit?size=3", []string{}
	for path != "" {
		a := h.call("GET", path, "").want(http.StatusOK)
		page := as[gen.AuditList](a)
		for _, e := range page.Content {
			ids = append(ids, e.Target.Ids...)
		}
		if path = ""; page.NextCursor != "" {
			path = "/api/v1/audit?size=3&cursor=" + page.NextCursor
		}
	}
	if strings.Join(ids, "") != "gfedcba" {
		t.Errorf("%v", ids)
	}
	h.call("GET", "/api/v1/audit?cursor=x", "").wantField("cursor", "INVALID")
	h.call("GET", "/api/v1/audit?size=0", "").wantField("size", "INVALID")
	h.call("GET", "/api/v1/audit?from=x", "").wantField("from", "INVALID")
	h.call("GET", "/api/v1/audit?from=2026-01-02T00:00:00Z&to=2026-01-01T00:00:00Z", "").wantField("to", "INVALID")
	h.call("GET", "/api/v1/audit?who=me", "").wantField("who", "UNKNOWN_PARAMETER")
	h.call("GET", "/api/v1/audit?companyUuid="+uuid.NewString(), "").want(http.StatusForbidden, "COMPANY_MISMATCH")
	h.call("GET", "/api/v1/audit", "", header("Accept", "text/csv")).want(http.StatusNotAcceptable)
	h.call("GET", "/api/v1/events", "", header("Accept", mediaNDJSON)).want(http.StatusNotAcceptable)
}

// many records n entries.
func (h *harness) many(n int) {
	var group sync.WaitGroup
	for i := range 50 {
		group.Go(func() {
			for range n / 50 {
				h.options.Audit.Record(audit.Entry{
					Actor: audit.Actor{Kind: audit.Client, Subject: "s"}, Action: "card.lock", CompanyUUID: &h.company,
					Target: audit.Target{Kind: "card", IDs: []string{"c"}}, Outcome: audit.Success, Detail: strings.Repeat("x", i),
				})
			}
		})
	}
	group.Wait()
}

func TestAuditIsExportedAsLines(t *testing.T) {
	t.Parallel()
	client := redistest.New(t)
	h := setupOn(t, client)
	h.many(1200)
	server := httptest.NewServer(h.handler)
	defer server.Close()
	get := func(query string) *http.Response {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+"/api/v1/audit"+query, nil)
		if err != nil {
			t.Fatal(err)
		}
		bearer(h.token)(r)
		r.Header.Set("Accept", mediaNDJSON)
		resp, err := server.Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		return resp
	}
	waittest.Until(t, "all entries are in Redis", func() bool { // a write that took too long is repeated later
		return client.ZCard(t.Context(), "sh:{audit}:log").Val() >= 1200
	})
	resp := get("?actor=s")
	defer resp.Body.Close()
	var text bytes.Buffer
	if _, err := text.ReadFrom(resp.Body); err != nil || resp.Header.Get("Content-Type") != mediaNDJSON || resp.StatusCode != http.StatusOK {
		t.Fatalf("%v, %d, %v", err, resp.StatusCode, resp.Header)
	}
	ids := map[string]bool{}
	for line := range strings.Lines(text.String()) {
		var e gen.AuditEntry
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatal(err, line)
		}
		ids[e.ID] = true
	}
	if len(ids) != 1200 {
		t.Errorf("%d of 1200 entries", len(ids))
	}
	if resp := get("?actor=nobody"); resp.StatusCode != http.StatusOK || resp.ContentLength > 0 {
		t.Errorf("none: %d, %d bytes", resp.StatusCode, resp.ContentLength)
	}
	if resp := get("?from=x"); resp.StatusCode != http.StatusBadRequest || resp.Header.Get("Content-Type") != mediaProblem {
		t.Errorf("a bad filter: %d", resp.StatusCode)
	}
}

// The second part cannot be read.
func TestAFailedExportIsCutOff(t *testing.T) {
	t.Parallel()
	client, reads := redistest.New(t), 0
	h := setupOn(t, client)
	h.many(1200)
	client.AddHook(faults{func(cmd redis.Cmder) error {
		if cmd.Name() != "zrange" || cmd.Args()[1] != "sh:{audit}:log" {
			return nil
		}
		if reads++; reads > 2 { // the first two are for the first part
			return context.DeadlineExceeded
		}
		return nil
	}})
	server := httptest.NewServer(h.handler)
	defer server.Close()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+"/api/v1/audit", nil)
	if err != nil {
		t.Fatal(err)
	}
	bearer(h.token)(r)
	r.Header.Set("Accept", mediaNDJSON)
	resp, err := server.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if _, err := new(bytes.Buffer).ReadFrom(resp.Body); err == nil {
		t.Error("the client read the export to a regular end")
	}
	if h.seen.count("panicked") > 0 {
		t.Error("logged as a panic")
	}
}

func TestWantsNDJSON(t *testing.T) {
	t.Parallel()
	for accept, want := range map[string]bool{
		"": false, "*/*": false, mediaNDJSON: true, "Application/X-NDJSON; q=0.5": true, mediaNDJSON + ";q=0": false,
		mediaNDJSON + ", " + mediaJSON: false, mediaNDJSON + ", */*;q=0.1": true,
	} {
		if got := wantsNDJSON(accept); got != want {
			t.Errorf("%q: %v", accept, got)
		}
	}
}

// While Redis is down a card can be changed. The audit entry is stored once Redis is back.
func TestEntriesOfCardChangesSurviveARedisOutage(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{})
	dir, store := t.TempDir(), storagetest.Open(t, storage.Options{})
	h := setupOn(t, server.Client(), func(o *Options) {
		*o = withSpend(store, *o)
		log := audit.Open(audit.Options{Client: server.Client(), Dir: dir, Logger: o.Logger})
		t.Cleanup(log.Close)
		o.Audit = log
	})
	card := uuid.NewString()
	(&twoCompanies{harness: h}).load(store, &tenant{things: map[string]string{
		"company": h.company.String(), "name": "acme", "user": uuid.NewString(), "location": uuid.NewString(),
		"reimbursement": uuid.NewString(), "statement": uuid.NewString(), "openStatement": uuid.NewString(),
		"card": card, "spareCard": uuid.NewString(), "lastCard": uuid.NewString(),
	}})
	server.Kill()
	h.call("PATCH", "/api/v3/cards/"+card+"/lock", `{"lock":true}`).want(http.StatusOK)
	server.Restart()
	deadline := time.After(2 * time.Minute)
	for len(h.audited("target="+card)) != 1 {
		select {
		case <-deadline:
			t.Fatal("the entry is lost")
		case <-time.After(10 * time.Millisecond):
		}
	}
}
