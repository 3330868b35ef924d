package importer

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"fmt"
	"io"
	"iter"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"

	"spendhook/internal/calendar"
	"spendhook/internal/fold"
	"spendhook/internal/money"
	"spendhook/storage/cards"
	"spendhook/storage/locations"
	"spendhook/storage/reimbursements"
)

// DemoData describes invented spend data. Zero numbers mean the defaults: 3
// companies, each with 25 users, 60 cards and 500 reimbursements. Each company also has 8
// locations and 18 statements.
type DemoData struct {
	// First is the uuid of the first company; uuid.Nil means a random one.
	First                        uuid.UUID
	Seed                         uint64
	Companies                    int
	Users, Cards, Reimbursements int // of each company
}

// demoToday is a fixed date in place of today, so that the same seed always makes the same
// data.
var demoToday = time.Date(2026, time.June, 30, 12, 0, 0, 0, time.UTC)

const demoDays = 730 // period that the data covers

var (
	demoCompanies = []struct{ name, currency, region string }{
		{"Aurora Logistics", "EUR", "EU"},
		{"Cedro Energia", "BRL", "SA"},
		{"Daichi Robotics", "JPY", "APAC"},
		{"Emaar Marine", "BHD", "ME"},
	}
	demoFirst     = strings.Fields("Zoë José Łucja Noor François Aiko Marek Ana Søren İpek Bruno Omar")
	demoLast      = strings.Fields("Müller Gonçalves Nowak O'Brien Lefèvre Tanaka Ångström Ben-Ari Dvořák Kim Šimić")
	demoPlaces    = strings.Fields("Headquarters Sales Engineering Lisbon Kraków Finance Warehouse Legal")
	demoLabels    = strings.Fields("travel client-visit training hardware")
	demoGroups    = strings.Fields("Managers Field Remote")
	demoMerchants = []reimbursements.Merchant{
		{Name: "Café Müller", Category: "Restaurants", CountryCode: "DE", CategoryCode: new(int32(5812))},
		{Name: "TAP Air Portugal", Category: "Airlines", CountryCode: "PT", CategoryCode: new(int32(4511))},
		{Name: "東京ホテル", Category: "Lodging", CountryCode: "JP", CategoryCode: new(int32(7011))},
		{Name: "O'Reilly Media", Category: "Books", CountryCode: "US", CategoryCode: new(int32(5942))},
		{Name: "Market stall", Description: "paid in cash"},
	}
)

// object is the JSON of a line, or of a part of it.
type object map[string]any

// demo writes the lines. Its first error ends the data.
type demo struct {
	DemoData
	rand  *rand.Rand
	bytes io.Reader // the source of rand
	out   *bufio.Writer
	err   error
}

// WriteDemoData writes lines for an Importer, company by company. The same DemoData gives the same
// lines. The data has every status and the edge cases of real data: currencies without decimals or
// with three, accents, missing fields, inactive users and locations.
func WriteDemoData(w io.Writer, d DemoData) error {
	seed := [32]byte(binary.LittleEndian.AppendUint64(make([]byte, 24), d.Seed))
	source := rand.NewChaCha8(seed)
	g := demo{
		DemoData: d, bytes: source, out: bufio.NewWriterSize(w, 1<<16),
		rand: rand.New(source), //nolint:gosec // the data must be reproducible
	}
	for i := range g.count(d.Companies, 3) {
		g.company(i)
	}
	if g.err != nil {
		return fmt.Errorf("write demo data: %w", g.err)
	}
	return g.out.Flush()
}

// count counts from 0 to n-1, with otherwise for an n of 0. It stops after the first error of write.
func (g *demo) count(n, otherwise int) iter.Seq[int] {
	return func(yield func(int) bool) {
		for i := 0; i < cmp.Or(n, otherwise) && g.err == nil && yield(i); i++ {
			continue
		}
	}
}

// write writes a line with a new uuid. It returns the uuid and the name, for lines that refer to this
// one.
func (g *demo) write(kind, idField string, company uuid.UUID, line object) object {
	id := g.uuid()
	if kind == "company" {
		id = company
	} else {
		line["companyUuid"] = company
	}
	line["kind"], line[idField] = kind, id
	text, err := json.Marshal(line, json.Deterministic(true))
	if err == nil {
		_, err = g.out.Write(append(text, '\n'))
	}
	g.err = err
	return object{"uuid": id, "name": line["name"]}
}

