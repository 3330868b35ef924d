package reimbursements_test

import (
	"bytes"
	"cmp"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"spendhook/internal/calendar"
	"spendhook/storage"
	"spendhook/storage/importer"
	"spendhook/storage/reimbursements"
	"spendhook/storage/storagetest"
)

// line is a reimbursement as the tests write and expect it.
type line struct {
	Kind        string    `json:"kind"`
	UUID        uuid.UUID `json:"uuid"`
	CompanyUUID uuid.UUID `json:"companyUuid"`
	Audit       struct {
		Creation string `json:"requestCreationDate"`
		Expense  string `json:"expenseDate,omitempty"`
		Approval string `json:"finalApprovalDate,omitempty"`
		Payment  string `json:"paymentDate,omitempty"`
		Update   string `json:"lastUpdateDate"`
	} `json:"audit"`
	Merchant struct {
		CategoryCode *int32 `json:"categoryCode,omitempty"`
	} `json:"merchant"`
	Requester struct {
		UUID uuid.UUID `json:"uuid"`
		Name string    `json:"name"`
	} `json:"requester"`
	AmountValue struct {
		Currency string `json:"currency"`
		Amount   string `json:"amount"`
	} `json:"amountValue"`
	ValidationStatus struct {
		Status string `json:"status"`
	} `json:"validationStatus"`
}

// model answers as the list should, from memory.
type model []line

func (m model) list(f reimbursements.Filter) (ids []uuid.UUID, total int64) {
	all := m.all(f)
	return pageOf(all, f.Page), int64(len(all))
}

// all is the whole list, of which pageOf is a page.
func (m model) all(f reimbursements.Filter) (ids []uuid.UUID) {
	all := slices.DeleteFunc(slices.Clone(m), func(l line) bool { return !matches(f, l) })
	slices.SortFunc(all, func(a, b line) int {
		return cmp.Or(cmp.Compare(b.Audit.Update, a.Audit.Update), bytes.Compare(a.UUID[:], b.UUID[:]))
	})
	for _, l := range all {
		ids = append(ids, l.UUID)
	}
	return ids
}

func pageOf(all []uuid.UUID, p storage.Page) []uuid.UUID {
	from := min(len(all), p.Number*p.Limit())
	return all[from:min(len(all), from+p.Limit())]
}

var plainNames = map[string]string{
	"Zoë Müller": "zoe muller", "JOSÉ GARCÍA": "jose garcia", "Ann O'Neill": "ann o'neill", "100%_Sure!": "100%_sure!",
	"Łukasz Øsßæð": "lukasz osssaed",
}

func matches(f reimbursements.Filter, l line) bool {
	in := func(r reimbursements.DateRange, day string) bool {
		if day == "" {
			return r == reimbursements.DateRange{}
		}
		return (r.Start == nil || r.Start.String() <= day) && (r.End == nil || day <= r.End.String())
	}
	return (f.Company == nil || *f.Company == l.CompanyUUID) &&
		in(f.RequestCreationDate, l.Audit.Creation) && in(f.ExpenseDate, l.Audit.Expense) &&
		in(f.FinalApprovalDate, l.Audit.Approval) && in(f.PaymentDate, l.Audit.Payment) &&
		in(f.LastUpdateDate, l.Audit.Update) &&
		(len(f.Statuses) == 0 || slices.Contains(f.Statuses, l.ValidationStatus.Status)) &&
		(len(f.CategoryCodes) == 0 || l.Merchant.CategoryCode != nil && slices.Contains(f.CategoryCodes, *l.Merchant.CategoryCode)) &&
		(len(f.RequesterUUIDs) == 0 || slices.Contains(f.RequesterUUIDs, l.Requester.UUID)) &&
		(len(f.UUIDs) == 0 || slices.Contains(f.UUIDs, l.UUID)) &&
		strings.Contains(plainNames[l.Requester.Name], plain(f.RequesterName))
}

func plain(name string) string {
	return strings.NewReplacer("ü", "u", "é", "e", "É", "e", "í", "i", "Í", "i", "ë", "e", "ł", "l", "ø", "o", "ß", "ss").Replace(strings.ToLower(name))
}

