package api

import (
	"context"
	"net/http"

	"github.com/google/uuid"

	"spendhook/api/gen"
	"spendhook/internal/calendar"
	"spendhook/storage/reimbursements"
)

// ListReimbursements is GET /api/v3/reimbursements.
func (s *server) ListReimbursements(w http.ResponseWriter, r *http.Request, p gen.ListReimbursementsParams) {
	s.do(w, r, func(ctx context.Context, c *caller) (reply, error) {
		filter, err := reimbursementFilter(c, p)
		if err != nil {
			return reply{}, err
		}
		list, total, err := s.opts.Reimbursements.List(ctx, filter)
		return byNumber(r, filter.Page, list, total, s.shownReimbursement), err
	})
}

func reimbursementFilter(c *caller, p gen.ListReimbursementsParams) (f reimbursements.Filter, err error) {
	f.Page = pageOf(p.Page, p.Size)
	f.RequestCreationDate = days(p.RequestCreationDateStart, p.RequestCreationDateEnd)
	f.ExpenseDate = days(p.ExpenseDateStart, p.ExpenseDateEnd)
	f.FinalApprovalDate = days(p.FinalApprovalDateStart, p.FinalApprovalDateEnd)
	f.PaymentDate = days(p.PaymentDateStart, p.PaymentDateEnd)
	f.LastUpdateDate = days(p.LastUpdateDateStart, p.LastUpdateDateEnd)
	f.CategoryCodes, f.RequesterUUIDs, f.UUIDs = or(p.CategoryCodes, nil), or(p.RequesterUuids, nil), or(p.Uuids, nil)
	f.Statuses, f.RequesterName = valuesOf[string](p.Statuses), textOf(p.RequesterName)
	f.Company, err = c.companyOfList(p.CompanyUUID)
	return f, err
}

func days(start, end *string) reimbursements.DateRange {
	return reimbursements.DateRange{Start: day(start), End: day(end)}
}

// day reads a date that was found to be one.
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

// linksTo is where clients find the resource itself.
func (s *server) linksTo(resource string, id uuid.UUID) []gen.ResourceLink {
	return []gen.ResourceLink{{Rel: "self", Href: s.opts.PublicURL + "/api/" + resource + id.String()}}
}
