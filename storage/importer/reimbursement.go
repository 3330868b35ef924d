package importer

import (
	"errors"

	"github.com/go-json-experiment/json"
	"github.com/google/uuid"

	"spendhook/internal/invalid"
	"spendhook/internal/money"
	"spendhook/storage"
	"spendhook/storage/reimbursements"
)

type reimbursementEntry struct {
	kinded
	reimbursements.Reimbursement

	detail []byte
}

func (r *reimbursementEntry) id() uuid.UUID      { return r.UUID }
func (r *reimbursementEntry) company() uuid.UUID { return r.CompanyUUID }

func (r *reimbursementEntry) check(e *invalid.Error) {
	if r.Audit.RequestCreationDate == nil {
		e.Add("audit.requestCreationDate", "REQUIRED", "is required")
	}
	if r.Audit.LastUpdateDate == nil {
		e.Add("audit.lastUpdateDate", "REQUIRED", "is required")
	}
	checkExactly(e, "validationStatus.status", r.ValidationStatus.Status, reimbursements.Statuses...)
	checkMoney(e, "amountValue.currency", r.AmountValue.Currency, "amountValue.amount", &r.AmountValue.Amount)
	if r.AmountValue.Amount.IsNegative() {
		e.Add("amountValue.amount", "INVALID", "must be 0 or more")
	}
	if c := r.Merchant.CategoryCode; c != nil && *c < 0 {
		e.Add("merchant.categoryCode", "INVALID", "must be 0 or more")
	}
	if r.Requester.UUID == uuid.Nil {
		e.Add("requester.uuid", "REQUIRED", "is required")
	}
	e.Text("requester.name", r.Requester.Name)
	checkReferences(e, "labels", r.Labels)
	checkReferences(e, "groups", r.Groups)
	checkReferences(e, "locations", r.Locations)
	for _, a := range r.Attachments {
		checkReferences(e, "attachments", []reimbursements.Reference{{UUID: a.UUID, Name: a.FileName}})
	}
	r.encodeDetail(e)
}

func checkReferences(e *invalid.Error, field string, refs []reimbursements.Reference) {
	for _, r := range refs {
		if r.UUID == uuid.Nil || !invalid.IsName(r.Name) {
			e.Add(field, "INVALID", "each entry needs a uuid and a name of at most %d characters", invalid.MaxText)
			return
		}
	}
}

// maxDetail bounds the detail of a reimbursement, so that a page of 100 has about 4 MiB,
// links included.
const maxDetail = 12 << 10

// encodeDetail encodes the detail before the transaction, to shorten the transaction.
func (r *reimbursementEntry) encodeDetail(e *invalid.Error) {
	var err error
	if r.detail, err = json.Marshal(r.Detail); err != nil {
		e.Add("", "INVALID", "%s", err.Error())
	}
	if len(r.detail) > maxDetail {
		e.Add("", "TOO_LONG", "the texts and lists of a reimbursement must have at most %d bytes", maxDetail)
	}
}

func (r *reimbursementEntry) values(k *known) ([]any, error) {
	if err := r.findOrAddRequester(k); err != nil {
		return nil, err
	}
	amount, err := money.ToMinor(r.AmountValue.Amount, r.AmountValue.Currency)
	return []any{
		r.UUID[:], r.CompanyUUID[:], -int64(*r.Audit.LastUpdateDate), r.ValidationStatus.Status,
		optional(r.Merchant.CategoryCode), r.Requester.UUID[:], int64(*r.Audit.RequestCreationDate),
		optional(r.Audit.ExpenseDate), optional(r.Audit.FinalApprovalDate), optional(r.Audit.PaymentDate),
		amount, r.AmountValue.Currency, string(r.detail),
	}, err
}

// findOrAddRequester finds the requester among the users of the company, or adds an inactive user with
// the name of the requester.
func (r *reimbursementEntry) findOrAddRequester(k *known) error {
	company, ok := k.users[storage.Key(r.Requester.UUID)]
	switch {
	case ok && company != storage.Key(r.CompanyUUID):
		return errors.New("requester.uuid: is a user of another company")
	case ok:
		return nil
	case !invalid.IsName(r.Requester.Name):
		return errors.New("requester.name: is required, since no user has this uuid")
	}
	u := userEntry{owned: owned{UUID: r.Requester.UUID, CompanyUUID: r.CompanyUUID}, Name: r.Requester.Name, Active: new(false)}
	values, err := u.values(k)
	k.users[storage.Key(u.UUID)] = storage.Key(u.CompanyUUID)
	k.added = append(k.added, row{values: values})
	return err
}

func optional[T ~int32](v *T) any {
	if v == nil {
		return nil
	}
	return int64(*v)
}