var (
	someStatuses = []string{
		"PENDING", "APPROVED", "SENT_TO_PAY", "PAYMENT_IN_PROGRESS", "PAID",
		"REJECTED", "FINANCE_REJECTED", "CANCELLED", "NOT_FOUND", "UNAUTHORIZED",
	}
	someCodes = []int32{0, 5812, 4111, 7011}
	someNames = []string{"Zoë Müller", "JOSÉ GARCÍA", "Ann O'Neill", "100%_Sure!", "Łukasz Øsßæð"}
)

func anyDay(t *rapid.T, label string) string {
	return calendar.Date(rapid.Int32Range(20_000, 20_009).Draw(t, label)).String()
}

func anyID(t *rapid.T, label string) uuid.UUID {
	var id uuid.UUID
	copy(id[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, label))
	id[15] |= 1
	return id
}

func anyLine(t *rapid.T) line {
	var l line
	l.Kind, l.UUID, l.CompanyUUID = "reimbursement", anyID(t, "uuid"), rapid.SampledFrom([]uuid.UUID{acme, bolt}).Draw(t, "company")
	l.Audit.Creation, l.Audit.Update = anyDay(t, "creation"), anyDay(t, "update")
	for _, day := range []*string{&l.Audit.Expense, &l.Audit.Approval, &l.Audit.Payment} {
		if rapid.Bool().Draw(t, "dated") {
			*day = anyDay(t, "day")
		}
	}
	if rapid.Bool().Draw(t, "categorised") {
		code := rapid.SampledFrom(someCodes).Draw(t, "code")
		l.Merchant.CategoryCode = &code
	}
	n := rapid.IntRange(0, len(someNames)-1).Draw(t, "requester")
	l.Requester.Name = someNames[n]
	l.Requester.UUID = uuid.NewSHA1(l.CompanyUUID, []byte{byte(n)})
	l.AmountValue.Currency, l.AmountValue.Amount = "EUR", "12.34"
	l.ValidationStatus.Status = rapid.SampledFrom(someStatuses).Draw(t, "status")
	return l
}

func anyRange(t *rapid.T, label string) (r reimbursements.DateRange) {
	days := []int32{rapid.Int32Range(20_000, 20_009).Draw(t, label), rapid.Int32Range(20_000, 20_009).Draw(t, label)}
	slices.Sort(days)
	from, to := calendar.Date(days[0]), calendar.Date(days[1])
	switch rapid.IntRange(0, 9).Draw(t, label+" form") {
	case 0:
		r.Start = &from
	case 1:
		r.End = &to
	case 2:
		r.Start, r.End = &from, &to
	}
	return r
}

func anyFilter(t *rapid.T, m model) reimbursements.Filter {
	f := reimbursements.Filter{
		RequestCreationDate: anyRange(t, "creation"), ExpenseDate: anyRange(t, "expense"), FinalApprovalDate: anyRange(t, "approval"),
		PaymentDate: anyRange(t, "payment"), LastUpdateDate: anyRange(t, "update"),
		Page: storage.Page{Number: rapid.IntRange(0, 4).Draw(t, "page"), Size: rapid.IntRange(1, 30).Draw(t, "size")},
	}
	given := func(name string) bool { return rapid.IntRange(0, 3).Draw(t, name) == 0 }
	if !given("platform") {
		f.Company = &acme
	}
	if given("statuses") {
		f.Statuses = rapid.SliceOfN(rapid.SampledFrom(someStatuses), 1, 5).Draw(t, "statuses")
	}
	if given("codes") {
		f.CategoryCodes = rapid.SliceOfN(rapid.SampledFrom(someCodes), 1, 3).Draw(t, "codes")
	}
	if given("requesters") {
		f.RequesterUUIDs = []uuid.UUID{uuid.NewSHA1(acme, []byte{0}), uuid.NewSHA1(acme, []byte{2}), uuid.New()}
	}
	if given("name") {
		f.RequesterName = rapid.SampledFrom([]string{"zoe", "MÜLL", "josé", "Garcia", "n", "o'n", "%", "_", "!", "ŁUKASZ", "lukasz ø", "ossS", "nobody"}).Draw(t, "name")
	}
	if given("uuids") && len(m) > 0 {
		f.UUIDs = []uuid.UUID{m[0].UUID, m[len(m)-1].UUID, uuid.New()}
	}
	return f
}

