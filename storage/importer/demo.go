package importer

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"
	"github.com/shopspring/decimal"

	"spendhook/internal/calendar"
	"spendhook/internal/fold"
	"spendhook/internal/money"
	"spendhook/storage/cards"
	"spendhook/storage/locations"
	"spendhook/storage/reimbursements"
)

// DemoData describes invented spend data. Zero numbers mean the defaults: 3
// companies, each with 25 users, 8 locations, 60 cards, 500 reimbursements and
// 18 statements.
type DemoData struct {
	// First is the uuid of the first company, uuid.Nil for an invented one.
	First                                               uuid.UUID
	Seed                                                uint64
	Companies                                           int
	Users, Locations, Cards, Reimbursements, Statements int // of each company
}

// demoToday is the day after the last one in the data, so that the same seed
// makes the same data on any day.
var demoToday = time.Date(2026, time.June, 30, 12, 0, 0, 0, time.UTC)

// demoDays is how far back the data goes, in days.
const demoDays = 730

// WriteDemoData writes lines that an Importer reads: the same for the same
// DemoData, company by company, with every status and the edge cases that real
// data has (currencies without decimals or with three, accents, fields left
// out, users and locations that are inactive).
func WriteDemoData(w io.Writer, d DemoData) error {
	out := bufio.NewWriterSize(w, 1<<16)
	seed := [32]byte(binary.LittleEndian.AppendUint64(make([]byte, 24), d.Seed))
	source := rand.NewChaCha8(seed)
	g := demo{
		DemoData: d.withDefaults(),
		rand:     rand.New(source), //nolint:gosec // data that must come out the same again
		bytes:    source,
		out:      jsontext.NewEncoder(out, json.WithMarshalers(json.MarshalToFunc(plainDecimal))),
	}
	for i := range g.Companies {
		g.company(i)
	}
	if g.err != nil {
		return fmt.Errorf("write demo data: %w", g.err)
	}
	return out.Flush()
}

func plainDecimal(e *jsontext.Encoder, d decimal.Decimal) error {
	return e.WriteValue(jsontext.Value(d.String()))
}

func (d DemoData) withDefaults() DemoData {
	d.Companies = cmp.Or(d.Companies, 3)
	d.Users = cmp.Or(d.Users, 25)
	d.Locations = cmp.Or(d.Locations, 8)
	d.Cards = cmp.Or(d.Cards, 60)
	d.Reimbursements = cmp.Or(d.Reimbursements, 500)
	d.Statements = cmp.Or(d.Statements, 18)
	return d
}

var (
	demoCompanies = []struct{ name, currency, region string }{
		{"Aurora Logistics", "EUR", "EU"},
		{"Borealis Foods", "USD", "US"},
		{"Cedro Energia", "BRL", "SA"},
		{"Daichi Robotics", "JPY", "APAC"},
		{"Emaar Marine", "BHD", "ME"},
		{"Fjord Analytics", "NOK", "EU"},
	}
	demoFirst     = strings.Fields("Zoë José Łucja Noor François Aiko Marek Ana Søren Chloé İpek Bruno Maëlle Jan Ines Omar")
	demoLast      = strings.Fields("Müller Gonçalves Nowak O'Brien Lefèvre Tanaka Almeida Ångström Ben-Ari Costa Dvořák Kim Šimić Rossi")
	demoPlaces    = strings.Fields("Headquarters Sales Engineering Lisbon Kraków Finance Warehouse Marketing Support Legal")
	demoLabels    = strings.Fields("travel client-visit offsite training hardware urgent")
	demoGroups    = strings.Fields("Managers Field Remote Executives")
	demoMerchants = []struct {
		name, category, country string
		code                    int32
	}{
		{"Café Müller", "Restaurants", "DE", 5812},
		{"TAP Air Portugal", "Airlines", "PT", 4511},
		{"Hotel Łódź", "Lodging", "PL", 7011},
		{"Uber", "Taxis and limousines", "US", 4121},
		{"Office Depot", "Stationery", "US", 5943},
		{"東京ホテル", "Lodging", "JP", 7011},
		{"O'Reilly Media", "Books", "US", 5942},
		{"Shell", "Service stations", "NL", 5541},
	}
)

