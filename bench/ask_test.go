package main

import (
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

func TestAskSendsAtItsRateAndCountsFailures(t *testing.T) {
	t.Parallel()
	var posts atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Header.Get("Authorization") != "Bearer x", r.URL.Path == "/bad":
			w.WriteHeader(http.StatusForbidden)
		case r.URL.Path == "/slow":
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		if r.Method == http.MethodPost && r.Header.Get("Content-Type") == "application/json" {
			posts.Add(1)
		}
	}))
	defer server.Close()
	spec := askSpec{
		Base: server.URL, Token: "x", Clients: 4, Rate: 200, For: 200 * time.Millisecond,
		Asks: []ask{{Path: "/slow"}, {Path: "/bad"}, {Path: "/good", Body: "{}"}},
	}
	r := spec.run(t.Context())
	if total := r.Answered + r.Failed; total != 41 || r.Refused != 14 || r.Failed != 14 || posts.Load() != 13 {
		t.Errorf("%+v, %d posts", r, posts.Load())
	}
	if err := r.clean(); err == nil || !strings.Contains(err.Error(), "403") {
		t.Errorf("clean: %v", err)
	}
}

func TestSpendDataIsAskedForByEveryFilter(t *testing.T) {
	t.Parallel()
	d := &spendData{file: filepath.Join(t.TempDir(), "data"), reimbursements: 400}
	text := `{"kind":"company","uuid":"c"}
{"kind":"user","uuid":"u","companyUuid":"c","active":true}
{"kind":"user","uuid":"gone","companyUuid":"c","active":false}
{"kind":"card","uuid":"k","companyUuid":"c"}
` + strings.Repeat(`{"kind":"reimbursement","uuid":"r","companyUuid":"c"}`+"\n", sampleEvery)
	if err := os.WriteFile(d.file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := d.read(); err != nil || d.rows != sampleEvery+4 || len(d.reimbursementSamples) != 1 {
		t.Fatalf("%v: %+v", err, d)
	}
	chance := rand.New(rand.NewPCG(1, 2))
	seen := map[string]bool{}
	for _, a := range d.pages(chance) {
		q, err := url.ParseQuery(strings.TrimPrefix(a.Path, "/api/v3/reimbursements?"))
		if err != nil {
			t.Fatal(err)
		}
		for name := range q {
			seen[name] = true
		}
	}
	for _, name := range []string{
		"companyUuid", "page", "requestCreationDateStart", "requestCreationDateEnd", "expenseDateStart", "expenseDateEnd",
		"finalApprovalDateStart", "finalApprovalDateEnd", "paymentDateStart", "paymentDateEnd", "lastUpdateDateStart",
		"lastUpdateDateEnd", "categoryCodes", "requesterUuids", "statuses", "requesterName", "uuids",
	} {
		if !seen[name] {
			t.Errorf("nothing asks by %s", name)
		}
	}
	if reads := d.cardReads(chance); reads[0].Path != "/api/v3/cards/k?companyUuid=c" {
		t.Errorf("read %+v", reads[0])
	}
	if body := d.cardCreates(chance)[0].Body; strings.Contains(body, "gone") || !strings.Contains(body, `"userUuid":"u"`) {
		t.Errorf("create %s", body)
	}
}