// Section 4.3: every filter, alone and together, on every page, gives what a
// search through all the rows gives. The rows change between the lists, so
// a stale cache would fail the test.
func TestSpec43FiltersAndPagesAgainstAModel(t *testing.T) {
	t.Parallel()
	storagetest.OnBoth(t, func(t *testing.T, db *storage.DB) {
		t.Helper()
		s := fixtureOf(db)
		storagetest.LoadCompanies(t, s.db)
		m := model{}
		rapid.Check(t, func(t *rapid.T) {
			if rapid.IntRange(0, 3).Draw(t, "change") == 0 {
				m = m.change(t, s)
			}
			for range 5 {
				f := anyFilter(t, m)
				want, wantTotal := m.list(f)
				got, total, err := s.List(t.Context(), f)
				if err != nil {
					t.Fatal(err)
				}
				if total != wantTotal || !slices.Equal(uuids(got), want) {
					t.Fatalf("filter %+v: total %d, want %d\n got %v\nwant %v", f, total, wantTotal, uuids(got), want)
				}
			}
		})
	})
}

// change imports new rows and replaces one.
func (m model) change(t *rapid.T, s fixture) model {
	fresh := rapid.SliceOfN(rapid.Custom(anyLine), 1, 20).Draw(t, "rows")
	if len(m) > 0 {
		replaced := rapid.Custom(anyLine).Draw(t, "replacement")
		replaced.UUID, replaced.CompanyUUID = m[0].UUID, m[0].CompanyUUID
		replaced.Requester = m[0].Requester
		fresh = append(fresh, replaced)
		m = m[1:]
	}
	var data bytes.Buffer
	for _, l := range fresh {
		text, err := json.Marshal(l)
		if err != nil {
			t.Fatal(err)
		}
		data.Write(append(text, '\n'))
	}
	in := importer.Importer{DB: s.db, Refused: func(r importer.Refusal) { t.Errorf("refused %+v", r) }}
	if _, err := in.Run(t.Context(), &data); err != nil {
		t.Fatal(err)
	}
	for _, l := range fresh {
		m = slices.DeleteFunc(m, func(old line) bool { return old.UUID == l.UUID })
	}
	return append(m, fresh...)
}

func uuids(list []reimbursements.Reimbursement) (ids []uuid.UUID) {
	for _, r := range list {
		ids = append(ids, r.UUID)
	}
	return ids
}

func TestSpec24ReimbursementFieldsComeBackAsImported(t *testing.T) {
	t.Parallel()
	storagetest.OnBoth(t, func(t *testing.T, db *storage.DB) {
		t.Helper()
		s := fixtureOf(db)
		storagetest.LoadCompanies(t, s.db)
		storagetest.Load(t, s.db, storagetest.FullReimbursement)
		list, _, err := s.List(t.Context(), reimbursements.Filter{Company: &acme})
		if err != nil || len(list) != 1 {
			t.Fatal(list, err)
		}
		got := storagetest.Must(json.Marshal(list[0]))(t)
		want := `{"uuid":"11111111-1111-4111-8111-111111111111","companyUuid":"a0000000-0000-4000-8000-000000000000",` +
			`"audit":{"expenseDate":"2026-04-30","finalApprovalDate":"2026-05-03","lastUpdateDate":"2026-05-05","paymentDate":"2026-05-04","requestCreationDate":"2026-05-01"},` +
			`"requester":{"uuid":"a0000000-0000-4000-8000-000000000001","name":"Ánn Mûller"},` +
			`"amountValue":{"currency":"BHD","amount":"12.345"},` +
			`"description":"Lunch with \"Δ\"",` +
			`"labels":[{"uuid":"22222222-2222-4222-8222-222222222222","name":"travel"}],` +
			`"merchant":{"category":"Restaurants","categoryCode":5812,"countryCode":"PT","description":"d","name":"Café"},` +
			`"groups":[{"uuid":"33333333-3333-4333-8333-333333333333","name":"Field"}],` +
			`"locations":[{"uuid":"44444444-4444-4444-8444-444444444444","name":"Lisbon"}],` +
			`"validationStatus":{"status":"PAID","comment":"ok"},` +
			`"attachments":[{"uuid":"55555555-5555-4555-8555-555555555555","fileName":"a.pdf"}],` +
			`"paymentDetail":{"markedAsPaidBy":"ann@example.com","paymentMethod":"CASH","paymentMethodNote":"n"}}`
		if string(got) != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	})
}