// demo writes the lines. Its first error stays and stops the rest.
type demo struct {
	DemoData
	rand  *rand.Rand
	bytes io.Reader // of the same source
	out   *jsontext.Encoder
	err   error
}

// demoCompany has the values that the lines of one company share.
type demoCompany struct {
	uuid                             uuid.UUID
	currency                         string
	users, labels, groups, locations []reimbursements.Reference
}

func (g *demo) write(line any) {
	if g.err == nil {
		g.err = json.MarshalEncode(g.out, line)
	}
}

func (g *demo) company(i int) {
	kind := demoCompanies[i%len(demoCompanies)]
	name := kind.name
	if round := i / len(demoCompanies); round > 0 {
		name = fmt.Sprintf("%s %d", name, round+1)
	}
	limit := decimal.NewFromInt(int64(1+g.rand.IntN(20)) * 10_000)
	c := demoCompany{uuid: g.companyUUID(i), currency: kind.currency, labels: g.references(demoLabels), groups: g.references(demoGroups)}
	g.write(&companyEntry{
		kinded: kinded{"company"}, UUID: c.uuid, Name: name, Currency: kind.currency, CreditLimit: &limit, Region: kind.region,
	})
	for n := range g.Users {
		c.users = append(c.users, g.user(c, n))
	}
	for n := range g.Locations {
		c.locations = append(c.locations, g.location(c, n))
	}
	for n := range g.Cards {
		g.card(c, n)
	}
	for n := range g.Statements {
		g.statement(c, n)
	}
	for n := range g.Reimbursements {
		g.reimbursement(c, n)
	}
}

func (g *demo) companyUUID(i int) uuid.UUID {
	if id := g.uuid(); i > 0 || g.First == uuid.Nil {
		return id
	}
	return g.First
}

func (g *demo) user(c demoCompany, n int) reimbursements.Reference {
	first, last := pick(g, demoFirst), pick(g, demoLast)
	active := n%9 != 8
	u := userEntry{
		owned: owned{"user", g.uuid(), c.uuid}, Name: first + " " + last, Active: &active,
		Username: strings.ReplaceAll(fold.Text(first+"."+last), "'", "") + strconv.Itoa(n),
	}
	if n%4 != 3 {
		u.ERPID = fmt.Sprintf("ERP-%05d", n)
	}
	g.write(&u)
	return reimbursements.Reference{UUID: u.UUID, Name: u.Name}
}

func (g *demo) location(c demoCompany, n int) reimbursements.Reference {
	l := locationEntry{
		owned: owned{"location", g.uuid(), c.uuid}, Name: demoPlaces[n%len(demoPlaces)],
		Code: fmt.Sprintf("LOC-%03d", n), Status: locations.Statuses[min(1, n%5/4)], CreatedAt: g.past(),
	}
	g.write(&l)
	return reimbursements.Reference{UUID: l.UUID, Name: l.Name}
}

func (g *demo) card(c demoCompany, n int) {
	id, holder := g.uuid(), pick(g, c.users)
	line := cardEntry{
		owned: owned{"card", id, c.uuid}, HolderUUID: holder.UUID, LastFour: cards.LastFour(id),
		Type: cards.Types[n%len(cards.Types)], Status: string(cards.Active), Name: holder.Name + "'s card", IssuedAt: g.past(),
	}
	if n%4 == 3 {
		line.Status = cards.Statuses[n/4%len(cards.Statuses)]
	}
	if n%3 != 0 {
		threshold := decimal.NewFromInt(int64(50 * (1 + g.rand.IntN(100))))
		line.Threshold, line.Periodicity = &threshold, pick(g, cards.Periodicities)
	}
	g.write(&line)
}

