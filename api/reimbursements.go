package api

import (
	"context"

	"github.com/google/uuid"

	"spendhook/api/gen"
	"spendhook/internal/calendar"
	"spendhook/storage/reimbursements"
)

// ListReimbursements is GET /api/v3/reimbursements.
func (s *server) ListReimbursements(ctx context.Context, q *request, p gen.ListReimbursementsParams) (reply, error) {
	f := reimbursements.Filter{
		Company: q.companies, Page: pageOf(p.Page, p.Size),
		RequestCreationDate: days(p.RequestCreationDateStart, p.RequestCreationDateEnd),
		ExpenseDate:         days(p.ExpenseDateStart, p.ExpenseDateEnd),
		FinalApprovalDate:   days(p.FinalApprovalDateStart, p.FinalApprovalDateEnd),
		PaymentDate:         days(p.PaymentDateStart, p.PaymentDateEnd),
		LastUpdateDate:      days(p.LastUpdateDateStart, p.LastUpdateDateEnd),
		CategoryCodes:       or(p.CategoryCodes, nil), RequesterUUIDs: or(p.RequesterUuids, nil), UUIDs: or(p.Uuids, nil),
		Statuses: valuesOf[string](p.Statuses), RequesterName: textOf(p.RequesterName),
	}
	list, total, err := s.opts.Reimbursements.List(ctx, f)
	return byNumber(f.Page, list, total, s.shownReimbursement), err
}

func days(start, end *string) reimbursements.DateRange {
	return reimbursements.DateRange{Start: day(start), End: day(end)}
}

// day reads a date, which readParameters has checked.
func day(given *string) *calendar.Date {
	if given == nil {
		return nil
	}
	date, _ := calendar.ParseDate(*given)
	return &date
}

func (s *server) shownReimbursement(r reimbursements.Reimbursement) gen.Reimbursement {
	return gen.Reimbursement{
		UUID: r.UUID, Description: r.Description, Audit: gen.ReimbursementAudit(r.Audit),
		Labels: s.references("v2/labels/", r.Labels), Merchant: gen.Merchant(r.Merchant),
		Requester: s.reference("v3/users/", r.Requester), Groups: s.references("v2/groups/", r.Groups),
		Locations:   s.references("v2/locations/", r.Locations),
		AmountValue: gen.AmountValue{Currency: r.AmountValue.Currency, Amount: money(r.AmountValue.Amount)},
		ValidationStatus: gen.ValidationStatus{
			Status: gen.ReimbursementStatus(r.ValidationStatus.Status), Comment: r.ValidationStatus.Comment,
		},
		Attachments: s.attachments(r.Attachments), PaymentDetail: (*gen.PaymentDetail)(r.PaymentDetail),
	}
}

func (s *server) references(resource string, list []reimbursements.Reference) []gen.Reference {
	return convertAll(list, func(ref reimbursements.Reference) gen.Reference { return s.reference(resource, ref) })
}

func (s *server) reference(resource string, ref reimbursements.Reference) gen.Reference {
	return gen.Reference{UUID: ref.UUID, Name: ref.Name, Links: s.linksTo(resource, ref.UUID)}
}

func (s *server) attachments(list []reimbursements.Attachment) []gen.Attachment {
	return convertAll(list, func(a reimbursements.Attachment) gen.Attachment {
		return gen.Attachment{UUID: a.UUID, FileName: a.FileName, Links: s.linksTo("v2/attachments/", a.UUID)}
	})
}

// linksTo returns the link to a resource.
func (s *server) linksTo(resource string, id uuid.UUID) []gen.ResourceLink {
	return []gen.ResourceLink{{Rel: "self", Href: s.opts.PublicURL + "/api/" + resource + id.String()}}
}