func TestSpec43BadFilters(t *testing.T) {
	t.Parallel()
	s := open(t, storage.Options{})
	early, late := calendar.Date(1), calendar.Date(2)
	backwards := reimbursements.DateRange{Start: &late, End: &early}
	for field, f := range map[string]reimbursements.Filter{
		"requestCreationDateStart": {RequestCreationDate: backwards},
		"expenseDateStart":         {ExpenseDate: backwards},
		"finalApprovalDateStart":   {FinalApprovalDate: backwards},
		"paymentDateStart":         {PaymentDate: backwards},
		"lastUpdateDateStart":      {LastUpdateDate: backwards},
		"requesterName":            {RequesterName: "a\x00b"},
	} {
		_, _, err := s.List(t.Context(), f)
		storagetest.WantInvalid(t, err, field)
	}
}

func TestSpec43PagesFarBeyondTheEndAreEmpty(t *testing.T) {
	t.Parallel()
	s := open(t, storage.Options{})
	storagetest.LoadDemo(t, s.db, importer.DemoData{Companies: 1, Reimbursements: 30})
	got, total, err := s.List(t.Context(), reimbursements.Filter{Page: storage.Page{Number: 1_000_000_000, Size: 1_000_000_000}})
	if err != nil || total != 30 || len(got) != 0 {
		t.Errorf("%d of %d, %v", len(got), total, err)
	}
}

// A migration from another system gives most rows the same last update, so that
// a page begins far into one day. More rows than are quickly sorted also pass
// each of the filters.
func TestPagesWithinACrowdedDay(t *testing.T) {
	t.Parallel()
	rows := rapid.SliceOfNDistinct(rapid.Custom(anyLine), 400, 400, func(l line) uuid.UUID { return l.UUID }).Example(1)
	m := make(model, 0, 12_000)
	for i := range cap(m) {
		l := rows[i%len(rows)]
		l.UUID, l.CompanyUUID, l.Requester.UUID = uuid.NewSHA1(l.UUID, []byte{byte(i >> 8), byte(i)}), acme, uuid.NewSHA1(acme, []byte(l.Requester.Name))
		if i%10 > 0 {
			l.Audit.Update = "2026-01-01"
		}
		m = append(m, l)
	}
	from, until := calendar.Date(20_001), calendar.Date(20_008)
	most := reimbursements.DateRange{Start: &from, End: &until}
	filters := []reimbursements.Filter{
		{},
		{Company: &acme},
		{Company: &acme, RequestCreationDate: most},
		{Company: &acme, ExpenseDate: most, RequesterName: "e"},
		{Company: &acme, Statuses: someStatuses[:8]},
		{Company: &acme, CategoryCodes: someCodes},
		{Company: &bolt},
	}
	want := make([][]uuid.UUID, len(filters))
	for i, f := range filters {
		want[i] = m.all(f)
	}
	text := m.text(t)
	storagetest.OnBoth(t, func(t *testing.T, db *storage.DB) {
		t.Helper()
		s := fixtureOf(db)
		storagetest.LoadCompanies(t, s.db)
		storagetest.Load(t, s.db, text...)
		for i, f := range filters {
			for _, number := range []int{0, 1, 19, 20, 44, 60, 70, 107, 108, 119, 120} {
				f.Page = storage.Page{Number: number, Size: 100}
				ids := pageOf(want[i], f.Page)
				got, total, err := s.List(t.Context(), f)
				if err != nil || total != int64(len(want[i])) || !slices.Equal(uuids(got), ids) {
					t.Fatalf("filter %+v: total %d, want %d, %v, got %d rows, want %d", f, total, len(want[i]), err, len(got), len(ids))
				}
			}
		}
	})
}

func (m model) text(t *testing.T) []string {
	t.Helper()
	lines := make([]string, len(m))
	for i, l := range m {
		lines[i] = string(storagetest.Must(json.Marshal(l))(t))
	}
	return lines
}
