package api

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"spendhook/api/gen"
	"spendhook/internal/invalid"
	"spendhook/storage/spend"
)

// ListReimbursements is GET /api/v3/reimbursements.
func (s *server) ListReimbursements(w http.ResponseWriter, r *http.Request, p gen.ListReimbursementsParams) {
	s.do(w, r, func(ctx context.Context, c *caller) (reply, error) {
		filter, err := reimbursementFilter(c, p)
		if err != nil {
			return reply{}, err
		}
		list, total, err := s.opts.Spend.Reimbursements(ctx, filter)
		if err != nil {
			return reply{}, err
		}
		page := gen.ReimbursementPage{
			Content: make([]gen.Reimbursement, len(list)), TotalElements: total, TotalPages: pages(total, filter.Page),
			Number: filter.Page.Number, Size: filter.Page.Limit(),
		}
		for i, item := range list {
			page.Content[i] = s.shownReimbursement(item)
		}
		return ok(page), nil
	})
}

func reimbursementFilter(c *caller, p gen.ListReimbursementsParams) (f spend.ReimbursementFilter, err error) {
	if f.Page, err = pageAndSize(p.Page, p.Size); err != nil {
		return f, err
	}
	if f.Company, err = c.companyOfList(p.CompanyUUID); err != nil {
		return f, err
	}
	var e invalid.Error
	f.RequestCreationDate = days(&e, "requestCreationDate", p.RequestCreationDateStart, p.RequestCreationDateEnd)
	f.ExpenseDate = days(&e, "expenseDate", p.ExpenseDateStart, p.ExpenseDateEnd)
	f.FinalApprovalDate = days(&e, "finalApprovalDate", p.FinalApprovalDateStart, p.FinalApprovalDateEnd)
	f.PaymentDate = days(&e, "paymentDate", p.PaymentDateStart, p.PaymentDateEnd)
	f.LastUpdateDate = days(&e, "lastUpdateDate", p.LastUpdateDateStart, p.LastUpdateDateEnd)
	f.CategoryCodes = listed(&e, "categoryCodes", p.CategoryCodes, "digits, at most 2147483647", categoryCode)
	f.RequesterUUIDs = listed(&e, "requesterUuids", p.RequesterUuids, "a UUID", uuid.Parse)
	f.Statuses = listed(&e, "statuses", p.Statuses, "a validation status", validationStatus)
	f.UUIDs = listed(&e, "uuids", p.Uuids, "a UUID", uuid.Parse)
	f.RequesterName = notEmpty(&e, "requesterName", p.RequesterName)
	return f, e.OrNil()
}

func days(e *invalid.Error, name string, start, end *string) spend.DateRange {
	return spend.DateRange{Start: day(e, name+"Start", start), End: day(e, name+"End", end)}
}

func day(e *invalid.Error, name string, given *string) *spend.Date {
	if given == nil {
		return nil
	}
	date, err := spend.ParseDate(*given)
	if err != nil {
		e.Add(name, "INVALID", "must be a date, yyyy-MM-dd")
	}
	return &date
}

// listed reads the values of a parameter, comma-separated, repeated or both.
func listed[T any](e *invalid.Error, name string, given *[]string, what string, parse func(string) (T, error)) []T {
	if given == nil {
		return nil
	}
	var values []T
	for text := range strings.SplitSeq(strings.Join(*given, ","), ",") {
		value, err := parse(text)
		if err != nil {
			e.Add(name, "INVALID", "value %d must be %s", len(values)+1, what)
			return nil
		}
		values = append(values, value)
	}
	return values
}

var errValue = errors.New("not a value of the list")

func categoryCode(text string) (int32, error) {
	code, err := strconv.ParseUint(text, 10, 31)
	return int32(code), err
}

func validationStatus(text string) (string, error) {
	status := strings.ToUpper(text)
	if !gen.ReimbursementStatus(status).Valid() {
		return "", errValue
	}
	return status, nil
}

func (s *server) shownReimbursement(r spend.Reimbursement) gen.Reimbursement {
	return gen.Reimbursement{
		UUID: r.UUID, Description: r.Description, Audit: shownAudit(r.Audit),
		Labels: s.references("v2/labels/", r.Labels), Merchant: shownMerchant(r.Merchant),
		Requester: s.reference("v3/users/", r.Requester), Groups: s.references("v2/groups/", r.Groups),
		Locations:   s.references("v2/locations/", r.Locations),
		AmountValue: gen.AmountValue{Currency: r.AmountValue.Currency, Amount: money(r.AmountValue.Amount)},
		ValidationStatus: gen.ValidationStatus{
			Status: gen.ReimbursementStatus(r.ValidationStatus.Status), Comment: r.ValidationStatus.Comment,
		},
		Attachments: s.attachments(r.Attachments), PaymentDetail: shownPayment(r.PaymentDetail),
	}
}

func shownAudit(a spend.Audit) gen.ReimbursementAudit {
	return gen.ReimbursementAudit{
		RequestCreationDate: a.RequestCreationDate, ExpenseDate: a.ExpenseDate, FinalApprovalDate: a.FinalApprovalDate,
		PaymentDate: a.PaymentDate, LastUpdateDate: a.LastUpdateDate,
	}
}

func shownMerchant(m spend.Merchant) gen.Merchant {
	return gen.Merchant{
		Name: m.Name, Description: m.Description, CategoryCode: m.CategoryCode, Category: m.Category, CountryCode: m.CountryCode,
	}
}

func shownPayment(p *spend.PaymentDetail) *gen.PaymentDetail {
	if p == nil {
		return nil
	}
	return &gen.PaymentDetail{
		PaymentMethod: p.PaymentMethod, PaymentMethodNote: p.PaymentMethodNote, MarkedAsPaidBy: p.MarkedAsPaidBy,
	}
}

func (s *server) references(resource string, list []spend.Reference) []gen.Reference {
	shown := make([]gen.Reference, len(list))
	for i, ref := range list {
		shown[i] = s.reference(resource, ref)
	}
	return shown
}

func (s *server) reference(resource string, ref spend.Reference) gen.Reference {
	return gen.Reference{UUID: ref.UUID, Name: ref.Name, Links: s.linksTo(resource, ref.UUID)}
}

func (s *server) attachments(list []spend.Attachment) []gen.Attachment {
	shown := make([]gen.Attachment, len(list))
	for i, a := range list {
		shown[i] = gen.Attachment{UUID: a.UUID, FileName: a.FileName, Links: s.linksTo("v2/attachments/", a.UUID)}
	}
	return shown
}

// linksTo is where clients find the resource itself.
func (s *server) linksTo(resource string, id uuid.UUID) []gen.ResourceLink {
	return []gen.ResourceLink{{Rel: "self", Href: s.opts.PublicURL + "/api/" + resource + id.String()}}
}