func (g *demo) statement(c demoCompany, n int) {
	month := time.Date(demoToday.Year(), demoToday.Month()-time.Month(n), 1, 0, 0, 0, 0, time.UTC)
	total, closing := g.amount(c.currency, 90_000_00), calendar.DateOf(month.AddDate(0, 1, -1))
	line := statementEntry{
		kinded: kinded{"statement"}, UUID: g.uuid(), CompanyUUID: c.uuid, Month: int(month.Month()), Year: month.Year(),
		Status: "CLOSED", TotalAmount: &total, Currency: c.currency, ClosingDate: &closing,
	}
	if n == 0 {
		line.Status = "OPEN"
	}
	g.write(&line)
}

func (g *demo) reimbursement(c demoCompany, n int) {
	shop := pick(g, demoMerchants)
	line := reimbursementEntry{kinded: kinded{"reimbursement"}, Reimbursement: reimbursements.Reimbursement{
		UUID: g.uuid(), CompanyUUID: c.uuid, Requester: pick(g, c.users),
		AmountValue: reimbursements.Amount{Currency: c.currency, Amount: g.amount(c.currency, 2_000_00)},
		Detail: reimbursements.Detail{
			Description: shop.category + " at " + shop.name,
			Labels:      g.some(c.labels), Groups: g.some(c.groups), Locations: g.some(c.locations),
			ValidationStatus: reimbursements.ValidationStatus{Status: reimbursements.Statuses[n%len(reimbursements.Statuses)]},
			Merchant:         reimbursements.Merchant{Name: shop.name, Category: shop.category, CountryCode: shop.country, CategoryCode: &shop.code},
		},
	}}
	if n%17 == 16 {
		line.Merchant = reimbursements.Merchant{Name: shop.name, Description: "paid in cash"}
	}
	for range g.rand.IntN(3) {
		line.Attachments = append(line.Attachments, reimbursements.Attachment{UUID: g.uuid(), FileName: "receipt.pdf"})
	}
	g.history(&line.Reimbursement)
	g.write(&line)
}

// history gives the request the dates and remarks that its status implies.
func (g *demo) history(r *reimbursements.Reimbursement) {
	created := calendar.DateOf(demoToday) - calendar.Date(1+g.rand.Int32N(demoDays))
	spent, updated := created-calendar.Date(g.rand.Int32N(20)), created
	r.Audit = reimbursements.Audit{RequestCreationDate: &created, ExpenseDate: &spent, LastUpdateDate: &updated}
	switch r.ValidationStatus.Status {
	case "APPROVED", "SENT_TO_PAY", "PAYMENT_IN_PROGRESS", "PAID":
		updated += calendar.Date(g.rand.Int32N(6))
		approved := updated
		r.Audit.FinalApprovalDate = &approved
	case "REJECTED", "FINANCE_REJECTED":
		r.ValidationStatus.Comment = "The receipt is not readable."
	case "CANCELLED":
		r.Audit.ExpenseDate = nil
	}
	if r.ValidationStatus.Status == "PAID" {
		updated += calendar.Date(g.rand.Int32N(4))
		paid := updated
		r.Audit.PaymentDate = &paid
		r.PaymentDetail = &reimbursements.PaymentDetail{PaymentMethod: "BANK_TRANSFER", MarkedAsPaidBy: "finance@example.com"}
	}
}

func (g *demo) uuid() uuid.UUID { return uuid.Must(uuid.NewRandomFromReader(g.bytes)) }

func (g *demo) references(names []string) []reimbursements.Reference {
	out := make([]reimbursements.Reference, len(names))
	for i, name := range names {
		out[i] = reimbursements.Reference{UUID: g.uuid(), Name: name}
	}
	return out
}

func (g *demo) some(from []reimbursements.Reference) []reimbursements.Reference {
	first := g.rand.IntN(len(from))
	return from[first:min(len(from), first+g.rand.IntN(3))]
}

func (g *demo) amount(currency string, maxMinor int64) decimal.Decimal {
	return money.FromMinor(1+g.rand.Int64N(maxMinor), currency)
}

func (g *demo) past() time.Time {
	return demoToday.Add(-time.Duration(g.rand.Int64N(demoDays*24*60*60)) * time.Second)
}

func pick[T any](g *demo, from []T) T { return from[g.rand.IntN(len(from))] }
