package api

import (
	"context"
	"net/http"

	"github.com/google/uuid"

	"spendhook/api/gen"
	"spendhook/subscribers/certificate"
)

// GetEgressCertificate is GET /api/v1/egress-certificate.
func (s *server) GetEgressCertificate(w http.ResponseWriter, r *http.Request, p gen.GetEgressCertificateParams) {
	s.doFor(w, r, p.CompanyUUID, func(ctx context.Context, company uuid.UUID) (reply, error) {
		found, err := s.opts.Certificates.Get(ctx, company)
		if err != nil {
			return reply{}, err
		}
		return ok(shownCertificate(company, found)), nil
	})
}

// SetEgressCertificate is PUT /api/v1/egress-certificate.
func (s *server) SetEgressCertificate(w http.ResponseWriter, r *http.Request, p gen.SetEgressCertificateParams) {
	withBody(s.do, w, r, p.CompanyUUID, func(ctx context.Context, c *caller, company uuid.UUID, in gen.EgressCertificateInput) (reply, error) {
		c.auditTarget(&company, "egress_certificate", company.String())
		set, err := s.opts.Certificates.Set(ctx, company, certificate.Input{Chain: in.CertificateChain, PrivateKey: in.PrivateKey})
		if err != nil {
			return reply{}, err
		}
		c.auditDetail("x5t#S256 " + set.Thumbprint)
		return ok(shownCertificate(company, set)), nil
	})
}

// DeleteEgressCertificate is DELETE /api/v1/egress-certificate.
func (s *server) DeleteEgressCertificate(w http.ResponseWriter, r *http.Request, p gen.DeleteEgressCertificateParams) {
	withBody(s.do, w, r, p.CompanyUUID, func(ctx context.Context, c *caller, company uuid.UUID, _ gen.CompanyScope) (reply, error) {
		c.auditTarget(&company, "egress_certificate", company.String())
		return noContent(), s.opts.Certificates.Remove(ctx, company)
	})
}

// shownCertificate never has the key.
func shownCertificate(company uuid.UUID, c *certificate.Certificate) gen.EgressCertificate {
	return gen.EgressCertificate{
		CompanyUUID: company, Subject: c.Subject, Issuer: c.Issuer, Thumbprint: c.Thumbprint,
		NotBefore: c.NotBefore, NotAfter: c.NotAfter, UpdatedAt: c.UpdatedAt,
	}
}
