package remote

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"

	"github.com/google/uuid"

	"spendhook/api/client"
	"spendhook/internal/terminal"
)

type quarantineCmd struct {
	group

	List  quarantineListCmd  `cmd:"" help:"List events, deliveries and subscribers that could not be read." example:"spendhook quarantine list --all"`
	Retry quarantineRetryCmd `cmd:"" help:"Release an entry: try to deliver it again." example:"spendhook quarantine retry pay-4711 --company-uuid 6f1c2a7e-3b0d-4a53-9c1c-0f5b8f0d2a11"`
	Drop  quarantineDropCmd  `cmd:"" help:"Drop an entry for good." example:"spendhook quarantine drop pay-4711 --company-uuid 6f1c2a7e-3b0d-4a53-9c1c-0f5b8f0d2a11 --yes"`
}

type quarantineListCmd struct{ listFlags }

// Run lists the entries of the quarantine.
func (c *quarantineListCmd) Run(ctx context.Context, s *session) error {
	t := table{{"ID", "id"}, {"COMPANY", "companyUuid"}, {"QUARANTINED", "quarantinedAt"}}
	return s.list(ctx, c.listFlags, t, pages(s, s.ListQuarantine))
}

// oneQuarantined is the argument of a command about one entry of the quarantine.
type oneQuarantined struct {
	ID string `arg:"" name:"id" help:"Id of the entry: of an event or a delivery, or a dot and the UUID of a subscriber."`
}

type quarantineRetryCmd struct {
	confirmation
	oneQuarantined
}

// Run releases the entry.
func (c *quarantineRetryCmd) Run(ctx context.Context, s *session) error {
	if err := s.confirm(c.confirmation, ""); err != nil {
		return err
	}
	return s.show(s.RetryQuarantined(ctx, c.ID, fields[client.RetryQuarantinedParams](s)))
}

type quarantineDropCmd struct {
	confirmation
	oneQuarantined
}

// Run drops the entry.
func (c *quarantineDropCmd) Run(ctx context.Context, s *session) error {
	if err := s.confirm(c.confirmation, "Drop %s? A dropped event or delivery is never sent; a dropped subscriber (an id that begins with a dot) is deleted.", c.ID); err != nil {
		return err
	}
	resp, err := s.DropQuarantined(ctx, c.ID, fields[client.DropQuarantinedParams](s))
	return s.tell(resp, err, "dropped")
}

type auditCmd struct {
	group

	List   auditListCmd   `cmd:"" help:"List audit entries, the newest first." example:"spendhook audit list --action card --since 2h"`
	Export auditExportCmd `cmd:"" help:"Export the audit log as NDJSON, the newest entry first." example:"spendhook audit export --since 2026-11-01T00:00:00Z > audit.ndjson"`
}

// auditFilter has the filters of list and export.
type auditFilter struct {
	From   *moment `name:"since" aliases:"from" help:"Start of the time range: a time, or how long ago (2h, 3d)."`
	To     *moment `name:"until" aliases:"to" help:"End of the time range (default: now)."`
	Actor  string  `help:"Only actions of this subject or client."`
	Action string  `help:"Only this action (card.lock), or all actions of a kind (card)."`
	Target string  `help:"Only actions on the resource with this id."`
}

type auditListCmd struct {
	listFlags
	auditFilter
}

// Run lists the audit entries.
func (c *auditListCmd) Run(ctx context.Context, s *session) error {
	t := table{{"ID", "id"}, {"TIME", "timestamp"}, {"ACTOR", "actor.subject"}, {"ACTION", "action"}, {"TARGET", "target.ids"}, {"FIELDS", "fields"}, {"OUTCOME", "outcome"}}
	return s.list(ctx, c.listFlags, t, pages(s, s.ListAudit, c.auditFilter))
}

type auditExportCmd struct{ auditFilter }

// Run writes the entries as it receives them. It returns an error if the connection breaks before
// the end.
func (c *auditExportCmd) Run(ctx context.Context, s *session) error {
	o := s.options
	o.Timeout = -1 // an export may take longer than any time-out
	api, err := client.New(s.connection.URL, o)
	if err != nil {
		return err
	}
	resp, err := api.ListAudit(ctx, fields[client.ListAuditParams](s, c.auditFilter), accept("application/x-ndjson"))
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	for lines := bufio.NewReader(resp.Body); ; {
		line, err := lines.ReadString('\n')
		if _, err := io.WriteString(s.term.Out, terminal.Escape(line, "\n")); err != nil {
			return err
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("the export is incomplete: %w", err)
		}
	}
}

type certificateCmd struct {
	group

	Get    certificateGetCmd    `cmd:"" help:"Show the certificate, without its key." example:"spendhook certificate get"`
	Set    certificateSetCmd    `cmd:"" help:"Set the certificate and its key." example:"spendhook certificate set client.pem client.key"`
	Delete certificateDeleteCmd `cmd:"" help:"Remove the certificate." example:"spendhook certificate delete --yes"`
}

