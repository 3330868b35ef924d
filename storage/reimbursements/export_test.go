package reimbursements

import "github.com/uptrace/bun"

// Counted is what counts the reimbursements that pass the filter.
func (f *Filter) Counted(db bun.IDB) *bun.SelectQuery {
	return f.apply(db.NewSelect().Table("reimbursements"), "").ColumnExpr("?, count(*)", bun.Safe(f.dayColumn())).
		GroupExpr("?", bun.Safe(f.dayColumn()))
}