func (g *demo) company(i int) {
	id, like := g.uuid(), demoCompanies[i%len(demoCompanies)]
	if i == 0 && g.First != uuid.Nil {
		id = g.First
	}
	g.write("company", "uuid", id, object{
		"name": fmt.Sprintf("%s %d", like.name, i+1), "currency": like.currency, "region": like.region,
		"creditLimit": 10_000 * (1 + g.rand.IntN(20)),
	})
	var users []object
	for n := range g.count(g.Users, 25) {
		name := pick(g, demoFirst) + " " + pick(g, demoLast)
		user := object{"name": name, "active": n%9 != 8, "username": fmt.Sprintf("%s%d", strings.ReplaceAll(fold.Text(name), " ", "."), n)}
		if n%4 != 3 {
			user["erpId"] = fmt.Sprintf("ERP-%05d", n)
		}
		users = append(users, g.write("user", "uuid", id, user))
	}
	var places []object
	for n := range 8 {
		places = append(places, g.write("location", "uuid", id, object{
			"name": demoPlaces[n%len(demoPlaces)], "code": fmt.Sprintf("LOC-%03d", n),
			"status": locations.Statuses[min(1, n%5/4)], "createdAt": g.past(),
		}))
	}
	for n := range g.count(g.Cards, 60) {
		g.card(id, pick(g, users), n)
	}
	for n := range 18 {
		g.statement(id, like.currency, n)
	}
	labels, groups := g.named(demoLabels), g.named(demoGroups)
	for n := range g.count(g.Reimbursements, 500) {
		g.reimbursement(id, n, like.currency, object{
			"requester": pick(g, users), "labels": g.some(labels), "groups": g.some(groups), "locations": g.some(places),
		})
	}
}

func (g *demo) card(company uuid.UUID, holder object, n int) {
	line := object{
		"holderUuid": holder["uuid"], "name": holder["name"], "lastFour": fmt.Sprintf("%04d", g.rand.IntN(10_000)),
		"type": cards.Types[n%len(cards.Types)], "status": cards.Active, "issuedAt": g.past(),
	}
	if n%4 == 3 {
		line["status"] = cards.Statuses[n/4%len(cards.Statuses)]
	}
	if n%3 != 0 {
		line["threshold"], line["periodicity"] = 50*(1+g.rand.IntN(100)), pick(g, cards.Periodicities)
	}
	g.write("card", "uuid", company, line)
}

// statement writes the statement of the nth month before this one.
func (g *demo) statement(company uuid.UUID, currency string, n int) {
	month := time.Date(demoToday.Year(), demoToday.Month()-time.Month(n), 1, 0, 0, 0, 0, time.UTC)
	line := object{
		"month": int(month.Month()), "year": month.Year(), "status": "CLOSED", "currency": currency,
		"totalAmount": g.amount(currency, 90_000_00), "closingDate": calendar.DateOf(month.AddDate(0, 1, -1)),
	}
	if n == 0 {
		line["status"] = "OPEN"
	}
	g.write("statement", "statementUuid", company, line)
}

// reimbursement writes a request with the dates and remarks that its status implies.
func (g *demo) reimbursement(company uuid.UUID, n int, currency string, line object) {
	created := calendar.DateOf(demoToday) - calendar.Date(1+g.rand.Int32N(demoDays))
	approved := created + calendar.Date(g.rand.Int32N(6))
	paid := approved + calendar.Date(g.rand.Int32N(4))
	audit := object{"requestCreationDate": created, "lastUpdateDate": created, "expenseDate": created - calendar.Date(g.rand.Int32N(20))}
	status := object{"status": reimbursements.Statuses[n%len(reimbursements.Statuses)]}
	switch status["status"] {
	case "APPROVED", "SENT_TO_PAY", "PAYMENT_IN_PROGRESS":
		audit["finalApprovalDate"], audit["lastUpdateDate"] = approved, approved
	case "PAID":
		audit["finalApprovalDate"], audit["paymentDate"], audit["lastUpdateDate"] = approved, paid, paid
		line["paymentDetail"] = object{"paymentMethod": "BANK_TRANSFER", "markedAsPaidBy": "finance@example.com"}
	case "REJECTED", "FINANCE_REJECTED":
		status["comment"] = "The receipt is not readable."
	case "CANCELLED":
		delete(audit, "expenseDate")
	}
	receipts := make([]object, g.rand.IntN(3))
	for i := range receipts {
		receipts[i] = object{"uuid": g.uuid(), "fileName": "receipt.pdf"}
	}
	shop := pick(g, demoMerchants)
	line["audit"], line["validationStatus"], line["merchant"], line["attachments"] = audit, status, shop, receipts
	line["description"] = strings.TrimSpace(shop.Category + " at " + shop.Name)
	line["amountValue"] = object{"currency": currency, "amount": g.amount(currency, 2_000_00)}
	g.write("reimbursement", "uuid", company, line)
}

func (g *demo) uuid() uuid.UUID { return uuid.Must(uuid.NewRandomFromReader(g.bytes)) }

// named returns new objects with these names.
func (g *demo) named(names []string) []object {
	out := make([]object, len(names))
	for i, name := range names {
		out[i] = object{"uuid": g.uuid(), "name": name}
	}
	return out
}

func (g *demo) some(from []object) []object {
	first := g.rand.IntN(len(from))
	return from[first:min(len(from), first+g.rand.IntN(3))]
}

func (g *demo) amount(currency string, maxMinor int64) jsontext.Value {
	return jsontext.Value(money.FromMinor(1+g.rand.Int64N(maxMinor), currency).String())
}

func (g *demo) past() time.Time {
	return demoToday.Add(-time.Duration(g.rand.Int64N(demoDays*24*60*60)) * time.Second)
}

func pick[T any](g *demo, from []T) T { return from[g.rand.IntN(len(from))] }
