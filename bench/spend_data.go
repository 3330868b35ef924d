package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"
)

const (
	spendCompanies = 50
	spendUsers     = 200 // of each company
	cardShare      = 10  // reimbursements for each card
)

// spendData describes a file of invented data for an import.
type spendData struct {
	file                 string
	rows                 int64
	reimbursements       int // of each company
	companies            []spendCompany
	cards                []ask // reads of each card
	reimbursementSamples []string
}

type spendCompany struct {
	uuid  string
	users []string // active ones
}

// writeSpendData writes the output of `spendhook demo-data`, with so many reimbursements in all
// companies together, and reads what the requests need.
func writeSpendData(ctx context.Context, program, dir string, reimbursements int) (*spendData, error) {
	d := &spendData{file: filepath.Join(dir, "spend.ndjson"), reimbursements: max(1, reimbursements/spendCompanies)}
	out, err := os.Create(d.file)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	cmd := exec.Command(program, //nolint:gosec,noctx // our own arguments; it is ended by its pid
		"demo-data", "--companies", strconv.Itoa(spendCompanies),
		"--users", strconv.Itoa(spendUsers), "--cards", strconv.Itoa(max(1, d.reimbursements/cardShare)),
		"--reimbursements", strconv.Itoa(d.reimbursements))
	cmd.Stdout = out
	if err := runProgram(ctx, cmd, spendTime); err != nil {
		return nil, err
	}
	return d, d.read()
}

func (d *spendData) read() error {
	in, err := os.Open(d.file)
	if err != nil {
		return err
	}
	defer in.Close()
	lines := bufio.NewReaderSize(in, 1<<20)
	for {
		line, err := lines.ReadSlice('\n')
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		d.rows++
		if err := d.take(line); err != nil {
			return err
		}
	}
}

// sampleEvery: of so many reimbursements, requests name the UUID of one.
const sampleEvery = 100

func (d *spendData) take(line []byte) error {
	if bytes.HasPrefix(line, []byte(`{"kind":"reimbursement"`)) && d.rows%sampleEvery > 0 {
		return nil
	}
	var object struct {
		Kind, UUID, CompanyUUID string
		Active                  bool
	}
	if err := json.Unmarshal(line, &object); err != nil {
		return err
	}
	switch object.Kind {
	case "company":
		d.companies = append(d.companies, spendCompany{uuid: object.UUID})
	case "user":
		if last := len(d.companies) - 1; object.Active {
			d.companies[last].users = append(d.companies[last].users, object.UUID)
		}
	case "card":
		d.cards = append(d.cards, ask{Path: "/api/v3/cards/" + object.UUID + "?companyUuid=" + object.CompanyUUID})
	case "reimbursement":
		d.reimbursementSamples = append(d.reimbursementSamples, object.UUID)
	}
	return nil
}

// asksOf is how many different requests are prepared: more than a run sends.
const asksOf = 20_000

// cardReads returns requests for cards, chosen at random.
func (d *spendData) cardReads(r *rand.Rand) []ask {
	list := make([]ask, asksOf)
	for i := range list {
		list[i] = d.cards[r.IntN(len(d.cards))]
	}
	return list
}

// cardCreates returns requests that create cards of users, chosen at random.
func (d *spendData) cardCreates(r *rand.Rand) []ask {
	list := make([]ask, asksOf)
	for i := range list {
		c := d.companies[r.IntN(len(d.companies))]
		list[i] = ask{Path: "/api/v3/cards", Body: fmt.Sprintf(
			`{"companyUuid":%q,"userUuid":%q,"type":"VIRTUAL","alias":"bench %d","threshold":%d,"periodicity":"MONTHLY"}`,
			c.uuid, c.users[r.IntN(len(c.users))], i, 1+r.IntN(500))}
	}
	return list
}

const (
	pagesOfAll    = 0 // the kind of pages of all companies
	kindsOfFilter = 11
)

// pages returns requests for reimbursements by every filter, alone and together, with random
// values: half for the first page, half for a later one. One in twelve is for all companies.
func (d *spendData) pages(r *rand.Rand) []ask {
	return d.pagesOf(r, pagesOfAll, kindsOfFilter)
}

// pagesOf returns requests for pages of the kinds from first to last.
func (d *spendData) pagesOf(r *rand.Rand, first, last int) []ask {
	list, kinds := make([]ask, asksOf), last-first+1
	for i := range list {
		q := url.Values{}
		company := d.companies[r.IntN(len(d.companies))]
		few := true
		if kind := first + i%kinds; kind != pagesOfAll {
			q.Set("companyUuid", company.uuid)
			few = d.filter(r, q, kind, company)
		}
		if i/kinds%2 == 1 {
			q.Set("page", strconv.Itoa(r.IntN(d.deepest(q, few))))
		}
		list[i] = ask{Path: "/api/v3/reimbursements?" + q.Encode()}
	}
	return list
}

// deepest returns how many pages of 20 items a list may have, for a request of a later page.
func (d *spendData) deepest(q url.Values, few bool) int {
	pages := d.reimbursements / 20
	switch {
	case !q.Has("companyUuid"):
		pages *= spendCompanies
	case few:
		pages /= 20
	}
	return max(1, pages)
}

var (
	askedStatuses   = []string{"PENDING", "APPROVED", "SENT_TO_PAY", "PAID", "REJECTED", "CANCELLED"}
	askedCategories = []string{"4511", "5812", "7011", "5411", "4121"}
	askedNames      = []string{"tanaka", "lefevre", "ZOË", "mar", "al"}
)

// filter adds the filter of one kind, 1 to 11, and reports whether few items match it.
func (d *spendData) filter(r *rand.Rand, q url.Values, kind int, c spendCompany) (few bool) {
	pick := func(list []string) string { return list[r.IntN(len(list))] }
	switch kind {
	case 1: // only the company
		return false
	case 2:
		dates(r, q, "requestCreationDate")
	case 3:
		dates(r, q, "expenseDate")
	case 4:
		dates(r, q, "finalApprovalDate")
	case 5:
		dates(r, q, "paymentDate")
	case 6:
		dates(r, q, "lastUpdateDate")
	case 7:
		q.Set("categoryCodes", pick(askedCategories)+","+pick(askedCategories))
	case 8:
		q.Set("requesterUuids", pick(c.users)+","+pick(c.users))
	case 9:
		q.Set("statuses", pick(askedStatuses))
	case 10:
		q.Set("uuids", pick(d.reimbursementSamples)+","+pick(d.reimbursementSamples))
	default:
		dates(r, q, "expenseDate")
		q.Set("requesterName", pick(askedNames))
		q.Set("statuses", pick(askedStatuses)+","+pick(askedStatuses))
	}
	return true
}

// dates filters by a range of up to half a year. The demo data covers two years.
func dates(r *rand.Rand, q url.Values, name string) {
	start := time.Date(2024, time.July, 1, 0, 0, 0, 0, time.UTC).AddDate(0, 0, r.IntN(600))
	q.Set(name+"Start", start.Format(time.DateOnly))
	q.Set(name+"End", start.AddDate(0, 0, r.IntN(180)).Format(time.DateOnly))
}
