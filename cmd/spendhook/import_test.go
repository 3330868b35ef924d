package main

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"spendhook/api/gen"
	"spendhook/internal/pgtest"
)

// The ids of the objects in spendLines that belong to the developer's company.
const (
	annUUID       = "a0000000-0000-4000-8000-000000000001"
	cardUUID      = "a0000000-0000-4000-8000-000000000002"
	locationUUID  = "a0000000-0000-4000-8000-000000000003"
	statementUUID = "a0000000-0000-4000-8000-000000000004"
	requestUUID   = "a0000000-0000-4000-8000-000000000005"
)

// spendLines is one of each kind, for the developer's company.
func spendLines() string {
	company := developerCompany.String()
	return strings.Join([]string{
		`{"kind":"company","uuid":"` + company + `","name":"Acme","currency":"EUR","creditLimit":1000.00}`,
		`{"kind":"user","uuid":"` + annUUID + `","companyUuid":"` + company + `","username":"ann","name":"Ann","erpId":"E1"}`,
		`{"kind":"card","uuid":"` + cardUUID + `","companyUuid":"` + company + `","holderUuid":"` + annUUID + `","lastFour":"0042","type":"VISA_VIRTUAL","status":"BLOCKED","name":"Fuel","issuedAt":"2026-01-02T03:04:05.006Z"}`,
		`{"kind":"location","uuid":"` + locationUUID + `","companyUuid":"` + company + `","name":"Porto","code":"P1","status":"INACTIVE","createdAt":"2025-05-06T07:08:09Z"}`,
		`{"kind":"statement","statementUuid":"` + statementUUID + `","companyUuid":"` + company + `","month":2,"year":2026,"status":"OPEN","totalAmount":12.30,"currency":"EUR","closingDate":"2026-02-28"}`,
		`{"kind":"reimbursement","uuid":"` + requestUUID + `","companyUuid":"` + company + `","description":"Taxi","audit":{"requestCreationDate":"2026-01-01","lastUpdateDate":"2026-01-02"},"requester":{"uuid":"` + annUUID + `","name":"Ann"},"amountValue":{"currency":"EUR","amount":10.10},"validationStatus":{"status":"PAID"}}`,
	}, "\n") + "\n"
}

// onBothDatabases runs a test with an installation on each.
func onBothDatabases(t *testing.T, settings string, test func(*testing.T, installation)) {
	t.Helper()
	for name, database := range map[string]func(*testing.T) string{
		"sqlite":   func(*testing.T) string { return "" },
		"postgres": func(t *testing.T) string { t.Helper(); return pgtest.New(t) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newInstallation(t, sharedRedis(t), settings)
			h.database = database(t)
			test(t, h)
		})
	}
}

// The API of a running daemon returns imported objects at once.
func TestImportIsServed(t *testing.T) {
	t.Parallel()
	onBothDatabases(t, "public_url: https://spend.example.com/\n", func(t *testing.T, h installation) {
		t.Helper()
		d := h.start(t)
		h.importData(t, spendLines(), "-").want(t, exitOK, "imported 6  refused 0", "")
		for path, want := range map[string]string{
			"/api/v3/cards":                             `"lastFour":"0042"`,
			"/api/v3/cards/" + cardUUID:                 `"issuedAt":"2026-01-02T03:04:05.006Z"`,
			"/api/v3/reimbursements?requesterName=an":   `"totalElements":1`,
			"/api/v3/reimbursements?statuses=PAID":      `"href":"https://spend.example.com/api/v3/users/` + annUUID,
			"/api/v1/locations":                         `"code":"P1"`,
			"/api/v2/locations/" + locationUUID:         `"createdAt":"2025-05-06T07:08:09.000Z"`,
			"/api/v2/billing-statements/current":        `"statementUuid":"` + statementUUID,
			"/api/v2/billing-statements/2/2026":         `"totalAmount":12.3`,
			"/api/v3/cards?userErpId=E1&status=BLOCKED": cardUUID,
		} {
			if status, _, body := d.do(t, http.MethodGet, path, ""); status != http.StatusOK || !strings.Contains(body, want) {
				t.Errorf("GET %s: %d %s, want %s", path, status, body, want)
			}
		}
		status, _, body := d.do(t, http.MethodPost, "/api/v3/cards", `{"type":"virtual","alias":"New","userUUID":"`+annUUID+`"}`)
		if status != http.StatusCreated {
			t.Errorf("create a card: %d %s", status, body)
		}
		h.importData(t, spendLines(), "-").want(t, exitOK, "imported 6  refused 0", "")
		var cards []gen.CardItem
		if d.read(t, "/api/v3/cards", &cards); len(cards) != 2 {
			t.Errorf("%d cards after importing twice, want 2", len(cards))
		}
		d.stop(t)
	})
}

