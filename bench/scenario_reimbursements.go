package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
)

const (
	pageRate      = 200 // requests/s of one company's pages
	pageOfAllRate = 5   // requests/s of pages of all companies
)

// reimbursements requests pages of one company's reimbursements by every filter, and then pages of
// all companies, with a PostgreSQL.
func reimbursements(ctx context.Context, b *bench) error {
	dir, err := os.MkdirTemp(b.Dir, "bench-reimbursements-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	data, err := writeSpendData(ctx, b.Spendhook, dir, b.Spend)
	if err != nil {
		return err
	}
	b.note("reimbursements: %d rows in %d companies", data.rows, len(data.companies))
	var pages, all []askResult
	for range b.Rounds {
		var ofAll askResult
		r, err := b.spendRound(ctx, dir, data, launchPostgres, func(ctx context.Context, d *daemon, r *spendResult) (err error) {
			r.pages, ofAll, err = b.askPages(ctx, d, data)
			return err
		})
		if err != nil {
			return err
		}
		b.note("reimbursements: a company's pages p50 %.1f ms, p99 %.1f ms, %d refused; of all companies p50 %.1f ms, p99 %.1f ms, %d refused",
			ms(r.pages.P50), ms(r.pages.P99), r.pages.Refused, ms(ofAll.P50), ms(ofAll.P99), ofAll.Refused)
		pages, all = append(pages, r.pages), append(all, ofAll)
	}
	p50, p99 := func(r askResult) float64 { return ms(r.P50) }, func(r askResult) float64 { return ms(r.P99) }
	refused := func(r askResult) float64 { return float64(r.Refused) }
	addOf(b, "reimbursements", "a company's page, p50", "ms", less, pages, p50).goal(5)
	addOf(b, "reimbursements", "a company's page, p99", "ms", less, pages, p99).goal(50)
	addRefusals(b, "reimbursements", "a company's pages refused with 503", pages, refused)
	addOf(b, "reimbursements", "a page of all companies, p50", "ms", less, all, p50)
	addOf(b, "reimbursements", "a page of all companies, p99", "ms", less, all, p99)
	addOf(b, "reimbursements", "pages of all companies refused with 503", "", less, all, refused)
	return nil
}

// askPages requests pages of one company, first unmeasured, and then pages of all companies.
func (b *bench) askPages(ctx context.Context, d *daemon, data *spendData) (pages, ofAll askResult, err error) {
	chance := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // nothing secret
	spec := askSpec{Base: d.base, Token: d.token, Clients: bareClients, Rate: pageRate, For: b.PacedFor / warmShare}
	spec.Asks = data.pagesOf(chance, pagesOfAll+1, kindsOfFilter)
	if _, err = spec.inProcess(ctx); err != nil {
		return pages, ofAll, fmt.Errorf("warm up: %w", err)
	}
	spec.Asks, spec.For = data.pagesOf(chance, pagesOfAll+1, kindsOfFilter), b.PacedFor
	if pages, err = spec.inProcess(ctx); err != nil {
		return pages, ofAll, fmt.Errorf("pages of a company: %w", err)
	}
	spec.Asks, spec.Rate = data.pagesOf(chance, pagesOfAll, pagesOfAll), pageOfAllRate
	if ofAll, err = spec.inProcess(ctx); err != nil {
		err = fmt.Errorf("pages of all companies: %w", err)
	}
	return pages, ofAll, err
}