// certificateOwner selects whose certificate it is.
type certificateOwner struct {
	Subscriber *uuid.UUID `local:"" predictor:"subscriber" help:"UUID of a subscriber with a certificate of its own (default: the certificate of the company)."`
}

type certificateGetCmd struct{ certificateOwner }

// Run shows the certificate.
func (c *certificateGetCmd) Run(ctx context.Context, s *session) error {
	if c.Subscriber != nil {
		return s.show(s.GetSubscriberCertificate(ctx, *c.Subscriber, fields[client.GetSubscriberCertificateParams](s)))
	}
	return s.show(s.GetEgressCertificate(ctx, fields[client.GetEgressCertificateParams](s)))
}

type certificateSetCmd struct {
	certificateOwner
	CertificateChain string `arg:"" type:"existingfile" help:"File with the certificate and its intermediates (PEM)."`
	PrivateKey       string `arg:"" type:"existingfile" help:"File with its key (PEM)."`
}

// Run sets the certificate and its key.
func (c *certificateSetCmd) Run(ctx context.Context, s *session) error {
	chain, err := os.ReadFile(c.CertificateChain)
	if err != nil {
		return err
	}
	key, err := os.ReadFile(c.PrivateKey)
	if err != nil {
		return err
	}
	in := client.EgressCertificateInput{CertificateChain: string(chain), PrivateKey: string(key)}
	if c.Subscriber != nil {
		return s.show(s.SetSubscriberCertificate(ctx, *c.Subscriber, fields[client.SetSubscriberCertificateParams](s), in))
	}
	return s.show(s.SetEgressCertificate(ctx, fields[client.SetEgressCertificateParams](s), in))
}

type certificateDeleteCmd struct {
	confirmation
	certificateOwner
}

// Run removes the certificate.
func (c *certificateDeleteCmd) Run(ctx context.Context, s *session) error {
	if err := s.confirm(c.confirmation, "Remove the certificate that is presented to receivers?"); err != nil {
		return err
	}
	if c.Subscriber != nil {
		resp, err := s.DeleteSubscriberCertificate(ctx, *c.Subscriber, fields[client.DeleteSubscriberCertificateParams](s))
		return s.tell(resp, err, "deleted")
	}
	resp, err := s.DeleteEgressCertificate(ctx, fields[client.DeleteEgressCertificateParams](s))
	return s.tell(resp, err, "deleted")
}

type webhookKeyCmd struct {
	group

	List   webhookKeyListCmd   `cmd:"" help:"List the keys." example:"spendhook webhook-key list"`
	Rotate webhookKeyRotateCmd `cmd:"" help:"Have the next keys sign. The former ones stay published for a while." example:"spendhook webhook-key rotate --yes"`
	Revoke webhookKeyRevokeCmd `cmd:"" help:"Remove a key that leaked. If it signed, the next one signs." example:"spendhook webhook-key revoke kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k --yes"`
}

type webhookKeyListCmd struct{}

// Run lists the keys.
func (c *webhookKeyListCmd) Run(ctx context.Context, s *session) error {
	return s.show(s.ListWebhookKeys(ctx, fields[client.ListWebhookKeysParams](s)))
}

type webhookKeyRotateCmd struct{ confirmation }

// Run rotates the keys of all algorithms.
func (c *webhookKeyRotateCmd) Run(ctx context.Context, s *session) error {
	if err := s.confirm(c.confirmation, "Have the company's next keys sign its messages?"); err != nil {
		return err
	}
	return s.show(s.RotateWebhookKeys(ctx, fields[client.RotateWebhookKeysParams](s)))
}

type webhookKeyRevokeCmd struct {
	confirmation
	Kid string `arg:"" help:"The kid of the key."`
}

// Run removes the key.
func (c *webhookKeyRevokeCmd) Run(ctx context.Context, s *session) error {
	if err := s.confirm(c.confirmation, "Remove key %s? Receivers refuse what it signs.", c.Kid); err != nil {
		return err
	}
	resp, err := s.RevokeWebhookKey(ctx, c.Kid, fields[client.RevokeWebhookKeyParams](s))
	return s.tell(resp, err, "revoked")
}

type egressAddressCmd struct {
	group

	List egressAddressListCmd `cmd:"" default:"withargs" help:"List the addresses that are valid now or later." example:"spendhook egress-address list -o name"`
}

type egressAddressListCmd struct{}

// Run lists the addresses from which deliveries come.
func (c *egressAddressListCmd) Run(ctx context.Context, s *session) error {
	t := table{{"CIDR", "cidr"}, {"VALID FROM", "validFrom"}, {"VALID UNTIL", "validUntil"}}
	return s.list(ctx, listFlags{}, t, func(ctx context.Context, _ page) (*http.Response, error) { return s.ListEgressAddresses(ctx) })
}

