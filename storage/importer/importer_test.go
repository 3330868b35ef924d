package importer_test

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"

	"spendhook/storage"
	"spendhook/storage/cards"
	"spendhook/storage/importer"
	"spendhook/storage/locations"
	"spendhook/storage/reimbursements"
	"spendhook/storage/storagetest"
)

const (
	acmeText = "a0000000-0000-4000-8000-000000000000"
	someUUID = `"uuid":"c0000000-0000-4000-8000-000000000000"`
)

func TestImportRefusesBadLinesAndGoesOn(t *testing.T) {
	t.Parallel()
	of := func(kind, rest string) string {
		return `{"kind":"` + kind + `",` + someUUID + `,"companyUuid":"` + acmeText + `"` + rest + `}`
	}
	card := func(change, to string) string {
		return of("card", strings.Replace(`,"holderUuid":"a0000000-0000-4000-8000-000000000001","lastFour":"1234","type":"VISA_VIRTUAL",`+
			`"status":"EXPIRED","name":"n","threshold":5,"periodicity":"DAILY","issuedAt":"2026-01-01T00:00:00Z"`, change, to, 1))
	}
	statement := func(change, to string) string {
		return strings.Replace(`{"kind":"statement","statementUuid":"c0000000-0000-4000-8000-000000000000","companyUuid":"`+acmeText+`",`+
			`"month":3,"year":2026,"status":"OPEN","totalAmount":12.5,"currency":"EUR","closingDate":"2026-03-31"}`, change, to, 1)
	}
	reimbursement := func(change, to string) string {
		return strings.Replace(storagetest.FullReimbursement, change, to, 1)
	}
	manyLabels := strings.TrimSuffix(strings.Repeat(`{"uuid":"c0000000-0000-4000-8000-000000000001","name":"l"},`, 250), ",")
	cases := []struct{ line, reason string }{
		{`nonsense`, "not a JSON object"},
		{`[1]`, "not a JSON object"},
		{`{"kind":"user"`, "not a JSON object"},
		{`{"kind":"user","kind":"card"}`, "duplicate"},
		{`{"kind":"planet"}`, "kind: must be company"},
		{`{"kind":"user"}`, "uuid: is required; companyUuid: is required; name:"},
		{of("user", `,"name":"x","nick":"y"`), "/nick: is not a known field"},
		{of("user", `,"name":7`), "/name: has a value of the wrong type"},
		{of("user", `,"name":"a\u0000b"`), "name: must be text"},
		{strings.Replace(of("user", `,"name":"x"`), acmeText, "d0000000-0000-4000-8000-000000000000", 1), "companyUuid: is not a known company"},
		{`{"kind":"user","uuid":"b0000000-0000-4000-8000-000000000001","companyUuid":"` + acmeText + `","name":"thief"}`, "uuid: belongs to another company"},
		{`{"kind":"company","uuid":"` + acmeText + `","name":"Acme","currency":"USD","creditLimit":1}`, "currency: cannot be changed"},
		{`{"kind":"company",` + someUUID + `,"name":"x","currency":"eur","creditLimit":-1}`, "currency: must be a currency code of three capital letters; creditLimit: must be 0 or more"},
		{`{"kind":"company",` + someUUID + `,"name":"x","currency":"JPY","creditLimit":1.5}`, "creditLimit: has more decimals than its currency"},
		{`{"kind":"company",` + someUUID + `,"name":"x","currency":"JPY","creditLimit":1e30}`, "creditLimit: is too large"},
		{of("location", `,"name":"x","status":"active"`), "status: must be one of ACTIVE, INACTIVE"},
		{reimbursement(`"labels":[`, `"labels":[`+manyLabels+`,`), "must have at most 12288 bytes"},
		{card(`"1234"`, `"12x4"`), "lastFour: must be four digits"},
		{card(`VISA_VIRTUAL`, `VIRTUAL`), "type: must be one of"},
		{card(`000001`, `000009`), "holderUuid: is not a user of the company"},
		{card(`a0000000-0000-4000-8000-000000000001`, `b0000000-0000-4000-8000-000000000001`), "holderUuid: is not a user of the company"},
		{card(`:5,`, `:5.001,`), "threshold: must be more than 0 and exact"},
		{card(`:5,`, `:0,`), "threshold: must be more than 0 and exact"},
		{card(`2026-01-01T00`, `2026-01-01`), "/issuedAt: has a value of the wrong type or form"},
		{statement(`:3`, `:13`), "month: must be 1 to 12"},
		{statement(`2026-03-31`, `2026-02-30`), "/closingDate: has a value of the wrong type or form"},
		{statement(`12.5`, `12.555`), "totalAmount: has more decimals"},
		{reimbursement(`"PAID"`, `"LOST"`), "validationStatus.status: must be one of"},
		{reimbursement(`"lastUpdateDate":"2026-05-05"`, `"lastUpdateDate":null`), "audit.lastUpdateDate: is required"},
		{reimbursement(`12.345`, `-1`), "amountValue.amount: must be 0 or more"},
		{reimbursement(`a0000000-0000-4000-8000-000000000001`, `b0000000-0000-4000-8000-000000000001`), "requester.uuid: is a user of another company"},
		{reimbursement(`{"uuid":"a0000000-0000-4000-8000-000000000001","name":"another spelling"}`, `{`+someUUID+`}`), "requester.name: is required"},
		{reimbursement(`"name":"travel"`, `"name":""`), "labels: each entry needs a uuid and a name"},
		{`{"kind":"user","name":"` + strings.Repeat("x", 1<<20) + `"}`, "longer than 1048576 bytes"},
	}
	storagetest.OnBoth(t, func(t *testing.T, db *storage.DB) {
		t.Helper()
		s := dataOf(db)
		storagetest.LoadCompanies(t, s.DB)
		lines := []string{""}
		for _, c := range cases {
			lines = append(lines, c.line)
		}
		lines = append(lines, card("", ""), statement("", ""), reimbursement("", ""))
		report, refused := storagetest.Import(t, s.DB, lines...)
		if report.Imported != 3 || report.Refused != int64(len(cases)) || report.Lines != int64(len(lines)) {
			t.Errorf("report = %+v", report)
		}
		for i, c := range cases {
			if i >= len(refused) || refused[i].Line != int64(i+2) || !strings.Contains(refused[i].Reason, c.reason) {
				t.Fatalf("line %d: refused %+v, want %q", i+2, refused[min(i, len(refused)-1)], c.reason)
			}
			if strings.Contains(refused[i].Reason, "importer.") || strings.Contains(refused[i].Reason, "reimbursements.") {
				t.Errorf("a Go type in %q", refused[i].Reason)
			}
		}
	})
}

