package remote

import (
	"context"

	"github.com/google/uuid"

	"spendhook/api/client"
)

type reimbursementCmd struct {
	group

	List reimbursementListCmd `cmd:"" default:"withargs" help:"List reimbursements, the latest updated first." example:"spendhook reimbursement list --status PENDING --expense-date-start 2026-11-01"`
}

type reimbursementListCmd struct {
	listFlags
	RequestCreationDateStart string      `help:"Requested on this day or later."`
	RequestCreationDateEnd   string      `help:"Requested on this day or earlier."`
	ExpenseDateStart         string      `help:"Spent on this day or later."`
	ExpenseDateEnd           string      `help:"Spent on this day or earlier."`
	FinalApprovalDateStart   string      `help:"Approved on this day or later."`
	FinalApprovalDateEnd     string      `help:"Approved on this day or earlier."`
	PaymentDateStart         string      `help:"Paid on this day or later."`
	PaymentDateEnd           string      `help:"Paid on this day or earlier."`
	LastUpdateDateStart      string      `help:"Last updated on this day or later."`
	LastUpdateDateEnd        string      `help:"Last updated on this day or earlier."`
	CategoryCodes            []int32     `name:"category-code" help:"Merchant category code; may repeat."`
	RequesterUuids           []uuid.UUID `name:"requester-uuid" help:"User who made the request; may repeat."`
	RequesterName            string      `help:"Only requesters whose name contains this text."`
	Statuses                 []string    `name:"status" help:"PENDING, APPROVED, SENT_TO_PAY, PAYMENT_IN_PROGRESS, PAID, REJECTED, FINANCE_REJECTED or CANCELLED; may repeat."`
	Uuids                    []uuid.UUID `name:"uuid" help:"Only the reimbursement with this id; may repeat."`
}

// Run lists the reimbursements.
func (c *reimbursementListCmd) Run(ctx context.Context, s *session) error {
	t := table{
		{"UUID", "uuid"},
		{"STATUS", "validationStatus.status"},
		{"AMOUNT", "amountValue.amount"},
		{"CURRENCY", "amountValue.currency"},
		{"REQUESTER", "requester.name"},
		{"EXPENSE DATE", "audit.expenseDate"},
		{"DESCRIPTION", "description"},
	}
	return s.list(ctx, c.listFlags, t, pages(s, s.ListReimbursements, *c))
}

type locationCmd struct {
	group

	List locationListCmd `cmd:"" help:"List locations." example:"spendhook location list --status ACTIVE"`
	Get  locationGetCmd  `cmd:"" help:"Show a location." example:"spendhook location get 2f0c6b1e-7d0a-4c55-8b1f-93a1f1c7d201"`
}

type locationListCmd struct {
	listFlags
	Status string `help:"ACTIVE or INACTIVE."`
}

// Run lists the locations.
func (c *locationListCmd) Run(ctx context.Context, s *session) error {
	t := table{{"UUID", "uuid"}, {"CODE", "code"}, {"STATUS", "status"}, {"NAME", "name"}}
	return s.list(ctx, c.listFlags, t, pages(s, s.ListLocations, *c))
}

type locationGetCmd struct {
	UUID uuid.UUID `arg:"" name:"uuid" help:"UUID of the location."`
}

// Run shows the location.
func (c *locationGetCmd) Run(ctx context.Context, s *session) error {
	return s.show(s.GetLocation(ctx, c.UUID, fields[client.GetLocationParams](s)))
}

type statementCmd struct {
	group

	Get statementGetCmd `cmd:"" default:"withargs" help:"Show the current statement, or the statement of a month." example:"spendhook statement get --month 10 --year 2026"`
}

type statementGetCmd struct {
	Month int `and:"when" help:"The month, 1 to 12."`
	Year  int `and:"when" help:"The year."`
}

// Run shows the statement.
func (c *statementGetCmd) Run(ctx context.Context, s *session) error {
	if c.Month == 0 {
		return s.show(s.GetCurrentStatement(ctx, fields[client.GetCurrentStatementParams](s)))
	}
	return s.show(s.GetStatement(ctx, c.Month, c.Year, fields[client.GetStatementParams](s)))
}
