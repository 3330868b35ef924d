package console

import (
	"context"
	"errors"

	"github.com/google/uuid"

	"spendhook/auth/clients"
	"spendhook/console/session"
	"spendhook/storage"
	"spendhook/subscribers/certificate"
)

// accessPage shows who has access: the sessions of the console, and for the platform the OAuth clients.
type accessPage struct {
	Sessions []session.Session
	Next     string // page of the sessions
	Clients  []clientRow
	More     bool // there are more clients
	Away     bool // the database with the clients is not available
}

type clientRow struct {
	clients.Client

	Of *uuid.UUID // its company; nil: all
}

func (s *server) access(ctx context.Context, v *visit, company *uuid.UUID) error {
	found, err := s.opts.Sessions.List(ctx, session.Filter{Company: company, Cursor: v.Query("cursor"), Size: listSize})
	if err != nil {
		return err
	}
	page := accessPage{Sessions: found.Items, Next: v.next(found.Next)}
	if s.opts.Clients != nil && company == nil && v.Query("cursor") == "" {
		limited, cancel := context.WithTimeout(ctx, waitOnNames)
		defer cancel()
		list, next, err := s.opts.Clients.List(limited, "", 2*listSize)
		if err != nil && !unavailable(err) {
			return err
		}
		page.Away = err != nil
		for _, c := range list {
			page.Clients = append(page.Clients, clientRow{c, (*uuid.UUID)(c.Company)})
		}
		page.More = next != ""
	}
	v.show("access", "Access", page)
	return nil
}

// endSession ends a session; the visitor's own like signOut.
func (s *server) endSession(ctx context.Context, v *visit, company *uuid.UUID) error {
	id, err := uuid.Parse(v.r.PathValue("uuid"))
	if err != nil {
		return errNoPage
	}
	if id == v.ID {
		return s.signOut(ctx, v)
	}
	v.setAuditEntry("console-session.end", "", company, "console-session", id.String())
	ended, err := s.opts.Sessions.End(ctx, company, id, nil)
	if errors.Is(err, session.ErrNotFound) {
		return errNoPage
	}
	if err != nil {
		return err
	}
	v.entry.CompanyUUID = ended.Company
	return v.done("/console/access", "ended")
}

// disableClient disables an OAuth client, or enables it again. The tokens of a disabled client are refused within seconds.
func (s *server) disableClient(ctx context.Context, v *visit) error {
	if s.opts.Clients == nil {
		return errNoPage
	}
	id, disabled := v.r.PathValue("client"), v.field("disabled")
	if disabled != "true" && disabled != "false" {
		return errForm
	}
	v.setAuditEntry("client.update", "", nil, "client", id, "disabled")
	_, err := s.opts.Clients.SetDisabled(ctx, id, disabled == "true")
	if errors.Is(err, storage.ErrNotFound) {
		return errNoPage
	}
	if err != nil {
		return err
	}
	if disabled == "true" {
		return v.done("/console/access", "client-disabled")
	}
	return v.done("/console/access", "client-enabled")
}

// eraseCompany starts the job that erases the data of a company. The form repeats the start of its UUID.
func (s *server) eraseCompany(ctx context.Context, v *visit, company uuid.UUID) error {
	if v.field("confirm") != company.String()[:8] {
		return errNotConfirmed
	}
	v.setAuditEntry("company.erase", "", &company, "company", company.String())
	job, err := s.opts.Redelivery.Erase(ctx, company)
	if err != nil {
		return err
	}
	return v.done("/console/jobs/"+job.UUID.String(), "started")
}

// setCertificate sets the client certificate that the deliveries to a subscriber present.
func (s *server) setCertificate(ctx context.Context, v *visit, company, id uuid.UUID) error {
	v.setAuditEntry("egress-certificate.set", "", &company, "egress_certificate", id.String())
	set, err := s.opts.Certificates.Of(id).Set(ctx, company, certificate.Input{Chain: v.field("chain") + "\n", PrivateKey: v.field("key") + "\n"})
	if err != nil {
		return err
	}
	v.entry.Detail = "x5t#S256 " + set.Thumbprint
	return v.done("/console/subscribers/"+id.String(), "certified")
}

// removeCertificate has the deliveries to a subscriber present the certificate of the company, if it has one.
func (s *server) removeCertificate(ctx context.Context, v *visit, company, id uuid.UUID) error {
	v.setAuditEntry("egress-certificate.delete", "", &company, "egress_certificate", id.String())
	if err := s.opts.Certificates.Of(id).Remove(ctx, company); err != nil {
		return err
	}
	return v.done("/console/subscribers/"+id.String(), "uncertified")
}