func TestImportRefusesASecondStatementOfAMonth(t *testing.T) {
	t.Parallel()
	storagetest.OnBoth(t, func(t *testing.T, db *storage.DB) {
		t.Helper()
		s := dataOf(db)
		storagetest.LoadCompanies(t, s.DB)
		first := storagetest.StatementLine("1", 3, "CLOSED")
		_, refused := storagetest.Import(t, s.DB, first, storagetest.StatementLine("2", 3, "OPEN"), first, storagetest.StatementLine("3", 4, "OPEN"))
		if len(refused) != 1 || refused[0].Line != 2 || refused[0].Reason != "month: the company has another statement for this month" {
			t.Errorf("refused %v", refused)
		}
	})
}

func TestASecondImportChangesNothing(t *testing.T) {
	t.Parallel()
	storagetest.OnBoth(t, func(t *testing.T, db *storage.DB) {
		t.Helper()
		s := dataOf(db)
		data := importer.DemoData{Seed: 7, Reimbursements: 100}
		storagetest.LoadDemo(t, s.DB, data)
		first := everything(t, s)
		storagetest.LoadDemo(t, s.DB, data)
		if second := everything(t, s); !slices.Equal(first, second) {
			t.Errorf("first %v, then %v", first, second)
		}
		if first[0] != 300 || first[1] != 180 || first[2] != 24 {
			t.Errorf("counts = %v", first)
		}
	})
}

func everything(t *testing.T, s data) []int64 {
	t.Helper()
	_, reimbursements, err := s.reimbursements.List(t.Context(), reimbursements.Filter{})
	storagetest.WantError(t, err, nil)
	_, cards, err := s.Cards(t.Context(), cards.Filter{})
	storagetest.WantError(t, err, nil)
	_, locations, err := s.locations.List(t.Context(), locations.Filter{})
	storagetest.WantError(t, err, nil)
	return []int64{reimbursements, cards, locations}
}