// Links begin with the listener's address when no other is configured.
func TestLinksWithoutPublicURL(t *testing.T) {
	t.Parallel()
	h := newInstallation(t, sharedRedis(t), "")
	h.importData(t, spendLines(), "-").want(t, exitOK, "imported 6", "")
	d := h.start(t)
	_, _, body := d.do(t, http.MethodGet, "/api/v3/reimbursements", "")
	if want := `"href":"` + d.api + `/api/v3/users/` + annUUID; !strings.Contains(body, want) {
		t.Errorf("%s, want %s", body, want)
	}
}

// Every refused line is reported with its file, number and reason. The other lines are imported,
// and the exit code is 1.
func TestImportReportsRefusedLines(t *testing.T) {
	t.Parallel()
	h := newInstallation(t, sharedRedis(t), "")
	first := filepath.Join(h.dir, "first.ndjson")
	if err := os.WriteFile(first, []byte(`{"kind":"card"}`+"\n\n"+spendLines()+`{"kind":"user","\u001b[2J":1}`), 0o600); err != nil {
		t.Fatal(err)
	}
	second := `{"kind":"user","uuid":"` + uuid.NewString() + `","companyUuid":"` + uuid.NewString() + `","username":"x","name":"X"}` + "\n" +
		`{"kind":"location","uuid":"` + uuid.NewString() + `","companyUuid":"` + developerCompany.String() + `","name":"Faro","code":"","status":"ACTIVE"}` + "\n" +
		"not JSON"
	r := h.importData(t, second, first, "-")
	r.want(t, exitFailure, "imported 7  refused 4\n", "spendhook: 4 of 11 lines were refused\n")
	lines := strings.Split(strings.TrimSpace(r.stderr), "\n")
	want := []string{
		first + ": line 1: uuid: is required; ",
		first + ": line 9: /\\u001b[2J: is not a known field",
		"-: line 1: companyUuid: ",
		"-: line 3: not a JSON object: ",
		"spendhook: ",
	}
	if len(lines) != len(want) {
		t.Fatalf("%d lines, want %d:\n%s", len(lines), len(want), r.stderr)
	}
	for i := range want {
		if !strings.HasPrefix(lines[i], want[i]) {
			t.Errorf("line %d: %s\nwant: %s", i, lines[i], want[i])
		}
	}
}

// An import that cannot begin changes nothing, and its error contains no password.
func TestImportRefusesToBegin(t *testing.T) {
	t.Parallel()
	h := newInstallation(t, sharedRedis(t), "")
	good := filepath.Join(h.dir, "good.ndjson")
	if err := os.WriteFile(good, []byte(spendLines()), 0o600); err != nil {
		t.Fatal(err)
	}
	h.importData(t, "", good, filepath.Join(h.dir, "none.ndjson")).want(t, exitUsage, "", "none.ndjson: no such file")
	h.importData(t, "").want(t, exitUsage, "", `expected "<file> ..."`)
	for url, want := range map[string]string{
		"mysql://root:hunter2@db/spend":                              "storage.url: want postgres://",
		"postgres://app:hunter2@127.0.0.1:1/spend":                   "the database is unavailable",
		"postgres://app:hunter2@127.0.0.1:1/spend?sslmode=sometimes": "sslmode",
	} {
		for _, args := range [][]string{{"import", good}, {"migrate"}} {
			r := command(t, "", append(args, "--data-dir", h.dir, "--storage", url)...)
			if r.want(t, exitFailure, "", want); strings.Contains(r.stderr, "hunter2") {
				t.Errorf("the password is in: %s", r.stderr)
			}
		}
	}
	if info, err := os.Stat(filepath.Join(h.dir, "spend.db")); err != nil || info.Size() > 0 {
		t.Errorf("the database was used all the same: %v", err)
	}
	h.importData(t, "", h.dir).want(t, exitUsage, "", "is a directory")
}

