package cards_test

import (
	"testing"

	"github.com/google/uuid"
	"github.com/uptrace/bun"

	"spendhook/storage"
	"spendhook/storage/cards"
	"spendhook/storage/importer"
	"spendhook/storage/storagetest"
)

// Every filter of 4.1 has an index that serves it: neither database reads the
// whole table for any of them.
func TestEveryFilterHasAnIndex(t *testing.T) {
	t.Parallel()
	storagetest.OnBoth(t, func(t *testing.T, db *storage.DB) {
		t.Helper()
		some, company := uuid.New(), uuid.New()
		storagetest.LoadDemo(t, db, importer.DemoData{First: company, Companies: 3, Users: 200, Cards: 1000, Reimbursements: 1})
		for index, f := range map[string]cards.Filter{
			"cards_issued":      {},
			"cards_holder":      {UserUUID: &some},
			"users_username":    {Username: "zoe"},
			"users_erp_id":      {UserERPID: "ERP-1"},
			"cards_status":      {Status: "EXPIRED"},
			"cards_type":        {Type: "VISA_VIRTUAL"},
			"cards_periodicity": {Periodicity: "DAILY"},
		} {
			f.Company = &company
			storagetest.WantIndex(t, db, index, func(db bun.IDB) *bun.SelectQuery {
				q := cards.Narrow(f, db.NewSelect().Table("cards"))
				if index == "cards_issued" { // any of them can count all, only this one has their order
					return q.Column("uuid").OrderExpr("issued_at DESC, uuid").Limit(20)
				}
				return q.ColumnExpr("count(*)")
			})
		}
	})
}
