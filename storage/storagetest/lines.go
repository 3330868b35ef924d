package storagetest

import (
	"fmt"
	"strings"
)

// FullReimbursement is a line of one of Acme that has every field.
var FullReimbursement = strings.ReplaceAll(`{"kind":"reimbursement","uuid":"11111111-1111-4111-8111-111111111111",
 "companyUuid":"a0000000-0000-4000-8000-000000000000","description":"Lunch with \"Δ\"",
 "audit":{"requestCreationDate":"2026-05-01","expenseDate":"2026-04-30","finalApprovalDate":"2026-05-03","paymentDate":"2026-05-04","lastUpdateDate":"2026-05-05"},
 "labels":[{"uuid":"22222222-2222-4222-8222-222222222222","name":"travel","links":[{"rel":"self","href":"x"}]}],
 "merchant":{"name":"Café","description":"d","categoryCode":5812,"category":"Restaurants","countryCode":"PT"},
 "requester":{"uuid":"a0000000-0000-4000-8000-000000000001","name":"another spelling"},
 "groups":[{"uuid":"33333333-3333-4333-8333-333333333333","name":"Field"}],
 "locations":[{"uuid":"44444444-4444-4444-8444-444444444444","name":"Lisbon"}],
 "amountValue":{"currency":"BHD","amount":12.345},
 "validationStatus":{"status":"PAID","comment":"ok"},
 "attachments":[{"uuid":"55555555-5555-4555-8555-555555555555","fileName":"a.pdf"}],
 "paymentDetail":{"paymentMethod":"CASH","paymentMethodNote":"n","markedAsPaidBy":"ann@example.com"}}`, "\n", "")

// StatementLine is a line of a billing statement of Acme, of a month of 2026; its
// uuid ends with the digit.
func StatementLine(digit string, month int, status string) string {
	return fmt.Sprintf(`{"kind":"statement","statementUuid":"d0000000-0000-4000-8000-00000000000%s","companyUuid":"%s",`+
		`"month":%d,"year":2026,"status":"%s","totalAmount":1234.5,"currency":"EUR","closingDate":"2026-%02d-28"}`,
		digit, Acme, month, status, month)
}