func TestMigrateCommand(t *testing.T) {
	t.Parallel()
	onBothDatabases(t, "", func(t *testing.T, h installation) {
		t.Helper()
		for range 2 {
			command(t, "", "migrate", "--data-dir", h.dir, "--storage", h.database).want(t, exitOK, "the schema is up to date\n", "")
		}
	})
}

// demo-data writes the same data each time, and import accepts all of it.
func TestDemoDataCommand(t *testing.T) {
	t.Parallel()
	args := []string{"demo-data", "--companies", "2", "--seed", "7", "--reimbursements", "40"}
	data := command(t, "", args...)
	data.want(t, exitOK, `"kind":"reimbursement"`, "")
	if diff := cmp.Diff(data, command(t, "", args...), cmp.AllowUnexported(result{})); diff != "" {
		t.Error("the same seed made other data")
	}
	if command(t, "", append(args, "--seed", "8")...).stdout == data.stdout {
		t.Error("another seed made the same data")
	}
	const lines = 2 * (1 + 25 + 8 + 60 + 40 + 18)
	newInstallation(t, sharedRedis(t), "").importData(t, data.stdout, "-").want(t, exitOK, fmt.Sprintf("imported %d  refused 0", lines), "")
	command(t, "", "demo-data", "--companies=-1").want(t, exitUsage, "", "--companies")
}

// The company of the demo has objects of every kind. They are loaded once: changes to them
// survive a restart.
func TestDemoHasSpendData(t *testing.T) {
	t.Parallel()
	h := newInstallation(t, sharedRedis(t), "")
	d := h.start(t, "--demo")
	var cards []gen.CardItem
	var requests gen.ReimbursementPage
	var locations []gen.Location
	d.read(t, "/api/v3/cards?status=ACTIVE&size=100", &cards)
	d.read(t, "/api/v3/reimbursements", &requests)
	d.read(t, "/api/v2/locations", &locations)
	if len(cards) < 30 || requests.TotalElements != 500 || len(locations) != 8 {
		t.Errorf("%d cards, %d reimbursements, %d locations", len(cards), requests.TotalElements, len(locations))
	}
	for _, status := range []string{"PENDING", "APPROVED", "SENT_TO_PAY", "PAYMENT_IN_PROGRESS", "PAID", "REJECTED", "FINANCE_REJECTED", "CANCELLED", "NOT_FOUND", "UNAUTHORIZED"} {
		if d.read(t, "/api/v3/reimbursements?statuses="+status, &requests); requests.TotalElements == 0 {
			t.Errorf("no reimbursement is %s", status)
		}
	}
	if status, _, body := d.do(t, http.MethodGet, "/api/v2/billing-statements/current", ""); status != http.StatusOK {
		t.Errorf("%d %s", status, body)
	}
	if status, _, body := d.do(t, http.MethodDelete, "/api/v3/cards/"+cards[0].UUID.String(), ""); status != http.StatusNoContent {
		t.Errorf("%d %s", status, body)
	}
	d.stop(t)

	d = h.start(t, "--demo")
	var again []gen.CardItem
	if d.read(t, "/api/v3/cards?status=ACTIVE&size=100", &again); len(again) != len(cards)-1 {
		t.Errorf("%d active cards after a restart, want %d", len(again), len(cards)-1)
	}
}
