package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"spendhook/storage/importer"
	"spendhook/storage/locations"
)

type demoDataCmd struct {
	Seed           uint64 `default:"1" help:"Random seed. The same seed and counts give the same data."`
	Companies      int    `default:"3" help:"Number of companies."`
	Users          int    `default:"25" help:"Users per company."`
	Locations      int    `default:"8" help:"Locations per company."`
	Cards          int    `default:"60" help:"Cards per company."`
	Reimbursements int    `default:"500" help:"Reimbursements per company."`
	Statements     int    `default:"18" help:"Billing statements per company, one per month; at most 240."`
}

// Run writes invented spend data that import reads.
func (c *demoDataCmd) Run(term *stdio) error {
	if err := c.check(); err != nil {
		return err
	}
	return importer.WriteDemoData(term.Out, importer.DemoData{
		Seed: c.Seed, Companies: c.Companies, Users: c.Users, Locations: c.Locations,
		Cards: c.Cards, Reimbursements: c.Reimbursements, Statements: c.Statements,
	})
}

func (c *demoDataCmd) check() error {
	for _, flag := range []struct {
		name  string
		value int
	}{
		{"companies", c.Companies},
		{"users", c.Users},
		{"locations", c.Locations},
		{"cards", c.Cards},
		{"reimbursements", c.Reimbursements},
		{"statements", c.Statements},
	} {
		if flag.value < 1 {
			return usageError(fmt.Sprintf("--%s must be at least 1", flag.name))
		}
	}
	if c.Statements > 240 {
		return usageError("--statements must be at most 240, 20 years")
	}
	return nil
}

// loadDemoData imports spend data for the developer's company, unless the company has some:
// later changes stay. The data fits into one transaction of an import.
func (d *daemon) loadDemoData(ctx context.Context) error {
	_, total, err := locations.New(d.storage).List(ctx, locations.Filter{Company: &developerCompany})
	if err != nil || total > 0 {
		return err
	}
	var data bytes.Buffer
	if err := importer.WriteDemoData(&data, importer.DemoData{Seed: 1, First: developerCompany, Companies: 1}); err != nil {
		return err
	}
	report, err := (&importer.Importer{DB: d.storage}).Run(ctx, &data)
	if err == nil && report.Refused > 0 {
		err = errors.New("the data was refused")
	}
	return err
}