// Of two lines about one object the later one wins, as if each line were a file.
func TestImportTakesLinesInOrder(t *testing.T) {
	t.Parallel()
	storagetest.OnBoth(t, func(t *testing.T, db *storage.DB) {
		t.Helper()
		s := dataOf(db)
		storagetest.LoadCompanies(t, s.DB)
		text := storagetest.FullReimbursement
		storagetest.Load(t, s.DB, text, strings.Replace(text, `"PAID"`, `"REJECTED"`, 1))
		anna := reimbursements.Filter{Company: &acme, RequesterName: "ANNA"}
		if _, total, err := s.reimbursements.List(t.Context(), anna); total != 0 || err != nil {
			t.Errorf("total %d, %v", total, err)
		}
		storagetest.Load(t, s.DB, `{"kind":"user","uuid":"`+ann.String()+`","companyUuid":"`+acmeText+`","name":"Anna"}`)
		got, total, err := s.reimbursements.List(t.Context(), anna)
		if err != nil || total != 1 || got[0].ValidationStatus.Status != "REJECTED" || got[0].Requester.Name != "Anna" {
			t.Errorf("%+v, %v", got, err)
		}
	})
}

func TestImportBringsUnknownRequestersAsInactiveUsers(t *testing.T) {
	t.Parallel()
	storagetest.OnBoth(t, func(t *testing.T, db *storage.DB) {
		t.Helper()
		s := dataOf(db)
		storagetest.LoadCompanies(t, s.DB)
		stranger := "a0000000-0000-4000-8000-00000000000f"
		storagetest.Load(t, s.DB, strings.Replace(storagetest.FullReimbursement, ann.String(), stranger, 1))
		_, total, err := s.reimbursements.List(t.Context(), reimbursements.Filter{Company: &acme, RequesterName: "spelling"})
		if err != nil || total != 1 {
			t.Errorf("total %d, %v", total, err)
		}
		r := cards.Request{Type: "VIRTUAL", Alias: "Travel", UserUUID: ann}
		copy(r.UserUUID[:], r.UserUUID[:15])
		r.UserUUID[15] = 0x0f
		_, err = s.CreateCard(t.Context(), acme, r, cards.Once{})
		storagetest.WantError(t, err, cards.ErrUserNotFound)
	})
}

func TestImportStopsWhenItsInputBreaks(t *testing.T) {
	t.Parallel()
	s := open(t, storage.Options{})
	broken := errors.New("broken pipe")
	in := importer.Importer{DB: s.DB}
	_, err := in.Run(t.Context(), io.MultiReader(strings.NewReader("{}\n"), errReader{broken}))
	storagetest.WantError(t, err, broken)
}

type errReader struct{ err error }

func (r errReader) Read([]byte) (int, error) { return 0, r.err }

func TestDemoDataIsTheSameForTheSameSeed(t *testing.T) {
	t.Parallel()
	write := func(seed uint64) []byte {
		var b bytes.Buffer
		if err := importer.WriteDemoData(&b, importer.DemoData{Seed: seed, Reimbursements: 50}); err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
	data := write(1)
	if !bytes.Equal(data, write(1)) || bytes.Equal(data, write(2)) {
		t.Error("the data does not follow from the seed")
	}
	for _, word := range append(slices.Clone(reimbursements.Statuses), "BLOCKED", "EXPIRED", "INACTIVE", "OPEN", "CLOSED", "VISA_PHYSICAL") {
		if !bytes.Contains(data, []byte(`"`+word+`"`)) {
			t.Errorf("no %s in the data", word)
		}
	}
}

func TestDemoDataEndsWhenItsOutputFails(t *testing.T) {
	t.Parallel()
	for _, d := range []importer.DemoData{{Companies: 1 << 60}, {Companies: 1, Users: 10_000_000}} {
		r, w := io.Pipe()
		_ = r.Close()
		if err := importer.WriteDemoData(w, d); !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("error = %v", err)
		}
	}
}

// FuzzImport: an import of any bytes ends and counts every line. The content of a line never
// fails the import.
func FuzzImport(f *testing.F) {
	f.Add([]byte(storagetest.FullReimbursement))
	f.Add([]byte(`{"kind":"company",` + someUUID + `,"name":"x","currency":"JPY","creditLimit":1e30}` + "\n\n{}"))
	s := open(f, storage.Options{DataDir: f.TempDir()})
	f.Fuzz(func(t *testing.T, data []byte) {
		in := importer.Importer{DB: s.DB}
		report, err := in.Run(t.Context(), bytes.NewReader(data))
		if err != nil || report.Bytes != int64(len(data)) {
			t.Errorf("%+v, %v", report, err)
		}
	})
}