type companyCmd struct {
	group

	List   companyListCmd   `cmd:"" help:"List the companies that have a name, in the order of the names (scope platform)." example:"spendhook company list --search acme"`
	Get    companyGetCmd    `cmd:"" help:"Show the name of a company (scope platform)." example:"spendhook company get 6f1c2a7e-3b0d-4a53-9c1c-0f5b8f0d2a11"`
	Name   companyNameCmd   `cmd:"" help:"Give a company a name, in place of the one that it had (scope platform)." example:"spendhook company name 6f1c2a7e-3b0d-4a53-9c1c-0f5b8f0d2a11 'Acme Inc.'"`
	Export companyExportCmd `cmd:"" help:"Write a company's subscribers, events, deliveries, jobs, cards, reimbursements, locations and audit log as NDJSON, such as for a request under data protection law. What the token may not read is named at the end." example:"spendhook company export 6f1c2a7e-3b0d-4a53-9c1c-0f5b8f0d2a11 > acme.ndjson"`
	Erase  companyEraseCmd  `cmd:"" help:"Erase the data that a company has now: subscribers, secrets, payloads, recorded answers (scope platform)." example:"spendhook company erase 6f1c2a7e-3b0d-4a53-9c1c-0f5b8f0d2a11 --wait --yes"`
}

type companyListCmd struct {
	listFlags
	companySearch
}

type companySearch struct {
	Search string `placeholder:"WORDS|UUID" help:"Only companies whose names have words that begin with these."`
}

// Run lists the companies.
func (c *companyListCmd) Run(ctx context.Context, s *session) error {
	return s.list(ctx, c.listFlags, table{{"UUID", "uuid"}, {"NAME", "name"}}, pages(s, s.ListCompanies, c.companySearch))
}

type companyGetCmd struct {
	UUID uuid.UUID `arg:"" name:"uuid" help:"UUID of the company."`
}

// Run shows the company.
func (c *companyGetCmd) Run(ctx context.Context, s *session) error {
	return s.show(s.GetCompany(ctx, c.UUID))
}

type companyNameCmd struct {
	confirmation
	UUID uuid.UUID `arg:"" name:"uuid" help:"UUID of the company."`
	Name string    `arg:"" help:"Its name."`
}

// Run names the company.
func (c *companyNameCmd) Run(ctx context.Context, s *session) error {
	if err := s.confirm(c.confirmation, ""); err != nil {
		return err
	}
	return s.show(s.NameCompany(ctx, c.UUID, client.CompanyInput{Name: c.Name}))
}

type companyExportCmd struct {
	UUID uuid.UUID `arg:"" name:"uuid" help:"UUID of the company."`
}

// Run writes the company's data as it reads them, one item a line. It returns an error that names what it could not read.
func (c *companyExportCmd) Run(ctx context.Context, s *session) (failed error) {
	s.connection.CompanyUUID = &c.UUID
	for _, part := range []struct {
		kind string
		read readPage
	}{
		{"subscriber", pages(s, s.ListSubscribers)},
		{"event", pages(s, s.ListEvents)},
		{"delivery", pages(s, s.ListDeliveries)},
		{"job", pages(s, s.ListJobs)},
		{"card", pages(s, s.ListCards)},
		{"reimbursement", pages(s, s.ListReimbursements)},
		{"location", pages(s, s.ListLocations)},
		{"audit", pages(s, s.ListAudit)},
	} {
		if err := s.export(ctx, part.kind, part.read); err != nil {
			failed = errors.Join(failed, fmt.Errorf("the export has not all of the kind %s: %w", part.kind, err))
		}
	}
	return failed
}

func (s *session) export(ctx context.Context, kind string, read readPage) error {
	var more bool
	for items, err := range each(ctx, page{Size: new(100)}, read, &more) {
		if err != nil {
			return err
		}
		for _, item := range items {
			if _, err := fmt.Fprintf(s.term.Out, "{\"kind\":%q,\"data\":%s}\n", kind, terminal.Escape(string(item.RawMessage), "")); err != nil {
				return err
			}
		}
	}
	return nil
}

type companyEraseCmd struct {
	confirmation
	UUID uuid.UUID `arg:"" name:"uuid" help:"UUID of the company."`
	Wait bool      `help:"Show the progress until the job ends (scope deliveries:read)."`
}

// Run starts the job that erases the company's data.
func (c *companyEraseCmd) Run(ctx context.Context, s *session) error {
	if err := s.confirm(c.confirmation, "Remove all subscribers, secrets, payloads and answers of company %s permanently?", c.UUID); err != nil {
		return err
	}
	s.connection.CompanyUUID = &c.UUID // for reading the job
	resp, err := s.EraseCompany(ctx, c.UUID)
	return s.printJob(ctx, c.Wait, deliveryJob, resp, err)
}
